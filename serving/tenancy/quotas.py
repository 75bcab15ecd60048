"""How much each tenant has taken of what it may: reserved before a request, settled to the truth after it.

All limits of a tenant are looked at together and taken together, so a request that one of them refuses has cost nothing of the
others. `LocalQuotas` holds the counts of one gateway; `shared_quotas` those of several, by the same rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.tenancy.window import Window

DAY_SECONDS = 86_400
CONCURRENCY_WAIT_SECONDS = 1.0
"""What a client is told to wait for one of its own requests to end; nobody knows when one will."""
_OTHER_DAYS = 2
_IDLE_TENANTS = 1024
"""So many tenants are kept before those that hold nothing are forgotten."""


class Limit(StrEnum):
    """What can be limited."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    DOLLARS = "dollars"


@dataclass(frozen=True, slots=True)
class Limits:
    """One tenant's limits; None: not limited."""

    requests: int | None = None
    """Each minute."""
    tokens: int | None = None
    """Each minute, of prompt and output together."""
    concurrency: int | None = None
    nano_dollars: int | None = None
    """Each day of UTC."""


class Claim(NamedTuple):
    """What a request takes, or took."""

    requests: int
    tokens: int
    nano_dollars: int = 0


NOTHING = Claim(0, 0)


class Standing(NamedTuple):
    """What a tenant has left after a request was taken or refused; the times are seconds until all of it is there again."""

    requests: int = 0
    requests_reset_seconds: float = 0.0
    tokens: int = 0
    tokens_reset_seconds: float = 0.0
    concurrency: int = 0
    nano_dollars: int = 0


@dataclass(slots=True)
class Reservation:
    """What one request holds until it is settled."""

    id: str
    tenant: str
    claim: Claim
    taken: float
    """Monotonic seconds."""
    day: int
    is_shared: bool = False
    """Also counted in the store that gateways share."""


class Verdict(NamedTuple):
    """What became of a request that asked for room."""

    reservation: Reservation | None
    standing: Standing
    refused_by: Limit | None = None
    wait_seconds: float = 0.0
    """Until the same request would fit, as far as that is known."""


class Quotas(Protocol):
    """Where limits are counted."""

    def reserve(self, tenant: str, limits: Limits, claim: Claim) -> Verdict | Awaitable[Verdict]:
        """Take the claim if every limit has room for it, else nothing. Raises: Unavailable where that cannot be known."""
        ...

    def settle(self, reservation: Reservation, used: Claim) -> None:
        """Put the truth in the place of what was reserved, and end the request's part of the concurrency."""
        ...

    def standing(self, tenant: str, limits: Limits) -> Standing:
        """What is left now, as far as this gateway knows."""
        ...


class Own(Protocol):
    """What one gateway counts of one tenant."""

    @property
    def requests(self) -> Window: ...

    @property
    def tokens(self) -> Window: ...

    @property
    def open(self) -> int: ...

    @property
    def day(self) -> int: ...

    @property
    def nano_dollars(self) -> int: ...


