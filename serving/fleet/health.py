"""Passive health: every attempt's end is told here, and decides with the trials which endpoints are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from serving.core.clock import Clock, monotonic
from serving.core.outcomes import AttemptResult
from serving.fleet.breaker import SHARED, Breaker, BreakerState, Fault
from serving.fleet.store import Endpoint, Fleet
from serving.health_settings import HealthSettings

log = logging.getLogger("serving.fleet")

_FAULTS = {
    AttemptResult.TIMEOUT: Fault.TIMEOUT,
    AttemptResult.UNREACHABLE: Fault.UNREACHABLE,
    AttemptResult.BROKEN: Fault.BROKEN,
    AttemptResult.ERROR: Fault.ERROR,
}
"""The ends of attempts that are the engine's fault. All others say nothing about it but OK, which is a success."""
_MAYBE_THE_REQUEST = frozenset((Fault.BROKEN, Fault.ERROR))
"""What one request can do to every engine it reaches."""


class Health:
    """The breakers of all endpoints that there is anything to remember about."""

    def __init__(
        self,
        fleet: Fleet,
        settings: HealthSettings,
        clock: Clock = monotonic,
        ejected: Callable[[Endpoint, Fault], None] = lambda endpoint, fault: None,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self.clock = clock
        self._ejected = ejected
        self.troubled: dict[Endpoint, Breaker] = {}
        """Empty as long as all is well, so that successes cost nothing then."""

    def ended(
        self, endpoint: Endpoint, result: AttemptResult, began: float, *, failed_before: Endpoint | None = None
    ) -> Endpoint | None:
        """An attempt of a request that began at `began` monotonic seconds has ended.

        `failed_before` is where the same request failed, as far as that may have been its own doing. Returns what is
        `failed_before` at the request's next attempt.
        """
        fault = _FAULTS.get(result)
        if fault is None:
            if result is AttemptResult.OK:
                self._succeeded(endpoint, began)
            return failed_before
        shared = fault in _MAYBE_THE_REQUEST
        weight = 1.0
        if shared and failed_before is not None:
            weight = SHARED
            if (before := self.troubled.get(failed_before)) is not None:
                before.pardon()
        now = self.clock()
        if (breaker := self._breaker(endpoint)) is not None and breaker.fault(now, weight=weight):
            self._is_out(endpoint, breaker, fault)
        return endpoint if shared else None

    def draining(self, endpoint: Endpoint) -> None:
        """The engine said that it takes nothing any more: that is known, and needs no counting."""
        breaker = self._breaker(endpoint)
        if breaker is not None and breaker.state is BreakerState.CLOSED:
            # To be stopped is no relapse.
            breaker.open(self.clock(), grows=False)
            self._is_out(endpoint, breaker, Fault.DRAINING)

    def retain(self, endpoints: Collection[Endpoint]) -> None:
        """Forget endpoints that are not among these."""
        for endpoint in self.troubled.keys() - set(endpoints):
            del self.troubled[endpoint]

    # Trials

    def seconds_until_trial(self, endpoint: Endpoint) -> float | None:
        """None: the endpoint is not out."""
        breaker = self.troubled.get(endpoint)
        if breaker is None or breaker.state is BreakerState.CLOSED:
            return None
        return max(0.0, breaker.until - self.clock())

    def begin_trial(self, endpoint: Endpoint) -> None:
        """The endpoint is asked for a token: its breaker is half-open if it was open."""
        breaker = self.troubled.get(endpoint)
        if breaker is not None and breaker.begin_trial(self.clock()):
            self._show(endpoint, breaker)

    def trial_passed(self, endpoint: Endpoint) -> None:
        breaker = self.troubled.get(endpoint)
        if breaker is not None:
            breaker.trial_passed(self.clock())
            self._show(endpoint, breaker)

    def trial_failed(self, endpoint: Endpoint) -> None:
        """No token came. An endpoint that was not out, since it is new, is out now."""
        breaker = self._breaker(endpoint)
        if breaker is None:
            return
        if breaker.state is BreakerState.CLOSED:
            breaker.open(self.clock())
            self._is_out(endpoint, breaker, Fault.TRIAL)
        else:
            breaker.trial_failed(self.clock())
            self._show(endpoint, breaker)

    def trial_put_off(self, endpoint: Endpoint, seconds: float) -> None:
        breaker = self.troubled.get(endpoint)
        if breaker is not None:
            breaker.trial_put_off(self.clock(), seconds)
            self._show(endpoint, breaker)

    def try_now(self, endpoint: Endpoint) -> None:
        """The endpoint's process may be another one: what is remembered of the old one delays no trial."""
        if (breaker := self.troubled.get(endpoint)) is not None:
            breaker.try_now(self.clock())

    def _succeeded(self, endpoint: Endpoint, began: float) -> None:
        breaker = self.troubled.get(endpoint)
        if breaker is None:
            return
        before, now = breaker.state, self.clock()
        breaker.success(now, began=began)
        if breaker.state is not before:
            self._show(endpoint, breaker)
        if breaker.forgotten(now):
            del self.troubled[endpoint]

    def _breaker(self, endpoint: Endpoint) -> Breaker | None:
        """None: the endpoint has left the fleet, and what is told of it comes too late."""
        status = self._fleet.snapshot.statuses.get(endpoint.name)
        if status is None or status.endpoint != endpoint:
            return None
        breaker = self.troubled.get(endpoint)
        if breaker is None:
            breaker = self.troubled[endpoint] = Breaker(self._settings)
        return breaker

    def _is_out(self, endpoint: Endpoint, breaker: Breaker, fault: Fault) -> None:
        seconds = breaker.until - breaker.opened_at
        log.warning(
            "endpoint %s is out for %g s: %s",
            endpoint.name,
            seconds,
            fault,
            extra={"endpoint": endpoint.name, "fault": str(fault), "seconds": seconds},
        )
        self._ejected(endpoint, fault)
        self._show(endpoint, breaker)

    def _show(self, endpoint: Endpoint, breaker: Breaker) -> None:
        changed = self._fleet.mark(endpoint.name, breaker.state, breaker.level, breaker.opened_at, self.clock())
        if changed and breaker.state is BreakerState.CLOSED:
            log.info("endpoint %s is back in", endpoint.name, extra={"endpoint": endpoint.name})
