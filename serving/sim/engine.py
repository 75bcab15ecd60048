"""One simulated engine on one port: its life, its faults and its routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn

from serving import __version__
from serving.core.clock import monotonic, wall_seconds
from serving.sim.answers import Answer
from serving.sim.connection import SharedState, bind, configure, listen
from serving.sim.drive import Driver, SimulatedClock
from serving.sim.errors import Body, EngineError, dump, read_body
from serving.sim.exchange import GARBAGE, Exchange, Gone, Message, Receive, Send
from serving.sim.exposition import histograms
from serving.sim.faults import Faults, Stop
from serving.sim.generate import (
    LEFT,
    Feed,
    build_choices,
    dead,
    finished,
    full,
    prompts_of,
    read_priority,
    tell,
)
from serving.sim.http_facts import HttpFacts
from serving.sim.model import EngineModel, QueueFull
from serving.sim.other_answers import counted
from serving.sim.plan import EnginePlan
from serving.sim.routes import ROUTES
from serving.sim.surfaces import SURFACES, Surface

log = logging.getLogger("serving.sim")

WATCHDOG_SECONDS = 5.0
"""After so long vLLM's server ends itself when its engine is dead; seconds of the wall clock."""


class SimulatedEngine:
    """Start it, ask it over HTTP, change its `faults`, stop it; it can be started again on the same port."""

    def __init__(
        self,
        plan: EnginePlan,
        clock: SimulatedClock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        index: int = 0,
        seed: int = 0,
        every_metric: bool = False,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.host = host
        self.port = port
        self.index = index
        self.every_metric = every_metric
        self.adapters = list(plan.adapters)
        self.is_dead = False
        """Its process lives and its engine does not."""
        self.is_up = False
        self.gone = asyncio.Event()
        """Set when it was ordered to stop and does not come back by itself."""
        self.in_flight = 0
        self.generating: set[asyncio.Task[Any]] = set()
        self.marks = [(b"x-serving-simulated", f"{plan.profile}; serving {__version__}".encode("latin-1"))]
        self.fingerprint = f"vllm-{plan.version}-simulated"
        self._seed = seed + index
        self._chance = random.Random(self._seed)
        self._faults = Faults()
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._state = SharedState()
        self._config: uvicorn.Config = configure(self, plan.keep_alive_seconds)
        self._later: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._begin_anew()

    # Life

    def _begin_anew(self) -> None:
        """What a process has when it starts: an empty cache and counters at zero."""
        plan = self.plan
        self.drivers = [
            Driver(
                EngineModel(
                    plan.limits,
                    plan.rates,
                    block_tokens=plan.block_tokens,
                    capacity_blocks=plan.capacity_blocks,
                    histograms=histograms(plan.version, plan.limits.max_model_len),
                    keeps_prefixes=plan.keeps_prefixes,
                    seed=self._seed * 1000 + rank,
                ),
                self.clock,
            )
            for rank in range(plan.ranks)
        ]
        self.http = HttpFacts()
        self.created_seconds = wall_seconds()
        self.is_dead = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def models(self) -> list[EngineModel]:
        return [driver.model for driver in self.drivers]

    @property
    def lag_seconds(self) -> float:
        return max(driver.lag_seconds for driver in self.drivers)

    async def start(self) -> None:
        """Listen; on a free port if it has none yet. Raises: OSError."""
        if self._server is not None:
            return
        listener = self._placeholder or bind(self.host, self.port)
        self._placeholder = None
        self.port = listener.getsockname()[1]
        self._server = await listen(listener, self._config, self._state)
        self.is_up = True

    def refuse(self) -> None:
        """Close the port to new connections and keep it."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._placeholder = bind(self.host, self.port)

    async def close(self) -> None:
        """The end, for good: nothing is left open."""
        self._cancel_later()
        self._die()
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait({self._ending})
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=1.0)

    def _die(self, *, resets: bool = True) -> None:
        self.refuse()
        self.is_up = False
        for driver in self.drivers:
            driver.stop()
            driver.model.is_hung = True  # its last requests still end, and nothing else happens
        if self._faults.stop is not None and self._faults.restart_after_seconds is None:
            self.gone.set()
        for connection in list(self._state.connections):
            connection.reset() if resets else connection.cut()  # type: ignore[union-attr]
        self._begin_anew()

    async def end(self, *, drain_seconds: float) -> None:
        """As vLLM on SIGTERM: take no more, let running requests go on for so long, cut the rest."""
        self.refuse()
        for connection in list(self._state.connections):
            connection.shutdown()
        running = set(self.generating)
        if running and drain_seconds:
            await asyncio.wait(running, timeout=drain_seconds)
        self._die(resets=False)

    # Faults

    @property
    def faults(self) -> Faults:
        return self._faults

    async def set_faults(self, faults: Faults) -> None:
        """Replace what it does wrong; a record without `refuse` and `stop` brings it back if it was down."""
        self._faults = faults
        self.gone.clear()
        self._cancel_later()
        for driver in self.drivers:
            driver.model.slow_factor = faults.slow_factor
            if faults.hang:
                driver.model.is_hung = True
            elif driver.model.is_hung:
                driver.model.resume(self.clock.now())
            driver.wake()
        if faults.stop is not None:
            self._stop_by(faults.stop)
        elif faults.refuse:
            self.refuse()
        else:
            await self.start()
        if faults.restart_after_seconds is not None:
            self._after(faults.restart_after_seconds, self._restart)
        log.info("faults of simulated engine %d: %s", self.index, faults.model_dump(exclude_defaults=True) or "none")

    def _stop_by(self, stop: Stop) -> None:
        if stop == "die":
            self._die()
        elif stop == "out_of_memory":
            self.is_dead = True
            self._fail_all()
            if self._faults.restart_after_seconds is None:
                self._after(WATCHDOG_SECONDS, self._die)
        else:
            drain_seconds = self.plan.shutdown_seconds if stop == "drain" else 0.0
            self._ending = asyncio.get_running_loop().create_task(self.end(drain_seconds=drain_seconds))

    def _fail_all(self) -> None:
        now = self.clock.now()
        for driver in self.drivers:
            for sequence in [*driver.model.scheduler.running, *driver.model.scheduler.waiting]:
                driver.model.abort(sequence, now, "error")
            driver.wake()

    def _restart(self) -> None:
        if self.is_up:
            self._die()
        self._ending = asyncio.get_running_loop().create_task(self.set_faults(Faults()))

    def _after(self, seconds: float, call: Any) -> None:
        self._later = asyncio.get_running_loop().call_later(seconds, call)

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    # Requests

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        exchange = Exchange(scope, receive, send, self.marks)
        has_route = True
        try:
            has_route = await self._answer(exchange)
        except EngineError as error:
            with contextlib.suppress(Gone):
                await exchange.error(error)
        except Gone:
            pass
        finally:
            self.http.count(exchange, monotonic() - exchange.began_seconds, has_route=has_route)

    async def _answer(self, exchange: Exchange) -> bool:
        """Returns whether there is such a route."""
        surface = SURFACES.get(exchange.path)
        methods: Mapping[str, Any] = {"POST": self._generate} if surface is not None else ROUTES.get(exchange.path, {})
        if exchange.method not in methods:
            status, detail = (405, "Method Not Allowed") if methods else (404, "Not Found")
            more = (("allow", ", ".join(methods)),) if methods else ()
            await exchange.whole(status, dump({"detail": detail}), more=more)
            return bool(methods)
        if surface is None:
            await methods[exchange.method](self, exchange)
            return True
        self.in_flight += 1
        task = asyncio.current_task()
        assert task is not None
        self.generating.add(task)
        try:
            await self._generate(exchange, surface)
        finally:
            self.generating.discard(task)
            self.in_flight -= 1
        return True

    async def _generate(self, exchange: Exchange, surface: Surface) -> None:
        raw = await exchange.body()
        faults = self._faults
        is_hit = faults.hits(self._chance)
        if faults.hang:
            await self._hang(exchange)
        if self.is_dead:
            raise dead()
        if is_hit and faults.error_status is not None:
            raise EngineError(faults.error_status, "This error was ordered from the simulated engine.")
        if is_hit:
            exchange.reset_after_events = faults.reset_after_events
        body = surface.read(read_body(exchange.header("content-type"), raw), [self.plan.model, *self.adapters], self._context)
        if is_hit and faults.garbage:
            await exchange.whole(200, GARBAGE, "text/event-stream; charset=utf-8" if body.get("stream") else "application/json")
            return
        prompts = prompts_of(body, surface, self.plan.token_bytes)
        if not surface.generates:
            await exchange.whole(200, counted(sum(prompt.tokens for prompt in prompts)))
            return
        feed: Feed = asyncio.Queue()
        choices = build_choices(
            body,
            surface,
            self.plan,
            prompts,
            adapters=self.adapters,
            priority=read_priority(body, exchange),
            seed=self._seed,
            is_wrong=is_hit and faults.wrong_answers,
            feed=feed,
        )
        answer = surface.answer(
            body,
            choices,
            is_chat=surface.is_chat,
            model=body.get("model") or self.plan.model,
            request_id=exchange.header("x-request-id") or body.get("request_id"),
            fingerprint=self.fingerprint,
            with_details=self.plan.tells_details,
        )
        await self._run(exchange, answer, feed, streams=bool(body.get("stream")))

    @property
    def _context(self) -> int:
        return self.plan.limits.max_model_len

    async def _run(self, exchange: Exchange, answer: Answer, feed: Feed, *, streams: bool) -> None:
        driver = self._rank_for(exchange.header("x-data-parallel-rank"))
        try:
            driver.model.admit(len(answer.choices))
        except QueueFull as error:
            raise full(error) from None
        now = self.clock.now()
        for choice in answer.choices:
            driver.model.add(choice.sequence, now)
        driver.wake()
        watch = asyncio.get_running_loop().create_task(self._watch(exchange, feed))
        try:
            if streams:
                await tell(exchange, answer, feed)
            else:
                how = await finished(feed, len(answer.choices))
                if how == "error":
                    raise dead()
                if how == "abort":
                    exchange.break_off()
                await exchange.whole(200, answer.whole(), more=self._load_header(exchange))
        finally:
            watch.cancel()
            for choice in answer.choices:
                driver.model.abort(choice.sequence, self.clock.now())
            driver.wake()

    def _rank_for(self, asked: str | None) -> Driver:
        """The rank that a header pins, or the one with the least to do, as vLLM's own balancer takes it."""
        if asked is not None:
            if not asked.isdigit() or int(asked) >= len(self.drivers):
                raise EngineError(400, f"data_parallel_rank {asked} is out of range [0, {len(self.drivers)}).")
            return self.drivers[int(asked)]
        return min(self.drivers, key=lambda driver: driver.model.waiting * 4 + driver.model.running)

    def _load_header(self, exchange: Exchange) -> tuple[tuple[str, str], ...]:
        kind = exchange.header("endpoint-load-metrics-format")
        if kind not in ("json", "text"):
            return ()
        waiting = float(sum(model.waiting for model in self.models))
        usage = max(model.pool.used_blocks / model.pool.capacity_blocks for model in self.models)
        if kind == "json":
            named = dump({"named_metrics": {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage}}).decode()
            return (("endpoint-load-metrics", f"JSON {named}"),)
        text = f"named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={usage}"
        return (("endpoint-load-metrics", f"TEXT {text}"),)

    @staticmethod
    async def _watch(exchange: Exchange, feed: Feed) -> None:
        await exchange.client_left()
        feed.put_nowait(LEFT)

    @staticmethod
    async def _hang(exchange: Exchange) -> None:
        await exchange.client_left()
        raise Gone

    async def read(self, exchange: Exchange) -> Body:
        return read_body(exchange.header("content-type"), await exchange.body())
