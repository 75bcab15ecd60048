"""What all machines cost, whoever used them: price x accelerators x time, while they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from serving.core.clock import Clock, monotonic
from serving.cost.hardware import Machines

PoolKey = tuple[str, str, str]
"""Model, pool and target."""


class Bill:
    """Between two looks the number of endpoints is taken to be that of the first one."""

    def __init__(self, count: Callable[[], Mapping[PoolKey, int]], machines: Machines, clock: Clock = monotonic) -> None:
        """`count` says how many endpoints there are, ready or not; pools without any included."""
        self._count = count
        self._machines = machines
        self._clock = clock
        self._looked = clock()
        self.endpoints: Mapping[PoolKey, int] = count()
        self._dollars: dict[PoolKey, float] = {}

    def look(self) -> None:
        """Bring the bill up to now. To be called whenever endpoints come or go, and before it is read."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        for key, number in self.endpoints.items():
            dollars = self._machines.of(key[1], key[2]).dollars_per_second
            if dollars is not None:
                self._dollars[key] = self._dollars.get(key, 0.0) + dollars * number * passed
        self.endpoints = self._count()

    def dollars(self) -> Iterable[tuple[PoolKey, float]]:
        return self._dollars.items()

    def accelerators(self) -> Iterable[tuple[PoolKey, float]]:
        for key, number in self.endpoints.items():
            yield key, float(number * self._machines.of(key[1], key[2]).accelerators)

    def accelerators_per_node(self) -> Iterable[tuple[PoolKey, float]]:
        for key in self.endpoints:
            number = self._machines.of(key[1], key[2]).accelerators_per_node
            if number is not None:
                yield key, float(number)

    def prices(self) -> Iterable[tuple[PoolKey, float]]:
        """Of one accelerator, for an hour."""
        for key in self.endpoints:
            price = self._machines.of(key[1], key[2]).dollars_per_accelerator_hour
            if price is not None:
                yield key, price

    def watts(self) -> Iterable[tuple[tuple[str, str, str, str], float]]:
        for (model, pool, target), number in self.endpoints.items():
            hardware = self._machines.of(pool, target)
            if hardware.watts_per_accelerator is not None:
                yield (model, pool, target, "estimated"), hardware.watts_per_accelerator * hardware.accelerators * number
