"""What an answer cost that ended too early: text by the byte, and sound by far less."""

from __future__ import annotations

from serving.core.context import RequestContext, Usage
from serving.core.routes import CHAT_COMPLETIONS, TRANSCRIPTIONS, Route
from serving.tenancy.estimates import KNOWN, TokenEstimates


def context(route: Route, body_bytes: int, usage: Usage | None = None, tenant: str = "a") -> RequestContext:
    ctx = RequestContext("r", route, None, 0.0, tenant=tenant)
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


def test_what_one_tenant_sends_says_nothing_of_what_another_pays_for() -> None:
    """A picture's address is a hundred bytes and a thousand tokens; a stream that hides its reasoning has few events."""
    estimates = TokenEstimates()
    for _ in range(100):
        hostile = context(CHAT_COMPLETIONS, 100, Usage(5000, 0, 9000), tenant="red")
        hostile.stream, hostile.events = True, 4
        estimates.learn(hostile)
    left = context(CHAT_COMPLETIONS, 1000, tenant="blue")
    left.stream, left.events = True, 11
    assert estimates.estimate(left) == Usage(250, None, 10)


def test_what_is_remembered_is_bounded() -> None:
    estimates = TokenEstimates()
    for number in range(3 * KNOWN):
        estimates.learn(context(CHAT_COMPLETIONS, 1000, Usage(500, 0, 1), tenant=f"t{number}"))
    assert estimates.known == KNOWN
    assert estimates.estimate(context(CHAT_COMPLETIONS, 1000, tenant=f"t{3 * KNOWN - 1}")).prompt_tokens == 500
    assert estimates.estimate(context(CHAT_COMPLETIONS, 1000, tenant="t0")).prompt_tokens == 250
