"""What is reserved before a request, and what it cost when it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from serving.core.context import UNKNOWN_USAGE, RequestContext, Usage
from serving.core.errors import InvalidRequest
from serving.core.outcomes import Outcome
from serving.core.routes import CHAT_COMPLETIONS, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES_ROUTE, Route
from serving.ledger_settings import PricesSettings
from serving.tenancy.claims import UNKNOWN_OUTPUT_TOKENS, Claims, Guess
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.prices import Prices
from serving.tenancy.quotas import NOTHING, Claim, Limits
from serving.tenancy.tenants import Tenant
from serving.tenant_settings import ParameterLimits

TENANT = Tenant("a", ParameterLimits())


def claims(**settings: Any) -> Claims:
    prices = Prices(PricesSettings.model_validate(settings)) if settings else None
    return Claims(TokenEstimates(), prices, {"m": {"cheap", "dear"}})


def request(route: Route = CHAT_COMPLETIONS, *, body_bytes: int = 400, **document: Any) -> RequestContext:
    ctx = RequestContext("id", route, None, 0.0, tenant="a", model="m")
    ctx.body_bytes, ctx.document = body_bytes, document
    return ctx


def guess(ctx: RequestContext, tenant: Tenant = TENANT, limits: Limits | None = None) -> Guess:
    return claims().guess(ctx, tenant, limits)


def test_the_prompt_is_guessed_by_its_bytes_and_the_output_by_what_is_asked() -> None:
    assert guess(request(max_tokens=50)) == (100, 50)
    assert guess(request(max_completion_tokens=60)) == (100, 60)
    assert guess(request(RESPONSES_ROUTE, max_output_tokens=70.0)) == (100, 70)
    assert guess(request()) == (100, UNKNOWN_OUTPUT_TOKENS)
    assert guess(request(EMBEDDINGS, input="x")) == (100, 0)
    assert guess(request(COUNT_TOKENS)) == (0, 0)


def test_several_answers_take_several_times_the_output() -> None:
    assert guess(request(max_tokens=50, n=3)).output_tokens == 150
    assert guess(request(COMPLETIONS, prompt=["a", "b"], max_tokens=50, best_of=2)).output_tokens == 200
    assert guess(request(COMPLETIONS, prompt=[1, 2, 3], max_tokens=50)).output_tokens == 50
    assert guess(request(COMPLETIONS, prompt="a", max_tokens=50)).output_tokens == 50


def test_only_the_field_that_the_engine_heeds_says_how_long_an_answer_may_be() -> None:
    """vLLM passes over the others, and so would a small one open what a large one asks for."""
    assert guess(request(COMPLETIONS, prompt="a", max_completion_tokens=1, max_tokens=5000)).output_tokens == 5000
    assert guess(request(RESPONSES_ROUTE, max_tokens=1, max_output_tokens=5000)).output_tokens == 5000
    assert guess(request(MESSAGES, max_completion_tokens=1, max_tokens=5000)).output_tokens == 5000
    assert guess(request(CHAT_COMPLETIONS, max_output_tokens=1, max_tokens=5000)).output_tokens == 5000
    assert guess(request(CHAT_COMPLETIONS, max_tokens=1, max_completion_tokens=5000)).output_tokens == 5000
    assert guess(request(RESPONSES_ROUTE, max_tokens=1)).output_tokens == UNKNOWN_OUTPUT_TOKENS
    with pytest.raises(InvalidRequest):
        guess(request(COMPLETIONS, prompt="a", max_completion_tokens=1, max_tokens=5000), limits=Limits(tokens=1000))


def test_a_cap_is_the_most_that_is_guessed() -> None:
    capped = Tenant("a", ParameterLimits(max_tokens=20))
    assert guess(request(), capped).output_tokens == 20
    assert guess(request(max_tokens=10), capped).output_tokens == 10


def test_the_last_answers_say_how_long_the_next_one_will_be() -> None:
    book = claims()
    for tokens in range(1, 101):
        ended = request(max_tokens=4000)
        ended.usage, ended.outcome = Usage(10, 0, tokens), Outcome.OK
        book.learn(ended)
    assert book.guess(request(max_tokens=4000), TENANT, None).output_tokens == pytest.approx(95, abs=5)
    assert book.guess(request(max_tokens=7), TENANT, None).output_tokens == 7
    assert book.guess(request(max_tokens=4000), Tenant("b", ParameterLimits()), None).output_tokens == 4000, (
        "another's say nothing"
    )
    for tokens in range(200):
        failed = request()
        failed.usage, failed.outcome, failed.usage_estimated = Usage(10, 0, 9000 + tokens), Outcome.TRUNCATED, True
        book.learn(failed)
    assert book.guess(request(), TENANT, None).output_tokens < 200


def test_what_one_answer_was_long_says_how_long_several_will_be() -> None:
    book = claims()
    for _ in range(8):
        ended = request(COMPLETIONS, prompt="a", max_tokens=4000)
        ended.usage, ended.outcome = Usage(10, 0, 20), Outcome.OK
        book.learn(ended)
    assert book.guess(request(COMPLETIONS, prompt="a", max_tokens=4000), TENANT, None).output_tokens == 20
    assert book.guess(request(COMPLETIONS, prompt="a", n=8), TENANT, None).output_tokens == 160
    many = request(COMPLETIONS, prompt=["a"] * 200, n=8, max_tokens=4000)
    assert book.guess(many, TENANT, None).output_tokens == 200 * 8 * 20
    for _ in range(200):
        many.usage, many.outcome = Usage(10, 0, 200 * 8 * 30), Outcome.OK
        book.learn(many)
    assert book.guess(request(COMPLETIONS, prompt="a", max_tokens=4000), TENANT, None).output_tokens == 30, "each of its answers"


def test_what_can_never_fit_is_refused() -> None:
    limits = Limits(tokens=500)
    assert guess(request(max_tokens=400), limits=limits) == (100, 400)
    too_much = (
        (request(max_tokens=401), "max_tokens"),
        (request(max_tokens=150, n=3), "max_tokens"),
        (request(body_bytes=3000), None),
    )
    for ctx, param in too_much:
        with pytest.raises(InvalidRequest) as caught:
            guess(ctx, limits=limits)
        assert (caught.value.error_code, caught.value.param, caught.value.retry_after_seconds) == (
            "request_exceeds_limit",
            param,
            None,
        )
    assert guess(request(), limits=limits) == (100, 400), "what nobody asked for does not shut it out"


def test_a_refusal_names_the_field_of_its_route() -> None:
    for route, field in ((RESPONSES_ROUTE, "max_output_tokens"), (CHAT_COMPLETIONS, "max_completion_tokens")):
        with pytest.raises(InvalidRequest, match=field) as caught:
            guess(request(route, **{field: 401}), limits=Limits(tokens=500))
        assert caught.value.param == field


def test_a_prompt_that_only_seems_too_long_is_let_in() -> None:
    """What a tenant's pictures were worth by their addresses says nothing sure of its texts; no byte of text is two tokens."""
    estimates = TokenEstimates()
    book, picture = Claims(estimates), request(body_bytes=100)
    picture.usage = Usage(2000, 0, 1)
    estimates.learn(picture)
    assert book.guess(request(body_bytes=400), TENANT, Limits(tokens=500)) == (500, 0)
    with pytest.raises(InvalidRequest):
        book.guess(request(body_bytes=501), TENANT, Limits(tokens=500))


