"""The tree of errors that the product raises by intent.

    ServingError
    ├── ConfigurationError        a file, flag, variable or machine is wrong; the command line prints it and exits 2
    └── RequestError              a request cannot be served; the edge renders it as an OpenAI error object
        ├── InvalidRequest        400
        ├── Unauthorized          401
        ├── Forbidden             403   a browser asks for another site's page
        ├── NotFound              404   (ModelNotFound: the model is not known here)
        ├── MethodNotAllowed      405
        ├── RequestTimeout        408   the client did not send its body in time
        ├── BodyTooLarge          413
        ├── UrlTooLong            414
        ├── UnsupportedMedia      415
        ├── Overloaded            429   full here: come back after `retry_after_seconds`
        ├── RateLimited           429   a limit of the tenant: come back after `retry_after_seconds`
        │   └── QuotaSpent        429   a limit of the tenant that waiting a moment does not help against
        ├── HeadTooLarge          431   more header fields, or longer ones, than the edge reads
        ├── Unavailable           503   no engine can serve the model now
        ├── EngineFailed          502   engines were tried and failed before the first byte
        ├── EngineTimedOut        504   no first byte in time
        ├── DeadlineExceeded      504   the request's whole time is used up
        └── ClientGone            499   nobody is left to answer; never rendered

Errors of foreign libraries are translated where they are caught, never passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class ServingError(Exception):
    """Base of all errors raised by intent."""


class ConfigurationError(ServingError):
    """What the operator gave cannot be used; the message names it and says what would be right."""


class RequestError(ServingError):
    """A request that ends in an error made by the gateway.

    `message` is for the caller and holds no internals. `outcome` is the closed label of the metric.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = "server_error"
    outcome: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error_code = code if code is not None else self.code
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers or {})


class InvalidRequest(RequestError):
    status = 400
    type = "invalid_request_error"
    code = None
    outcome = "invalid"


class Unauthorized(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    outcome = "unauthorized"


class Forbidden(RequestError):
    status = 403
    type = "permission_error"
    code = "forbidden"
    outcome = "unauthorized"


class NotFound(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"
    outcome = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RequestError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    outcome = "invalid"


class RequestTimeout(RequestError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"
    outcome = "invalid"


class BodyTooLarge(RequestError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"
    outcome = "invalid"


class UrlTooLong(RequestError):
    status = 414
    type = "invalid_request_error"
    code = "url_too_long"
    outcome = "invalid"


class UnsupportedMedia(RequestError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"
    outcome = "invalid"


class HeadTooLarge(RequestError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"
    outcome = "invalid"


class Overloaded(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    outcome = "overloaded"


class RateLimited(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    outcome = "rate_limited"


class QuotaSpent(RateLimited):
    type = "insufficient_quota"
    code = "insufficient_quota"


class Unavailable(RequestError):
    status = 503
    type = "server_error"
    code = "model_unavailable"
    outcome = "unavailable"


class EngineFailed(RequestError):
    status = 502
    type = "server_error"
    code = "engine_failed"
    outcome = "engine_error"


class EngineTimedOut(RequestError):
    status = 504
    type = "server_error"
    code = "engine_timeout"
    outcome = "engine_timeout"


class DeadlineExceeded(RequestError):
    status = 504
    type = "server_error"
    code = "deadline_exceeded"
    outcome = "deadline_exceeded"


class ClientGone(RequestError):
    status = 499
    type = "invalid_request_error"
    code = None
    outcome = "client_cancelled"
