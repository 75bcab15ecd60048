"""The counts of tenants that several gateways share, in Redis: each reservation and each settling is one atomic step there.

While the store is away the gateway goes on in the configured mode; what it lets through meanwhile is told to the store when that
is back. Everything that is told has an id, so that it counts once although nobody knows what an interrupted call has done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from serving.core.clock import Clock, monotonic
from serving.core.errors import Unavailable
from serving.limit_settings import LimitStoreSettings
from serving.tenancy.outage import Others, Outage, others_of
from serving.tenancy.owed import Owed
from serving.tenancy.quotas import NOTHING, Claim, Limit, Limits, LocalQuotas, Reservation, Standing, Verdict
from serving.tenancy.window import WINDOW_SECONDS

log = logging.getLogger("serving.limits")

SCRIPT = (files("serving.tenancy") / "quotas.lua").read_text(encoding="utf-8")
BATCH_CALLS = 256
CONNECT_SECONDS = 1.0
"""For a store that was down to connect and answer; no request waits for it."""
LATE_TURNS = 5
"""Of the event loop, after the time is up: what has come meanwhile is read in them."""
PEEK_SECONDS = 1.0
"""How old what is known of other gateways' use may be when the store is lost."""
MOST_PEEKED = 1024
"""Tenants of which it is asked for."""
_FAILURES = (RedisError, OSError, TimeoutError, ValueError)
"""ValueError: it answers, and not what the script answers."""


class _Lost(Exception):
    """The store did not answer, and may or may not have done what it was asked."""


class _Call:
    """One run of the script for one tenant."""

    __slots__ = ("answer", "arguments", "tenant")

    def __init__(self, tenant: str, *arguments: str | int, answer: asyncio.Future[list[int | str]] | None = None) -> None:
        self.tenant = tenant
        self.arguments = arguments
        self.answer = answer
        """For whom waits; None: nobody does, and the call is made again until the store has taken it."""

    def resolve(self, reply: Any) -> None:
        """Raises: ValueError when it is nothing that the script says."""
        if not isinstance(reply, bytes):
            raise ValueError(f"the store answers {reply!r}")
        if self.answer is None:
            int(reply)
            return
        refused_by, *numbers = reply.decode("ascii").split(" ")
        fields: list[int | str] = [refused_by, *map(int, numbers)]
        if len(fields) != 8:
            raise ValueError(f"the store answers {reply!r}")
        if not self.answer.done():
            self.answer.set_result(fields)


class _Peek(_Call):
    """Asks what all gateways together have used."""

    __slots__ = ("told",)

    def __init__(self, tenant: str, told: Callable[[str, str], None]) -> None:
        super().__init__(tenant, "peek")
        self.told = told

    def resolve(self, reply: Any) -> None:
        if not isinstance(reply, bytes):
            raise ValueError(f"the store answers {reply!r}")
        self.told(self.tenant, reply.decode("ascii"))


