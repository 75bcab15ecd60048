"""How much time a request gives itself."""

from __future__ import annotations

import re

from serving.core.errors import InvalidRequest

_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


def ends_of(asked: bytes, arrived: float, most_seconds: float) -> float:
    """When a request ends that asked for so many seconds, in the clock of `arrived`; never later than the gateway's own limit.

    Raises: InvalidRequest.
    """
    text = asked.strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not seconds:
        raise InvalidRequest(
            "The header x-request-timeout must be a number of seconds above 0, as 30 or 2.5.", code="invalid_request_timeout"
        )
    return arrived + min(seconds, most_seconds)
