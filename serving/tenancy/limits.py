"""Admission: nothing is taken on that cannot be given back, and it is given back exactly once."""

from __future__ import annotations

from serving.core.errors import Overloaded
from serving.settings import LimitSettings


class Lease:
    """What one admitted request holds. Closing it twice is the same as closing it once."""

    __slots__ = ("_admission",)

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    @property
    def open(self) -> bool:
        return self._admission is not None

    def close(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.give_back()


class Admission:
    """Counts open leases against the gateway's ceiling."""

    def __init__(self, settings: LimitSettings) -> None:
        self._ceiling = settings.in_flight
        self.open_leases = 0

    def admit(self) -> Lease:
        """Take a lease. Raises: Overloaded when the gateway is full."""
        if self.open_leases >= self._ceiling:
            raise Overloaded("The gateway is full. Try again in a moment.", retry_after_seconds=1)
        self.open_leases += 1
        return Lease(self)

    def give_back(self) -> None:
        self.open_leases -= 1
