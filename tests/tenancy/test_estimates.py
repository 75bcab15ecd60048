"""What an answer cost that ended too early: text by the byte, and sound by far less."""

from __future__ import annotations

from serving.core.context import RequestContext, Usage
from serving.core.routes import CHAT_COMPLETIONS, TRANSCRIPTIONS, Route
from serving.tenancy.estimates import TokenEstimates


def context(route: Route, body_bytes: int, usage: Usage | None = None) -> RequestContext:
    ctx = RequestContext("r", route, None, 0.0)
    ctx.model, ctx.body_bytes, ctx.usage = "tiny", body_bytes, usage or Usage()
    return ctx


def test_before_anything_is_known_a_byte_of_sound_is_worth_less_than_one_of_text() -> None:
    estimates = TokenEstimates()
    assert estimates.estimate(context(CHAT_COMPLETIONS, 1000)).prompt_tokens == 250
    assert estimates.estimate(context(TRANSCRIPTIONS, 1_000_000)).prompt_tokens == 3000


def test_what_one_model_makes_of_text_and_of_sound_is_learned_apart() -> None:
    estimates = TokenEstimates()
    estimates.learn(context(CHAT_COMPLETIONS, 1000, Usage(500, 0, 1)))
    assert estimates.estimate(context(TRANSCRIPTIONS, 1_000_000)).prompt_tokens == 3000
    estimates.learn(context(TRANSCRIPTIONS, 1_000_000, Usage(1500, 0, 1)))
    assert estimates.estimate(context(TRANSCRIPTIONS, 2_000_000)).prompt_tokens == 3000
    assert estimates.estimate(context(CHAT_COMPLETIONS, 1000)).prompt_tokens == 500
