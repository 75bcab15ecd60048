"""The ledger: one record for each ended request of a known tenant.

Records are made in the event loop, when requests are published, and wait in memory until the bookkeeper's thread takes them.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.core.context import RequestContext
from serving.core.money import UNPRICED
from serving.ledger_settings import LedgerSettings
from serving.tenancy.prices import NANODOLLARS, NOTHING, UNKNOWN_COST, Prices
from serving.tenancy.tenants import Identity

Record = tuple[Any, ...]
"""In the order of the table's columns."""
BATCH_RECORDS = 500
"""Written in one statement, which takes some 10 ms."""


class Ledger:
    """Takes note of ended requests. `add` belongs to the event loop, `take` to one other thread."""

    def __init__(
        self,
        settings: LedgerSettings,
        prices: Prices,
        *,
        dropped: Callable[[], None] = lambda: None,
        clock: Clock = monotonic,
        wall: Clock = wall_seconds,
    ) -> None:
        """`dropped` is called for each record that finds no room."""
        self._prices = prices
        self._most = settings.memory_records
        self._most_refusals = settings.memory_records // 2
        self._dropped = dropped
        self._clock = clock
        self._wall = wall
        self._waiting: deque[Record] = deque()
        instance = secrets.token_hex(8)
        self._ids = (f"{instance}-{number}" for number in itertools.count())
        self.on_batch: Callable[[], None] = lambda: None
        """Called when a whole batch waits."""

    def __len__(self) -> int:
        """How many records wait."""
        return len(self._waiting)

    def add(self, ctx: RequestContext, identity: Identity, ended: float) -> None:
        """Note a request that has ended at `ended` monotonic seconds, or drop it and say so where there is no room.

        What no engine has worked for makes room first: a flood of refused requests must not cost what has to be billed.
        """
        waiting = self._waiting
        if len(waiting) >= (self._most if ctx.attempts else self._most_refusals):
            self._dropped()
            return
        waiting.append(self._record(ctx, identity, ended))
        if len(waiting) == BATCH_RECORDS:
            self.on_batch()

    def take(self, most: int = BATCH_RECORDS) -> list[Record]:
        """The oldest records, which the caller has to bring to a safe place."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def _record(self, ctx: RequestContext, identity: Identity, ended: float) -> Record:
        answered = ctx.first_byte > 0
        prompt = cached = output = audio = None
        cost = UNKNOWN_COST
        if not ctx.route.runs_model:
            prompt = cached = output = 0
            cost = NOTHING
        elif answered:
            prompt, cached, output, audio = ctx.usage
            cost = self._prices.cost(ctx.model, ctx.pool, ctx.usage)
        return (
            next(self._ids),
            self._wall() - self._clock() + ended,
            ctx.request_id,
            identity.tenant.name,
            identity.key_id,
            ctx.route.name,
            ctx.model,
            ctx.target,
            ctx.pool,
            ctx.outcome,
            ctx.attempts,
            prompt,
            cached,
            output,
            audio,
            int(ctx.usage_estimated),
            ended - ctx.arrived,
            (ctx.first_token or ctx.first_byte) - ctx.arrived if answered else None,
            *cost,
            *(_NO_MACHINE if ctx.machine is UNPRICED else [_nanodollars(part) for part in ctx.machine]),
            *(ctx.failed_at or _NOWHERE),
        )


_NO_MACHINE = (None,) * len(UNPRICED)
_NOWHERE = (None, None)


def _nanodollars(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * NANODOLLARS)