class SharedQuotas:
    """Asks the store in batches: all calls that came while the last batch was under way go together."""

    def __init__(
        self,
        settings: LimitStoreSettings,
        *,
        failed: Callable[[str], None] = lambda _: None,
        clock: Clock = monotonic,
    ) -> None:
        """`failed` is told, in a word, each time that the store is lost."""
        assert settings.url is not None
        self._settings = settings
        self._url = settings.url.get_secret_value()
        self._failed = failed
        self._clock = clock
        self._local = LocalQuotas(clock)
        self._replicas = settings.replicas or 1
        self._lease_ms = round(settings.lease_seconds * 1000)
        self._gateway = secrets.token_hex(6)
        self._number = 0
        self.is_up = False
        self._client: Redis | None = None
        self._script = ""
        self._calls: list[_Call] = []
        self._wake = asyncio.Event()
        self._open: dict[str, Reservation] = {}
        self._owed: dict[str, Owed] = {}
        """By tenant: what ended while the store was away and had not been counted there."""
        self._others: dict[str, Others] = {}
        """By tenant, as the store said last."""
        self._asked: OrderedDict[str, float] = OrderedDict()
        """When each tenant was asked for here last, the longest ago first."""
        self._peeked = 0.0
        self._outage = Outage(-math.inf, self._replicas, {}, {})
        """The present one, or the last; before the store was ever there nobody has used anything of it."""
        self._renewed = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SharedQuotas:
        error = await self._connect()
        if error is not None:
            self._say_down(f"it cannot be used at the start ({_words(error)})")
        self._task = asyncio.create_task(self._run(), name="limit-store")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tell the store what it has not heard yet, if that takes no longer than any call may."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.is_up and self._calls:
            with contextlib.suppress(*_FAILURES):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._execute(self._calls)
        await self._disconnect()

    def reserve(self, tenant: str, limits: Limits, claim: Claim) -> Verdict | Coroutine[Any, Any, Verdict]:
        if not self.is_up:
            return self._without_store(tenant, limits, claim)
        return self._ask(tenant, limits, claim)

    def settle(self, reservation: Reservation, used: Claim) -> None:
        self._local.settle(reservation, used)
        self._open.pop(reservation.id, None)
        if reservation.is_shared:
            self._tell(_Call(reservation.tenant, "settle", reservation.id, *used))
        else:
            owed = self._owed.setdefault(reservation.tenant, Owed())
            owed.add(reservation, used)
            if self.is_up:
                self._pay(reservation.tenant)

    def standing(self, tenant: str, limits: Limits) -> Standing:
        """As far as this gateway knows: by what itself let through."""
        return self._local.standing(tenant, limits)

    async def _ask(self, tenant: str, limits: Limits, claim: Claim) -> Verdict:
        identity = self._identity()
        self._asked[tenant] = self._clock()
        self._asked.move_to_end(tenant)
        most = (
            -1 if each is None else each for each in (limits.requests, limits.tokens, limits.concurrency, limits.nano_dollars)
        )
        answer = asyncio.get_running_loop().create_future()
        self._tell(_Call(tenant, "reserve", identity, self._lease_ms, *most, *claim, answer=answer))
        try:
            refused_by, wait_ms, requests, reset_requests, tokens, reset_tokens, open_, spent = await answer
        except _Lost:
            self._undo(tenant, identity)
            return self._without_store(tenant, limits, claim)
        except asyncio.CancelledError:
            self._undo(tenant, identity)
            raise
        standing = Standing(
            max(0, (limits.requests or 0) - int(requests)),
            int(reset_requests) / 1000,
            max(0, (limits.tokens or 0) - int(tokens)),
            int(reset_tokens) / 1000,
            max(0, (limits.concurrency or 0) - int(open_)),
            max(0, (limits.nano_dollars or 0) - int(spent)),
        )
        if (others := self._others.get(tenant)) is not None:
            mine = (*claim, 1) if refused_by == "-" else (0, 0, 0, 0)
            before = (int(total) - part for total, part in zip((requests, tokens, spent, open_), mine, strict=True))
            others.hear(self._local.own(tenant), self._clock(), *before)
        if refused_by != "-":
            return Verdict(None, standing, Limit(refused_by), int(wait_ms) / 1000)
        reservation = self._local.take(tenant, claim)
        reservation.id, reservation.is_shared = identity, True
        self._open[identity] = reservation
        return Verdict(reservation, standing)

    def _undo(self, tenant: str, identity: str) -> None:
        """Whatever became of that reservation, nobody uses it."""
        self._tell(_Call(tenant, "settle", identity, *NOTHING))

    def _without_store(self, tenant: str, limits: Limits, claim: Claim) -> Verdict:
        if self._settings.when_down == "closed":
            raise Unavailable(
                "Limits cannot be checked at the moment. Try again shortly.",
                code="limit_store_unavailable",
                retry_after_seconds=max(1, round(self._settings.retry_seconds)),
            )
        now, own = self._clock(), self._local.own(tenant)
        verdict = self._local.reserve(tenant, self._outage.limits(tenant, limits, own, now), claim)
        if verdict.refused_by in (Limit.REQUESTS, Limit.TOKENS):
            seconds = self._outage.wait_seconds(tenant, limits, own, now, claim.requests, claim.tokens)
            verdict = verdict._replace(wait_seconds=seconds)
        if verdict.reservation is not None:
            verdict.reservation.id = self._identity()
            self._open[verdict.reservation.id] = verdict.reservation
        return verdict

    def _identity(self) -> str:
        self._number += 1
        return f"{self._gateway}-{self._number}"

    def _tell(self, call: _Call) -> None:
        self._calls.append(call)
        self._wake.set()

    def _pay(self, tenant: str) -> None:
        for arguments in self._owed.pop(tenant).payments(self._clock()):
            self._tell(_Call(tenant, "pay", self._identity(), *arguments))

    async def _run(self) -> None:
        while True:
            if not self.is_up:
                await asyncio.sleep(self._settings.retry_seconds)
                await self._connect()
                continue
            if not self._calls:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PEEK_SECONDS if self._asked else self._settings.lease_seconds / 3):
                        await self._wake.wait()
            if self._clock() - self._renewed > self._settings.lease_seconds / 3:
                self._renew()
            if self._clock() - self._peeked >= PEEK_SECONDS:
                self._peek()
            batch, self._calls = self._calls[:BATCH_CALLS], self._calls[BATCH_CALLS:]
            if batch:
                await self._send(batch)

    async def _send(self, batch: list[_Call]) -> None:
        try:
            replies = await self._in_time(batch)
            for call, reply in zip(batch, replies, strict=True):
                call.resolve(reply)
        except _FAILURES as error:
            self._lose(error, batch)

    async def _in_time(self, batch: list[_Call]) -> list[Any]:
        """Raises: TimeoutError when the store has not answered; that this process was too busy to read is not the store's."""
        running = asyncio.ensure_future(self._execute(batch))
        try:
            await asyncio.wait({running}, timeout=self._settings.timeout_seconds)
            for _ in range(LATE_TURNS):
                if not running.done():
                    await asyncio.sleep(0)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
        if running.cancelled():
            raise TimeoutError
        return running.result()

    async def _execute(self, batch: list[_Call]) -> list[Any]:
        assert self._client is not None
        pipeline = self._client.pipeline(transaction=False)
        for call in batch:
            keys = self._keys(call.tenant)
            pipeline.evalsha(self._script, len(keys), *keys, *call.arguments)
        replies = await pipeline.execute(raise_on_error=False)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            # Somebody has flushed the scripts. Where one is missing, it has done nothing.
            self._script = await self._client.script_load(SCRIPT)
            missing = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            again = await self._execute([batch[place] for place in missing])
            for place, reply in zip(missing, again, strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return list(replies)

    def _keys(self, tenant: str) -> list[str]:
        # The braces keep one tenant's keys at one node of a Redis cluster.
        return [f"{self._settings.key_prefix}:{{{tenant}}}:{name}" for name in ("window", "open", "claims", "dollars", "marks")]

    def _peek(self) -> None:
        """Ask what is left of the limits of those who were here lately, since the store may be lost before the next time."""
        now = self._peeked = self._clock()
        asked = self._asked
        while asked and (len(asked) > MOST_PEEKED or now - next(iter(asked.values())) > WINDOW_SECONDS):
            self._others.pop(asked.popitem(last=False)[0], None)
        if self._settings.when_down == "local_share":
            self._calls += [_Peek(tenant, self._told) for tenant in asked]

    def _told(self, tenant: str, reply: str) -> None:
        others_of(reply, self._local.own(tenant), self._clock())  # so that what makes no sense is the store's failure
        # After those whose reservations came with the same answer have taken note of them.
        asyncio.get_running_loop().call_soon(self._note, tenant, reply)

    def _note(self, tenant: str, reply: str) -> None:
        self._others[tenant] = others_of(reply, self._local.own(tenant), self._clock())

    def _renew(self) -> None:
        self._renewed = self._clock()
        by_tenant: dict[str, list[str]] = {}
        for reservation in self._open.values():
            if reservation.is_shared:
                by_tenant.setdefault(reservation.tenant, []).append(reservation.id)
        for tenant, open_ in by_tenant.items():
            self._calls.append(_Call(tenant, "renew", self._lease_ms, *open_))

    async def _connect(self) -> Exception | None:
        """Try whether the store is there, and if so tell it what it has missed. Returns why it cannot be used."""
        await self._disconnect()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._client = Redis.from_url(self._url, protocol=2, retry=Retry(NoBackoff(), 0))
                self._script = await self._client.script_load(SCRIPT)
                # Also that it can be written to: a replica loads scripts, too.
                keys = self._keys("")
                int(await self._client.evalsha(self._script, len(keys), *keys, "pay", "check", 0, 0))
        except _FAILURES as error:
            return error
        self._renew()
        now = self._clock()
        for reservation in self._open.values():
            if not reservation.is_shared:
                reservation.is_shared = True
                age_seconds = int(now - reservation.taken)
                self._tell(_Call(reservation.tenant, "adopt", reservation.id, self._lease_ms, age_seconds, *reservation.claim))
        for tenant in list(self._owed):
            self._pay(tenant)
        self.is_up = True
        log.info("the limit store answers")
        return None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*_FAILURES):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.aclose()

    def _lose(self, error: Exception, batch: list[_Call]) -> None:
        """The store is down from now on: nobody waits for it any more, and what nobody waits for is told it later."""
        self.is_up = False
        self._outage = Outage(self._clock(), self._replicas, dict(self._others), self._local.all_open())
        calls = batch + self._calls
        self._calls = [call for call in calls if call.answer is None and not isinstance(call, _Peek)]
        for call in calls:
            if call.answer is not None and not call.answer.done():
                call.answer.set_exception(_Lost())
        self._say_down(_words(error))
        self._failed("timeout" if isinstance(error, TimeoutError) else "error")

    def _say_down(self, why: str) -> None:
        mode = "requests of limited tenants are refused"
        if self._settings.when_down == "local_share":
            mode = f"this gateway allows one part in {self._replicas} of what is left of each limit"
        log.warning("the limit store is lost: %s; %s until it answers", why, mode)


def _words(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
