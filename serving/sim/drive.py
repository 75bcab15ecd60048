"""From the model's time to the wall clock's: one timer an engine, and none while it has nothing to do."""

from __future__ import annotations

import asyncio

from serving.core.clock import monotonic
from serving.sim.model import EngineModel

_TURN_SECONDS = 0.01
"""One engine that is behind lets the others have their turn after so long."""


class SimulatedClock:
    """Seconds of the simulation: `speed` of them pass in one of the wall clock's."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._began = monotonic()

    def now(self) -> float:
        return (monotonic() - self._began) * self.speed

    def wall_seconds_until(self, moment: float) -> float:
        return max(0.0, (moment - self.now()) / self.speed)


class Driver:
    """Lets one model happen."""

    def __init__(self, model: EngineModel, clock: SimulatedClock) -> None:
        self.model = model
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self.lag_seconds = 0.0
        """How late the last event was, in the simulation's seconds: above a step's time the process has too much to do."""

    def wake(self) -> None:
        """Set the timer for the next event. To be called after whatever changes the model."""
        self.stop()
        then = self.model.next_seconds
        if then is not None:
            delay = self._clock.wall_seconds_until(then)
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    @property
    def is_asleep(self) -> bool:
        """No timer is set."""
        return self._timer is None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        began = monotonic()
        while (then := self.model.next_seconds) is not None and then <= (now := self._clock.now()):
            self.lag_seconds = now - then
            self.model.advance(then)
            if monotonic() - began > _TURN_SECONDS:
                break
        self.wake()
