"""The last errors: bounded, each side by itself, and nothing of what clients write."""

from __future__ import annotations

from serving.core.context import RequestContext
from serving.core.outcomes import Outcome
from serving.core.routes import CHAT_COMPLETIONS
from serving.observability.last_errors import MOST, LastErrors


def failed(outcome: Outcome, request_id: str = "r1", status: int = 502) -> RequestContext:
    ctx = RequestContext(request_id, CHAT_COMPLETIONS, "sk-secret", 1.0)
    ctx.outcome, ctx.status, ctx.error_code, ctx.endpoint = outcome, status, "engine_failed", "e1"
    ctx.asked_model, ctx.tenant, ctx.body = "tiny", "red", b"SECRET"
    return ctx


def ring(now: float = 50.0) -> LastErrors:
    return LastErrors(clock=lambda: now, wall=lambda: 1_000_050.0)


def test_an_error_tells_what_it_was_and_where() -> None:
    errors = ring()
    errors.add(failed(Outcome.ENGINE_ERROR), 20.0)
    (failure,) = errors.newest_first()
    assert (failure.at, failure.status, failure.outcome, failure.code) == (1_000_020.0, 502, "engine_error", "engine_failed")
    assert (failure.model, failure.endpoint, failure.request_id) == ("tiny", "e1", "r1")
    assert "SECRET" not in repr(failure) and "sk-" not in repr(failure) and "red" not in repr(failure)


def test_callers_faults_do_not_flood_out_those_of_engines() -> None:
    errors = ring()
    errors.add(failed(Outcome.ENGINE_ERROR, "ours"), 1.0)
    for number in range(10 * MOST):
        errors.add(failed(Outcome.INVALID, f"theirs-{number}", 400), 2.0 + number)
    found = errors.newest_first()
    assert len(found) == MOST + 1
    assert (found[0].request_id, found[-1].request_id) == (f"theirs-{10 * MOST - 1}", "ours")


def test_a_client_that_leaves_is_no_error() -> None:
    errors = ring()
    errors.add(failed(Outcome.CLIENT_CANCELLED), 1.0)
    assert errors.newest_first() == []
