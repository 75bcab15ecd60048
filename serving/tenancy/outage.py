"""What a gateway may allow while the store of the limits is away: its part of what was left when that was lost.

Of all that was used before, the store has told what other gateways used, second by second. While that leaves the window, the rest
grows, and a minute later each gateway has its even part of the whole limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.tenancy.quotas import Limits, Own
from serving.tenancy.window import WINDOW_SECONDS, Window

WAITS_SECONDS = (1, 2, 5, 10, 20, 30, 45, 60)


@dataclass(slots=True)
class Others:
    """What other gateways have used of one tenant's limits, as the store said last."""

    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    open: int = 0
    day: int = 0
    nano_dollars: int = 0
    """Of that day."""

    def hear(self, own: Own, now: float, requests: int, tokens: int, nano_dollars: int, open_: int) -> None:
        """What all gateways together have used by now; what is more than was known was used just now."""
        for window, mine, total in ((self.requests, own.requests, requests), (self.tokens, own.tokens, tokens)):
            missing = total - mine.total_at(now) - window.total_at(now)
            if missing > 0:
                window.add(now, missing)
        self.open = max(0, open_ - own.open)
        if own.day == self.day:
            self.nano_dollars = max(self.nano_dollars, nano_dollars - own.nano_dollars)


def others_of(reply: str, own: Own, now: float) -> Others:
    """`reply`: open requests, day, nano-dollars, then each slice of the window as its kind, age in seconds and amount.

    Raises: ValueError when it is nothing that the script says.
    """
    open_, day, nano_dollars, *slices = reply.split(" ")
    others = Others(open=max(0, int(open_) - own.open), day=int(day))
    others.nano_dollars = max(0, int(nano_dollars) - (own.nano_dollars if own.day == others.day else 0))
    rows = [slices[place : place + 3] for place in range(0, len(slices), 3)]
    for kind, age, amount in sorted(rows, key=lambda row: -int(row[1])):
        window = others.requests if kind == "r" else others.tokens
        window.add(int(now) - int(age), int(amount))
    for window, mine in ((others.requests, own.requests), (others.tokens, own.tokens)):
        for number, taken in mine.slices():
            window.give_back_near(number, taken)
    return others


class Outage:
    """From the loss of the store until it is back."""

    def __init__(
        self, began: float, replicas: int, others: Mapping[str, Others], own: Mapping[str, tuple[int, int, int]]
    ) -> None:
        """`own`: by tenant what this gateway had when the store was lost: open requests, the day and its nano-dollars."""
        self.began = began
        self._replicas = replicas
        self._others = others
        self._own = own

    def limits(self, tenant: str, limits: Limits, own: Own, now: float, *, later_seconds: float = 0.0) -> Limits:
        """The limits for what this gateway counts by itself, those things included that it let through before."""
        others, then = self._others.get(tenant), now + later_seconds
        return Limits(
            self._most(limits.requests, None if others is None else others.requests, own.requests, then),
            self._most(limits.tokens, None if others is None else others.tokens, own.tokens, then),
            self._most_open(tenant, limits.concurrency, others, then),
            self._most_dollars(tenant, limits.nano_dollars, others, own.day),
        )

    def wait_seconds(self, tenant: str, limits: Limits, own: Own, now: float, requests: int, tokens: int) -> float:
        """How long until so much fits, if nothing else is taken."""
        for seconds in WAITS_SECONDS:
            then = self.limits(tenant, limits, own, now, later_seconds=seconds)
            pairs = ((then.requests, own.requests, requests), (then.tokens, own.tokens, tokens))
            if all(most is None or window.total_at(now + seconds) + amount <= most for most, window, amount in pairs):
                return float(seconds)
        return float(WINDOW_SECONDS)

    def _most(self, limit: int | None, others: Window | None, own: Window, now: float) -> int | None:
        if limit is None:
            return None
        before = own.total_at(now) - own.total_at(now, since=self.began)
        # Who was not here lately may have used all of it elsewhere, evenly over the minute.
        at_worst = limit * max(0.0, 1.0 - (now - self.began) / WINDOW_SECONDS)
        used = round(at_worst) if others is None else others.total_at(now)
        if not used and not before:
            return self._share(limit)
        return before + max(0, limit - used - before) // self._replicas

    def _most_open(self, tenant: str, limit: int | None, others: Others | None, now: float) -> int | None:
        if limit is None or others is None or now - self.began > WINDOW_SECONDS:
            return None if limit is None else self._share(limit)
        own = self._own.get(tenant, (0, 0, 0))[0]
        return own + max(0, limit - others.open - own) // self._replicas

    def _most_dollars(self, tenant: str, limit: int | None, others: Others | None, day: int) -> int | None:
        if limit is None or others is None or others.day != day:
            return None if limit is None else self._share(limit)
        _, own_day, spent = self._own.get(tenant, (0, day, 0))
        own = spent if own_day == day else 0
        return own + max(0, limit - others.nano_dollars - own) // self._replicas

    def _share(self, limit: int) -> int:
        """At least one: a part of nothing would shut the tenant out."""
        return max(1, limit // self._replicas)
