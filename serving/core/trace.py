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
    asked: float = 0.0
    """When routing was asked for it."""


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
    response_id: str = ""
    parameters: dict[str, int | float] = field(default_factory=dict)
    """What the client wanted of the answer, in the conventions' names; numbers only."""
    admit_began: float = 0.0
    """When limits and queue were asked; times are monotonic seconds, 0.0: never."""
    admit_ended: float = 0.0
    """When they let it through."""
    route_began: float = 0.0
    """When routing was asked last and no attempt has followed yet."""

    def begin_attempt(self, attempt: Attempt) -> str:
        """Note an attempt; the `traceparent` that goes to the engine with it."""
        attempt.asked, self.route_began = self.route_began, 0.0
        self.attempts.append(attempt)
        return f"00-{self.trace_id}-{attempt.span_id}-{self.sampled:02x}"
