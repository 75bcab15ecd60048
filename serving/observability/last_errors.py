"""The last requests that ended in an error, for operators: bounded, and never a prompt, an answer, a key or a client's words."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.core.context import RequestContext
from serving.core.outcomes import OURS, Outcome

MOST = 32
"""Of each side."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One request that ended in an error."""

    at: float
    """When it ended, in seconds since the epoch."""
    status: int
    """As the client saw it: 200 where the answer had begun; 0 where it saw none."""
    outcome: str
    code: str
    """The error's own, where it has one beside its outcome."""
    model: str
    """Empty where the request named none that exists here."""
    endpoint: str
    """The last that was asked; empty where none was."""
    request_id: str


class LastErrors:
    """Keeps the last of the callers' faults and the last of all others apart, so that neither floods the other out."""

    def __init__(self, *, clock: Clock = monotonic, wall: Clock = wall_seconds) -> None:
        self._callers: deque[RequestFailure] = deque(maxlen=MOST)
        self._ours: deque[RequestFailure] = deque(maxlen=MOST)
        self._clock = clock
        self._wall = wall

    def add(self, ctx: RequestContext, ended: float) -> None:
        """Note a request whose outcome is not `ok`, ended at `ended` monotonic seconds. A client that left is no error."""
        if ctx.outcome is None or ctx.outcome is Outcome.CLIENT_CANCELLED:
            return
        at = self._wall() - self._clock() + ended
        kept = self._ours if ctx.outcome in OURS else self._callers
        kept.append(
            RequestFailure(at, ctx.status, str(ctx.outcome), ctx.error_code, ctx.asked_model, ctx.endpoint, ctx.request_id)
        )

    def newest_first(self) -> list[RequestFailure]:
        return sorted((*self._callers, *self._ours), key=lambda failure: -failure.at)