class _Counts:
    """One tenant's."""

    __slots__ = ("_other_days", "day", "nano_dollars", "open", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.open = 0
        self.day = 0
        self.nano_dollars = 0
        """Of that day."""
        self._other_days: dict[int, int] = {}
        """Nano-dollars of the days before that, since a clock that is set right may bring one back."""

    def turn_to(self, day: int) -> None:
        """Count what comes for that day."""
        others = self._other_days
        if self.nano_dollars:
            others[self.day] = self.nano_dollars
        self.day, self.nano_dollars = day, others.pop(day, 0)
        if len(others) > _OTHER_DAYS:
            others.pop(next(iter(others)))

    def spend(self, day: int, nano_dollars: int) -> None:
        """More, or less, was used of that day."""
        if day == self.day:
            self.nano_dollars += nano_dollars
        elif day in self._other_days:
            self._other_days[day] += nano_dollars

    @property
    def is_idle(self) -> bool:
        return not (self.open or self.requests.total or self.tokens.total or self.nano_dollars)


class LocalQuotas:
    """The counts of one gateway, in its memory. They end with the process."""

    def __init__(self, clock: Clock = monotonic, wall: Clock = wall_seconds) -> None:
        self._clock = clock
        self._wall = wall
        self._tenants: dict[str, _Counts] = {}
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> LocalQuotas:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    def reserve(self, tenant: str, limits: Limits, claim: Claim) -> Verdict:
        now, wall = self._clock(), self._wall()
        counts = self._counts(tenant, now, wall)
        refused_by, wait_seconds = _refusal(counts, limits, claim, now, wall)
        reservation = self._take(tenant, counts, claim, now) if refused_by is None else None
        return Verdict(reservation, _standing(counts, limits, now), refused_by, wait_seconds)

    def take(self, tenant: str, claim: Claim) -> Reservation:
        """Take the claim, whatever the limits are: another has allowed it."""
        now = self._clock()
        return self._take(tenant, self._counts(tenant, now, self._wall()), claim, now)

    def settle(self, reservation: Reservation, used: Claim) -> None:
        now, claim = self._clock(), reservation.claim
        counts = self._counts(reservation.tenant, now, self._wall())
        counts.open -= 1
        _adjust(counts.requests, reservation.taken, now, used.requests - claim.requests)
        _adjust(counts.tokens, reservation.taken, now, used.tokens - claim.tokens)
        counts.spend(reservation.day, used.nano_dollars - claim.nano_dollars)

    def standing(self, tenant: str, limits: Limits) -> Standing:
        now = self._clock()
        return _standing(self._counts(tenant, now, self._wall()), limits, now)

    def own(self, tenant: str) -> Own:
        """What is counted of the tenant now."""
        return self._counts(tenant, self._clock(), self._wall())

    def all_open(self) -> dict[str, tuple[int, int, int]]:
        """Of each tenant the open requests, the day and its nano-dollars."""
        return {name: (counts.open, counts.day, counts.nano_dollars) for name, counts in self._tenants.items()}

    def _take(self, tenant: str, counts: _Counts, claim: Claim, now: float) -> Reservation:
        counts.requests.add(now, claim.requests)
        counts.tokens.add(now, claim.tokens)
        counts.open += 1
        counts.nano_dollars += claim.nano_dollars
        return Reservation(str(next(self._numbers)), tenant, claim, now, counts.day)

    def _counts(self, tenant: str, now: float, wall: float) -> _Counts:
        counts = self._tenants.get(tenant)
        if counts is None:
            if len(self._tenants) >= _IDLE_TENANTS:
                self._tenants = {name: each for name, each in self._tenants.items() if not each.is_idle}
            counts = self._tenants[tenant] = _Counts()
        counts.requests.advance(now)
        counts.tokens.advance(now)
        day = int(wall // DAY_SECONDS)
        if day != counts.day:
            counts.turn_to(day)
        return counts


def _refusal(counts: _Counts, limits: Limits, claim: Claim, now: float, wall: float) -> tuple[Limit | None, float]:
    """The limit that has no room, and for how long; of several the one that takes longest."""
    found: Limit | None = None
    longest = 0.0
    if limits.concurrency is not None and counts.open >= limits.concurrency:
        found, longest = Limit.CONCURRENCY, CONCURRENCY_WAIT_SECONDS
    windows = (
        (Limit.REQUESTS, limits.requests, counts.requests, claim.requests),
        (Limit.TOKENS, limits.tokens, counts.tokens, claim.tokens),
    )
    for limit, most, window, amount in windows:
        if most is not None and window.total + amount > most:
            wait_seconds = window.wait_seconds(now, amount, most)
            if found is None or wait_seconds > longest:
                found, longest = limit, wait_seconds
    if limits.nano_dollars is not None and counts.nano_dollars + claim.nano_dollars > limits.nano_dollars:
        return Limit.DOLLARS, DAY_SECONDS - wall % DAY_SECONDS
    return found, longest


def _standing(counts: _Counts, limits: Limits, now: float) -> Standing:
    requests, tokens = counts.requests, counts.tokens
    return Standing(
        max(0, (limits.requests or 0) - requests.total),
        requests.reset_seconds(now),
        max(0, (limits.tokens or 0) - tokens.total),
        tokens.reset_seconds(now),
        max(0, (limits.concurrency or 0) - counts.open),
        max(0, (limits.nano_dollars or 0) - counts.nano_dollars),
    )


def _adjust(window: Window, taken: float, now: float, difference: int) -> None:
    """What was not used is given back to the moment at which it was taken; what was used beyond it is taken now."""
    if difference < 0:
        window.give_back(taken, -difference)
    elif difference:
        window.add(now, difference)
