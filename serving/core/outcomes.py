"""The closed set of ways a request can end. Each request ends in exactly one."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    OK = "ok"
    """The engine's whole answer went to the client."""
    INVALID = "invalid"
    """The request itself was wrong; no engine or an engine's 4xx said so."""
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    """Refused because the gateway or the engines are full."""
    RATE_LIMITED = "rate_limited"
    """Refused because its tenant has used up one of its limits."""
    UNAVAILABLE = "unavailable"
    """No engine could take the request."""
    ENGINE_ERROR = "engine_error"
    """Engines failed before the first byte, or said so in the stream."""
    ENGINE_TIMEOUT = "engine_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The request was not done within the time that the gateway gives any request."""
    TRUNCATED = "truncated"
    """The engine's answer broke off after its first byte had gone to the client."""
    CLIENT_CANCELLED = "client_cancelled"
    CLIENT_SLOW = "client_slow"
    """The client took no byte for too long and was dropped."""
    SHUTDOWN = "shutdown"
    """The gateway's grace time ended first."""
    INTERNAL_ERROR = "internal_error"


OURS = (
    Outcome.OVERLOADED,
    Outcome.UNAVAILABLE,
    Outcome.ENGINE_ERROR,
    Outcome.ENGINE_TIMEOUT,
    Outcome.DEADLINE_EXCEEDED,
    Outcome.TRUNCATED,
    Outcome.INTERNAL_ERROR,
    Outcome.SHUTDOWN,
)
"""Those that are the fault of this side, not of who asked; availability and what is called failed go by them."""


class AttemptResult(StrEnum):
    """How one attempt at one engine ended."""

    OK = "ok"
    REFUSED = "refused"
    """The engine answered with a 4xx."""
    BUSY = "busy"
    """429 or 503: back-pressure, not death."""
    ERROR = "error"
    """Another 5xx, or an error event first."""
    UNREACHABLE = "unreachable"
    STALE = "stale"
    """A kept connection ended before any byte of an answer; whether the engine read the request is unknown."""
    BROKEN = "broken"
    """The connection ended inside the answer."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """Given up by the gateway: client gone, client slow, the request's time used up, or shutdown."""


class RetryDenied(StrEnum):
    """Why a failed attempt was not followed by another although an engine was left and the failure could be the engine's."""

    BUDGET = "budget"
    """Retries have had their share of the traffic."""
    DEADLINE = "deadline"
    NOT_REPEATABLE = "not_repeatable"
    """An engine had taken the request and may have changed something by it."""
