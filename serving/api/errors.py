"""One way in which errors leave: an error object of the route's own API, as a JSON body or as a stream event."""

from __future__ import annotations

import orjson

from serving.core.context import Headers
from serving.core.errors import RequestError
from serving.core.routes import OPENAI, Dialect

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_object(error: RequestError, dialect: Dialect = OPENAI, request_id: str = "") -> dict[str, object]:
    """All four fields of OpenAI's schema are always there; `code` and `param` are strings or null."""
    if dialect.name == "anthropic":
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        shown: dict[str, object] = {"type": "error", "error": {"type": kind, "message": error.message}}
        return {**shown, "request_id": request_id} if request_id else shown
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.error_code}}


def error_body(error: RequestError, dialect: Dialect = OPENAI, request_id: str = "") -> bytes:
    return orjson.dumps(error_object(error, dialect, request_id))


def error_event(
    error: RequestError, *, mid_event: bool, dialect: Dialect = OPENAI, request_id: str = "", number: int = 0
) -> bytes:
    """A stream event for after the first byte. An event that the engine did not end is ended before it.

    `number` is the event's place in a stream that numbers its events.
    """
    shown = error_object(error, dialect, request_id)
    if dialect.name == "responses":
        # The API's schema has the fields at the top; OpenAI's own servers also send the object, and its client looks for that.
        fields = {"code": error.error_code, "message": error.message, "param": error.param}
        shown = {"type": "error", **fields, "sequence_number": number, **shown}
    name = b"" if dialect.name == "openai" else b"event: error\n"
    return b"%s%sdata: %s\n\n" % (b"\n\n" if mid_event else b"", name, orjson.dumps(shown))


def error_headers(error: RequestError, length: int) -> Headers:
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    headers.extend((name.lower().encode("ascii"), value.encode("latin-1")) for name, value in error.headers.items())
    return headers


class InternalFault(RequestError):
    """A fault of the gateway itself; its cause stands in the log under the request's id."""


def internal_fault() -> InternalFault:
    return InternalFault("The gateway failed. The request's id stands in the x-request-id header.")
