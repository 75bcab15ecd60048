"""A sliding window over the last minute, in slices of a second."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60


class Window:
    """Sums what was taken within the last minute.

    What is taken counts from the slice it falls into until that slice is 60 whole seconds old, so that no 60 seconds, wherever
    they begin, hold more than was allowed; what was taken early in a slice counts up to one second longer than it must.
    Times are seconds of any clock that does not go back.
    """

    __slots__ = ("_slices", "total")

    def __init__(self) -> None:
        self.total = 0
        self._slices: deque[list[int]] = deque()
        """Number of the slice and what was taken in it, oldest first."""

    def advance(self, now: float) -> None:
        """Forget what is no longer in the window."""
        oldest = int(now) - WINDOW_SECONDS
        slices = self._slices
        while slices and slices[0][0] < oldest:
            self.total -= slices.popleft()[1]

    def add(self, now: float, amount: int) -> None:
        """Take `amount` now."""
        slices, number = self._slices, int(now)
        if slices and slices[-1][0] >= number:
            slices[-1][1] += amount
        else:
            slices.append([number, amount])
        self.total += amount

    def give_back(self, taken: float, amount: int) -> None:
        """Undo a part of what was taken at `taken`; what has left the window is worth nothing any more."""
        number = int(taken)
        for entry in reversed(self._slices):
            if entry[0] == number:
                returned = min(amount, entry[1])
                entry[1] -= returned
                self.total -= returned
                return
            if entry[0] < number:
                return

    def give_back_near(self, number: int, amount: int) -> None:
        """Undo what another clock has counted in that slice, or in one beside it."""
        for entry in self._slices:
            if amount and abs(entry[0] - number) <= 1:
                returned = min(amount, entry[1])
                entry[1] -= returned
                self.total -= returned
                amount -= returned

    def slices(self) -> list[tuple[int, int]]:
        """The number of each slice and what was taken in it, oldest first."""
        return [(number, amount) for number, amount in self._slices]

    def total_at(self, now: float, since: float = 0.0) -> int:
        """What will be in the window at `now` if nothing else is taken, of what was taken in the second of `since` or later."""
        oldest = int(now) - WINDOW_SECONDS
        return sum(amount for number, amount in self._slices if number >= oldest and number + 1 > since)

    def wait_seconds(self, now: float, amount: int, limit: int) -> float:
        """How long until `amount` fits below `limit`, if nothing else is taken; 0.0 when it fits now. It must be ≤ `limit`."""
        missing = self.total + amount - limit
        if missing <= 0:
            return 0.0
        for number, taken in self._slices:
            missing -= taken
            if missing <= 0:
                return number + WINDOW_SECONDS + 1 - now
        return WINDOW_SECONDS + 1.0

    def reset_seconds(self, now: float) -> float:
        """How long until the window is empty, if nothing else is taken."""
        for number, taken in reversed(self._slices):
            if taken:
                return number + WINDOW_SECONDS + 1 - now
        return 0.0
