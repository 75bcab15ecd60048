"""One way in which errors leave: OpenAI's error object, as a body or as an event."""

from __future__ import annotations

import json

import pytest

from serving.api.errors import error_body, error_event, error_headers, internal_fault
from serving.core.errors import InvalidRequest, MethodNotAllowed, Overloaded, RequestError
from serving.core.outcomes import Outcome

MESSAGE = 'A "quoted" wörd,\nand a line.'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest(MESSAGE), {"type": "invalid_request_error", "param": None, "code": None}),
        (InvalidRequest(MESSAGE, param="n", code="x"), {"type": "invalid_request_error", "param": "n", "code": "x"}),
        (Overloaded(MESSAGE), {"type": "rate_limit_error", "param": None, "code": "overloaded"}),
    ],
)
def test_all_four_fields_are_always_there(error: RequestError, expected: dict[str, str | None]) -> None:
    assert json.loads(error_body(error)) == {"error": {"message": MESSAGE, **expected}}


def test_an_event_is_one_line_of_data() -> None:
    event = error_event(InvalidRequest(MESSAGE), mid_event=False)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == json.loads(error_body(InvalidRequest(MESSAGE)))


def test_an_event_that_was_cut_is_ended_before_the_error() -> None:
    error = InvalidRequest(MESSAGE)
    stream = b'data: {"cut' + error_event(error, mid_event=True)
    assert stream.split(b"\n\n") == [b'data: {"cut', b"data: " + error_body(error), b""]


def test_the_headers_frame_the_body() -> None:
    assert error_headers(InvalidRequest("x"), 12) == [(b"content-type", b"application/json"), (b"content-length", b"12")]


def test_retry_after_is_an_integer() -> None:
    assert (b"retry-after", b"7") in error_headers(Overloaded("x", retry_after_seconds=7), 1)
    assert (b"retry-after", b"0") in error_headers(Overloaded("x", retry_after_seconds=0), 1)


def test_an_errors_own_headers_go_along() -> None:
    assert (b"allow", b"POST") in error_headers(MethodNotAllowed("x", headers={"allow": "POST"}), 1)


def test_header_names_are_lower_case_as_asgi_wants_them() -> None:
    assert (b"allow", b"GET") in error_headers(MethodNotAllowed("x", headers={"Allow": "GET"}), 1)


def test_an_internal_fault_tells_nothing_of_its_cause() -> None:
    error = internal_fault()
    assert (error.status, error.type, error.error_code) == (500, "server_error", "server_error")
    assert Outcome(error.outcome) is Outcome.INTERNAL_ERROR
    assert "x-request-id" in error.message
