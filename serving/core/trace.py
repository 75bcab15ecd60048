"""What a trace needs to know of a request beyond its context; only there while tracing is on."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.core.outcomes import AttemptResult


@dataclass(slots=True)
class Attempt:
    """One attempt at one engine. Times are monotonic seconds."""

    span_id: str
    endpoint: str
    pool: str
    began: float
    ended: float = 0.0
    result: AttemptResult | None = None
    status: int = 0
    """The engine's status where it refused; 0: it answered, or said nothing."""
    decision: bytes = b""
    """Why this engine, as JSON."""


@dataclass(slots=True)
class Trace:
    """The ids of one request's spans, in lower-case hex as they travel, and its attempts."""

    trace_id: str
    parent_id: str
    """The caller's span; empty where the trace begins here."""
    span_id: str
    sampled: bool
    began_nanoseconds: int
    """The wall time of the request's arrival; every other time is told from it by the monotonic clock."""
    attempts: list[Attempt] = field(default_factory=list)
    response_model: str = ""
    """The model as the engine names it."""

    def begin_attempt(self, attempt: Attempt) -> str:
        """Note an attempt; the `traceparent` that goes to the engine with it."""
        self.attempts.append(attempt)
        return f"00-{self.trace_id}-{attempt.span_id}-{self.sampled:02x}"
