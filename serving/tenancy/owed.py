"""What a tenant has used while the store of the shared counts was away."""

from __future__ import annotations

from collections.abc import Iterator

from serving.tenancy.quotas import Claim, Reservation
from serving.tenancy.window import WINDOW_SECONDS


class Owed:
    """Sums by second and by day, so that it stays small however long the store is away."""

    def __init__(self) -> None:
        self._windows: dict[int, list[int]] = {}
        """Monotonic second → requests and tokens."""
        self._nano_dollars: dict[int, int] = {}
        """By day of UTC."""

    def add(self, reservation: Reservation, used: Claim) -> None:
        second = int(reservation.taken)
        sums = self._windows.setdefault(second, [0, 0])
        sums[0] += used.requests
        sums[1] += used.tokens
        self._nano_dollars[reservation.day] = self._nano_dollars.get(reservation.day, 0) + used.nano_dollars
        for old in [each for each in self._windows if each < second - WINDOW_SECONDS - 1]:
            del self._windows[old]

    def payments(self, now: float) -> Iterator[tuple[int, ...]]:
        """The arguments of the script's `pay`, a tuple for each day: day, nano-dollars, then age, requests, tokens by second."""
        seconds = [
            number
            for second, (requests, tokens) in self._windows.items()
            if (age_seconds := int(now) - second) <= WINDOW_SECONDS
            for number in (age_seconds, requests, tokens)
        ]
        for day, nano_dollars in self._nano_dollars.items():
            yield (day, nano_dollars, *seconds)
            seconds = []
