"""The retry budget: attempts beyond the first are a share of the traffic, so that trouble at the engines is not multiplied."""

from __future__ import annotations

from serving.core.clock import Clock, monotonic
from serving.settings import RetryBudgetSettings


class RetryBudget:
    """Counts requests and retries of the last seconds, in one bucket for each second."""

    def __init__(self, settings: RetryBudgetSettings, clock: Clock = monotonic) -> None:
        self.clock = clock
        self._share = settings.share
        self._seconds = settings.window_seconds
        self._least = settings.least_per_second * settings.window_seconds
        self._requests = [0] * self._seconds
        self._retries = [0] * self._seconds
        self._second = int(clock())

    def request(self) -> None:
        """A request arrives; it earns its share of a retry."""
        self._requests[self._slot()] += 1

    def take(self) -> bool:
        """Take one retry out of the budget; False when there is none left."""
        slot = self._slot()
        if sum(self._retries) + 1 > max(self._least, self._share * sum(self._requests)):
            return False
        self._retries[slot] += 1
        return True

    def _slot(self) -> int:
        """The bucket of this second; those of the seconds that went by since the last call begin anew."""
        second = int(self.clock())
        if second != self._second:
            for gone in range(max(self._second + 1, second + 1 - self._seconds), second + 1):
                self._requests[gone % self._seconds] = self._retries[gone % self._seconds] = 0
            self._second = second
        return second % self._seconds