def test_a_request_that_costs_more_than_a_day_may_is_told_so() -> None:
    book = claims(models={"m": {"prompt": 1, "output": 4}})
    day = Limits(nano_dollars=1_000_000)
    for ctx, param in ((request(max_tokens=300), "max_tokens"), (request(body_bytes=5000, max_tokens=1), None)):
        with pytest.raises(InvalidRequest) as caught:
            book.claim(ctx, book.guess(ctx, TENANT, day), day)
        assert (caught.value.error_code, caught.value.param, caught.value.retry_after_seconds) == (
            "request_exceeds_limit",
            param,
            None,
        )
    fits = request(max_tokens=200)
    assert book.claim(fits, book.guess(fits, TENANT, day), day) == Claim(1, 300, 900_000)
    unsaid = request()
    assert book.claim(unsaid, book.guess(unsaid, TENANT, day), day).nano_dollars == 1_000_000, (
        "what nobody asked for does not shut it out"
    )


def ended(outcome: Outcome, usage: Usage = UNKNOWN_USAGE, attempts: int = 1) -> RequestContext:
    ctx = request()
    ctx.outcome, ctx.usage, ctx.attempts = outcome, usage, attempts
    return ctx


def test_an_ended_request_costs_by_rule() -> None:
    book, guessed = claims(), Guess(100, 50)
    assert book.used(ended(Outcome.OK, Usage(90, 0, 30)), guessed) == Claim(1, 120)
    assert book.used(ended(Outcome.OK), guessed) == Claim(1, 150), "an engine that says nothing"
    for left in (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_SLOW, Outcome.DEADLINE_EXCEEDED):
        assert book.used(ended(left, Usage(80, None, 12)), guessed) == Claim(1, 92)
        assert book.used(ended(left), guessed) == Claim(1, 100), "its prompt"
        assert book.used(ended(left, attempts=0), guessed) == NOTHING, "no engine had it"
    free = set(Outcome) - {Outcome.OK, Outcome.CLIENT_CANCELLED, Outcome.CLIENT_SLOW, Outcome.DEADLINE_EXCEEDED}
    for outcome in free:
        assert book.used(ended(outcome, Usage(80, 0, 12)), guessed) == NOTHING, outcome


def test_dollars_are_reserved_at_the_dearest_pool_and_settled_at_the_one_that_answered() -> None:
    plain, dear = {"prompt": 1, "cached": 0.1, "output": 4}, {"prompt": 10, "output": 40}
    book = claims(models={"m": plain}, pools={"dear": dear})
    assert book.claim(request(), Guess(1000, 100)) == Claim(1, 1100, 10_000_000 + 4_000_000)
    whole = ended(Outcome.OK, Usage(1000, 600, 100))
    whole.pool = "cheap"
    assert book.used(whole, Guess(0, 0)) == Claim(1, 1100, 400_000 + 60_000 + 400_000)
    whole.pool = "dear"
    assert book.used(whole, Guess(0, 0)).nano_dollars == 10_000_000 + 4_000_000
    assert claims().claim(request(), Guess(1000, 100)).nano_dollars == 0
