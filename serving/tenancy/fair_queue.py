"""What waits for a slot, and who is next: fair between tenants in tokens, by urgency, and no request for ever.

Each tenant has a count of the tokens that were served to it. Of the most urgent class that waits, the next request is that of the
tenant with the least. A tenant that comes back from being away starts level with the least of those that wait: time away is no
credit (the "virtual token counter" of fair serving). A class that was passed over for `turn` others has its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

CLASSES = 3
"""Classes of urgency; 0 is the most urgent."""
_KNOWN_TENANTS = 1024
"""Counts that are kept before those of tenants that are not ahead of anybody are forgotten."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One request in the queue."""

    tenant: str
    cost_tokens: int
    body_bytes: int
    urgency: int
    """Its class when it came."""
    since: float
    is_here: bool = False
    """It is in the queue."""


@dataclass(slots=True)
class _Backlog:
    """What of one tenant waits."""

    lines: tuple[deque[Waiting], ...] = field(default_factory=lambda: tuple(deque() for _ in range(CLASSES)))
    requests: int = 0
    body_bytes: int = 0
    tokens: int = 0


class FairQueue:
    """Bounded in requests and in the bytes of their bodies. Does no waiting itself: times are given to it."""

    def __init__(self, *, most_requests: int, most_body_bytes: int, turn: int) -> None:
        self._most_requests = most_requests
        self._most_body_bytes = most_body_bytes
        self._turn = turn
        self._passed_over = [0] * CLASSES
        """How many more urgent requests were taken while one of that class waited."""
        self._backlogs: dict[str, _Backlog] = {}
        self._served: dict[str, float] = {}
        """Tokens by tenant, lifted when it comes back."""
        self._level = 0.0
        """The count of the tenant whose request was taken last: where one starts when nobody else waits."""
        self.requests = 0
        self.body_bytes = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self.requests

    def __iter__(self) -> Iterator[Waiting]:
        for backlog in self._backlogs.values():
            for line in backlog.lines:
                yield from line

    def add(self, waiting: Waiting) -> tuple[bool, list[Waiting]]:
        """Let a request wait. Returns whether it may, and those that had to leave for it."""
        left: list[Waiting] = []
        while (full := self.requests >= self._most_requests) or self.body_bytes + waiting.body_bytes > self._most_body_bytes:
            victim = self._victim(waiting, by_requests=full)
            if victim is None:
                return False, left
            self.remove(victim)
            left.append(victim)
        backlog = self._backlogs.get(waiting.tenant)
        if backlog is None:
            self._come(waiting.tenant)
            backlog = self._backlogs[waiting.tenant] = _Backlog()
        backlog.lines[waiting.urgency].append(waiting)
        self._count(backlog, waiting, 1)
        return True, left

    def remove(self, waiting: Waiting) -> None:
        """It leaves without having been served."""
        backlog = self._backlogs[waiting.tenant]
        backlog.lines[waiting.urgency].remove(waiting)
        self._count(backlog, waiting, -1)
        if not backlog.requests:
            del self._backlogs[waiting.tenant]

    def take(self) -> Waiting | None:
        """The next one, which is then no longer here and is charged to its tenant."""
        best: list[tuple[float, float, Waiting] | None] = [None] * CLASSES
        for tenant, backlog in self._backlogs.items():
            served = self._served[tenant]
            for urgency, line in enumerate(backlog.lines):
                if line:
                    rank, other = (served, line[0].since, line[0]), best[urgency]
                    if other is None or rank[:2] < other[:2]:
                        best[urgency] = rank
        chosen = self._next_class([each is not None for each in best])
        if chosen is None:
            return None
        found = best[chosen]
        assert found is not None
        served, _, waiting = found
        self.remove(waiting)
        self._level = served
        self._served[waiting.tenant] += waiting.cost_tokens
        return waiting

    def _next_class(self, waits: list[bool]) -> int | None:
        """The most urgent one, or one that was passed over for too long."""
        classes = [urgency for urgency in range(CLASSES) if waits[urgency]]
        if not classes:
            return None
        chosen = next((urgency for urgency in reversed(classes) if self._passed_over[urgency] >= self._turn), classes[0])
        self._passed_over[chosen] = 0
        for urgency in classes:
            self._passed_over[urgency] += urgency > chosen
        return chosen

    def charge(self, tenant: str, tokens: int) -> None:
        """Served without waiting, or more than was thought, or less (negative)."""
        if tenant not in self._backlogs:
            self._come(tenant)
        self._served[tenant] += tokens
        if not self._backlogs:
            self._level = max(self._level, self._served[tenant] - max(tokens, 0))

    def tokens_before(self, tenant: str, cost_tokens: int, urgency: int) -> int:
        """About how many tokens are served before a request that would come now."""
        own = self._backlogs.get(tenant)
        mine = cost_tokens + (sum(w.cost_tokens for line in own.lines[: urgency + 1] for w in line) if own else 0)
        before = mine - cost_tokens
        for name, backlog in self._backlogs.items():
            if name == tenant:
                continue
            if not any(backlog.lines[:urgency]):
                before += min(backlog.tokens, mine) if backlog.lines[urgency] else 0
                continue
            before += sum(w.cost_tokens for line in backlog.lines[:urgency] for w in line)
            before += min(sum(w.cost_tokens for w in backlog.lines[urgency]), mine)
        return before

    def _victim(self, newcomer: Waiting, *, by_requests: bool) -> Waiting | None:
        """The newest and least urgent request of the tenant that has the most here; None when that is the newcomer's."""

        def size(backlog: _Backlog) -> int:
            return backlog.requests if by_requests else backlog.body_bytes

        if not self._backlogs:
            return None
        tenant, most = max(self._backlogs.items(), key=lambda item: size(item[1]))
        own = self._backlogs.get(newcomer.tenant)
        would_have = (size(own) if own else 0) + (1 if by_requests else newcomer.body_bytes)
        if tenant == newcomer.tenant or would_have >= size(most):
            return None
        return next(line[-1] for line in reversed(most.lines) if line)

    def _come(self, tenant: str) -> None:
        """A tenant of which nothing waits: it starts no lower than those that wait."""
        floor = min((self._served[name] for name in self._backlogs), default=self._level)
        self._served[tenant] = max(self._served.get(tenant, floor), floor)
        if len(self._served) > _KNOWN_TENANTS:
            kept = self._backlogs.keys() | {tenant}
            self._served = {name: served for name, served in self._served.items() if name in kept or served > floor}

    def _count(self, backlog: _Backlog, waiting: Waiting, sign: int) -> None:
        waiting.is_here = sign > 0
        backlog.requests += sign
        backlog.body_bytes += sign * waiting.body_bytes
        backlog.tokens += sign * waiting.cost_tokens
        self.requests += sign
        self.body_bytes += sign * waiting.body_bytes
        self.tokens += sign * waiting.cost_tokens
