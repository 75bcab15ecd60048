"""Every error says what the caller may do: a status, a type, a code, and the outcome it is counted as."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.core import errors
from serving.core.errors import ConfigurationError, Overloaded, RequestError, ServingError
from serving.core.outcomes import Outcome

KINDS = [
    ("InvalidRequest", 400, "invalid_request_error", None, Outcome.INVALID),
    ("Unauthorized", 401, "authentication_error", "invalid_api_key", Outcome.UNAUTHORIZED),
    ("Forbidden", 403, "permission_error", "forbidden", Outcome.UNAUTHORIZED),
    ("NotFound", 404, "invalid_request_error", "not_found", Outcome.NOT_FOUND),
    ("ModelNotFound", 404, "invalid_request_error", "model_not_found", Outcome.NOT_FOUND),
    ("MethodNotAllowed", 405, "invalid_request_error", "method_not_allowed", Outcome.INVALID),
    ("RequestTimeout", 408, "invalid_request_error", "request_timeout", Outcome.INVALID),
    ("BodyTooLarge", 413, "invalid_request_error", "request_too_large", Outcome.INVALID),
    ("UrlTooLong", 414, "invalid_request_error", "url_too_long", Outcome.INVALID),
    ("UnsupportedMedia", 415, "invalid_request_error", "unsupported_media_type", Outcome.INVALID),
    ("Overloaded", 429, "rate_limit_error", "overloaded", Outcome.OVERLOADED),
    ("RateLimited", 429, "rate_limit_error", "rate_limit_exceeded", Outcome.RATE_LIMITED),
    ("QuotaSpent", 429, "insufficient_quota", "insufficient_quota", Outcome.RATE_LIMITED),
    ("HeadTooLarge", 431, "invalid_request_error", "headers_too_large", Outcome.INVALID),
    ("Unavailable", 503, "server_error", "model_unavailable", Outcome.UNAVAILABLE),
    ("EngineFailed", 502, "server_error", "engine_failed", Outcome.ENGINE_ERROR),
    ("EngineTimedOut", 504, "server_error", "engine_timeout", Outcome.ENGINE_TIMEOUT),
    ("DeadlineExceeded", 504, "server_error", "deadline_exceeded", Outcome.DEADLINE_EXCEEDED),
    ("ClientGone", 499, "invalid_request_error", None, Outcome.CLIENT_CANCELLED),
]


def _kinds_below(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds_below(below)


@pytest.mark.parametrize(("name", "status", "type_", "code", "outcome"), KINDS)
def test_an_error_has_its_status_type_code_and_outcome(
    name: str, status: int, type_: str, code: str | None, outcome: Outcome
) -> None:
    error = getattr(errors, name)("why")
    assert (error.status, error.type, error.error_code) == (status, type_, code)
    assert Outcome(error.outcome) is outcome


def test_no_kind_is_missing_above() -> None:
    kinds = {kind.__name__ for kind in _kinds_below(RequestError) if kind.__module__ == errors.__name__}
    assert kinds == {name for name, *_ in KINDS}


def test_the_outcome_of_every_kind_is_one_of_the_closed_set() -> None:
    for kind in (RequestError, *_kinds_below(RequestError)):
        Outcome(kind.outcome)


def test_what_is_given_overrides_what_the_kind_says() -> None:
    error = Overloaded("full", param="model", code="queue_full", retry_after_seconds=3, headers={"allow": "POST"})
    assert (error.message, str(error), error.param, error.error_code) == ("full", "full", "model", "queue_full")
    assert (error.retry_after_seconds, error.headers) == (3, {"allow": "POST"})
    assert Overloaded.code == "overloaded"


def test_an_errors_headers_are_its_own() -> None:
    given = {"allow": "POST"}
    error = Overloaded("full", headers=given)
    error.headers["x"] = "y"
    assert given == {"allow": "POST"}
    assert Overloaded("full").headers == {}


def test_errors_of_configuration_and_of_requests_are_apart() -> None:
    assert issubclass(ConfigurationError, ServingError)
    assert not issubclass(ConfigurationError, RequestError)
