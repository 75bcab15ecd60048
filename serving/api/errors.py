"""One way in which errors leave: OpenAI's error object, as a JSON body or as a stream event."""

from __future__ import annotations

import orjson

from serving.core.context import Headers
from serving.core.errors import RequestError


def error_object(error: RequestError) -> dict[str, object]:
    """All four fields of OpenAI's schema are always there; `code` and `param` are strings or null."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.error_code}}


def error_body(error: RequestError) -> bytes:
    return orjson.dumps(error_object(error))


def error_event(error: RequestError, *, mid_event: bool) -> bytes:
    """A stream event for after the first byte. An event that the engine did not end is ended before it."""
    return b"%sdata: %s\n\n" % (b"\n\n" if mid_event else b"", error_body(error))


def error_headers(error: RequestError, length: int) -> Headers:
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    headers.extend((name.encode("ascii"), value.encode("latin-1")) for name, value in error.headers.items())
    return headers


class InternalFault(RequestError):
    """A fault of the gateway itself; its cause stands in the log under the request's id."""


def internal_fault() -> InternalFault:
    return InternalFault("The gateway failed. The request's id stands in the x-request-id header.")
