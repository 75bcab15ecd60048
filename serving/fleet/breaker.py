"""One endpoint's breaker: what requests and trials say about it, and for how long it is left out for that.

Closed until `faults` requests in a row failed; then open for a time that doubles with each failed trial and each relapse; then
half-open while one trial runs. Nothing here knows a clock: every call says when it is, in monotonic seconds.
"""

from __future__ import annotations

import math
from enum import StrEnum

from serving.health_settings import HealthSettings


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One trial is under way."""


class Fault(StrEnum):
    """What an endpoint was left out for."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    """The answer broke off or made no sense."""
    ERROR = "error"
    """A 5xx, or an error event in a stream."""
    DRAINING = "draining"
    """It said that it is about to stop."""
    TRIAL = "trial"
    """A token that it was asked for did not come."""


SHARED = 0.5
"""What a fault weighs that another endpoint had with the same request, too."""


class Breaker:
    """Faults and successes of one endpoint."""

    __slots__ = ("_closed_at", "_run_began", "_settings", "faults", "level", "opened_at", "state", "until")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self.state = BreakerState.CLOSED
        self.faults = 0.0
        """Since the last whole answer of a request that began after the first of them."""
        self.level = 0
        """How often the time that it is out has doubled."""
        self.opened_at = 0.0
        self.until = 0.0
        """When a trial is due while it is open."""
        self._run_began = 0.0
        self._closed_at = -math.inf

    def fault(self, now: float, *, weight: float = 1.0) -> bool:
        """A request failed. Returns whether that opens the breaker; while it is not closed, faults say nothing new."""
        if self.state is not BreakerState.CLOSED:
            return False
        if not self.faults:
            self._run_began = now
        self.faults += weight
        if self.faults < self._settings.faults:
            return False
        self.open(now)
        return True

    def pardon(self) -> None:
        """The fault that was counted last happened elsewhere with the same request."""
        if self.state is BreakerState.CLOSED:
            self.faults = max(0.0, self.faults - SHARED)

    def open(self, now: float, *, grows: bool = True) -> None:
        """Leave the endpoint out, from now on and for a time that grows as long as it does not do well in between."""
        healthy_seconds = now - self._closed_at
        if math.isfinite(healthy_seconds):
            self.level = max(0, self.level + grows - int(healthy_seconds / self._settings.recovery_seconds))
        self._out(now)

    def _out(self, now: float) -> None:
        settings = self._settings
        doubled = settings.open_seconds * 2.0 ** min(self.level, 64)
        self.state, self.opened_at, self.until = BreakerState.OPEN, now, now + min(doubled, settings.most_open_seconds)

    def success(self, now: float, *, began: float) -> None:
        """A request that began at `began` brought a whole answer. One that is older than the trouble says nothing about it."""
        if self.state is BreakerState.CLOSED:
            if self.faults and began > self._run_began:
                self.faults = 0.0
        elif began > self.opened_at:
            self._close(now)
            self.faults = 0.0

    def begin_trial(self, now: float) -> bool:
        """Whether a trial may begin now: an open endpoint's time is over and no other trial is under way."""
        if self.state is not BreakerState.OPEN or now < self.until:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def trial_passed(self, now: float) -> None:
        """Back in, on probation: the next fault before a whole answer puts it out again."""
        if self.state is BreakerState.HALF_OPEN:
            self._close(now)
            self.faults, self._run_began = self._settings.faults - 1.0, now

    def trial_failed(self, now: float) -> None:
        if self.state is BreakerState.HALF_OPEN:
            self.level += 1
            self._out(now)

    def trial_put_off(self, now: float, seconds: float) -> None:
        """The trial said nothing, since the endpoint is full: another one after so many seconds."""
        if self.state is BreakerState.HALF_OPEN:
            self.state, self.until = BreakerState.OPEN, now + seconds

    def try_now(self, now: float) -> None:
        """Another process may be behind the address: its trial need not wait."""
        if self.state is BreakerState.OPEN:
            self.until = min(self.until, now)

    def forgotten(self, now: float) -> bool:
        """Whether there is nothing left to remember."""
        healthy_seconds = now - self._closed_at
        return (
            self.state is BreakerState.CLOSED
            and not self.faults
            and healthy_seconds >= (self.level + 1) * self._settings.recovery_seconds
        )

    def _close(self, now: float) -> None:
        self.state, self._closed_at = BreakerState.CLOSED, now
