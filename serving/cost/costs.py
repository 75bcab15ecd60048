"""The cost of requests on their way, of pools, and of tenants, put together for the gateway."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from serving.core.clock import Clock, monotonic
from serving.core.context import RequestContext
from serving.core.money import MachineDollars
from serving.cost.bill import PoolKey
from serving.cost.hardware import Machines
from serving.cost.machine_time import Account, Rates, Stay
from serving.cost.totals import PoolTotals
from serving.fleet.engine_load import EngineLoad
from serving.fleet.store import Endpoint

TOKENS_PER_BYTE = 0.25
"""Of a request's body, where routing had no reason to look closer."""


class _NoRates:
    prefill_seconds = step = step_slope = 0.0


_UNPRICED = Account(PoolTotals(0.0), _NoRates(), 0.0)
"""Stands for those of all endpoints without a price, whose time is not shared out."""


class Costs:
    """Says what each request cost, and keeps the sums."""

    def __init__(self, machines: Machines, clock: Clock = monotonic) -> None:
        self.machines = machines
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self.totals: dict[PoolKey, PoolTotals] = {}

    def open(self, key: PoolKey) -> PoolTotals | None:
        """The sums of a model, pool and target; from its first call on they are exported. None where it has no price."""
        totals = self.totals.get(key)
        if totals is None:
            price = self.machines.of(key[1], key[2]).dollars_per_second
            if price is None:
                return None
            totals = self.totals[key] = PoolTotals(price)
        return totals

    def begin(self, endpoint: Endpoint, rates: Rates, prefill_seconds: float, ctx: RequestContext) -> Stay | None:
        """An attempt begins; None at a machine that has no price. `prefill_seconds` is what routing expects of its prompt, 0
        where it did not look."""
        account = self._accounts.get(endpoint.name)
        if account is None:
            account = self._account(endpoint, rates)
        if account is _UNPRICED:
            return None
        account.rates = rates
        work = prefill_seconds or (ctx.body_bytes or len(ctx.body)) * TOKENS_PER_BYTE * rates.prefill_seconds
        return Stay(account, self._clock(), work, sequences_of(ctx), silent=not ctx.stream)

    def first_token(self, stay: Stay) -> None:
        stay.first_token(self._clock())

    def end(self, stay: Stay) -> None:
        stay.end(self._clock())

    def fail(self, stay: Stay) -> float:
        """The attempt gave no answer. Returns what it cost."""
        stay.end(self._clock())
        seconds, pool = stay.prompt_seconds + stay.output_seconds, stay.account.pool
        pool.failed_seconds += seconds
        return seconds * pool.dollars_per_second

    def settle(self, stay: Stay | None, failed_dollars: float, ctx: RequestContext, *, answered: bool) -> MachineDollars:
        """What a request cost that has ended; `stay` is that of the attempt which answered.

        It is None where none did, which cost nothing but what failed, and where the one that did has no price.
        """
        if stay is None:
            return MachineDollars(failed=failed_dollars) if answered else MachineDollars(0.0, 0.0, 0.0, failed_dollars)
        return stay.account.pool.settle(stay, ctx.usage, failed_dollars)

    def hear(self, endpoint: Endpoint, load: EngineLoad) -> None:
        """What an engine says it has under way tells what other gateways gave it."""
        account = self._accounts.get(endpoint.name)
        if account is not None and account is not _UNPRICED and load.running is not None:
            account.hear(load.running + (load.waiting or 0.0), self._clock())

    def look(self) -> None:
        """Bring the sums up to now."""
        now = self._clock()
        for account in self._accounts.values():
            account.advance(now)

    def retain(self, endpoints: Collection[str]) -> None:
        """Forget endpoints that are not among these; what still runs there ends as if they were."""
        for name in [name for name in self._accounts if name not in endpoints]:
            self._accounts.pop(name).advance(self._clock())

    def _account(self, endpoint: Endpoint, rates: Rates) -> Account:
        totals = self.open((endpoint.model, endpoint.pool, endpoint.target))
        account = _UNPRICED if totals is None else Account(totals, rates, self._clock())
        self._accounts[endpoint.name] = account
        return account

    def used(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Dollars of answers by pool and kind of token, for a scrape."""
        for key, totals in self.totals.items():
            rate = totals.dollars_per_second
            yield (*key, "prompt"), totals.prompt_seconds * rate
            yield (*key, "cached"), totals.cached_seconds * rate
            yield (*key, "output"), totals.output_seconds * rate

    def failed(self) -> Iterator[tuple[PoolKey, float]]:
        """Dollars of attempts that gave no answer, for a scrape."""
        for key, totals in self.totals.items():
            yield key, totals.failed_seconds * totals.dollars_per_second


def sequences_of(ctx: RequestContext) -> int:
    """How many sequences an engine makes of a request: its choices, and each prompt, input or document by itself."""
    document = ctx.document
    number = 1
    if "n" in document:
        n = document["n"]
        number = int(n) if isinstance(n, int | float) and n >= 1 else 1
    for counted in ctx.route.counted:
        items = document.get(counted.name)
        # A list of numbers is one prompt in tokens, and messages are one conversation.
        if isinstance(items, list) and items and not isinstance(items[0], int) and counted.name != "messages":
            return number * len(items)
    return number
