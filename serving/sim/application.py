"""What a simulated engine answers: the ASGI application in front of its model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serving.core.clock import monotonic
from serving.sim.answers import Answer
from serving.sim.drive import Driver
from serving.sim.errors import EngineError, dump, read_body
from serving.sim.exchange import GARBAGE, Exchange, Gone, Message, Receive, Send
from serving.sim.generate import (
    LEFT,
    Feed,
    build_choices,
    dead,
    draining,
    finished,
    full,
    is_greedy,
    prompts_of,
    read_priority,
    tell,
)
from serving.sim.model import QueueFull
from serving.sim.other_answers import counted
from serving.sim.routes import ROUTES
from serving.sim.surfaces import SURFACES, Surface

if TYPE_CHECKING:
    from serving.sim.engine import SimulatedEngine


class Application:
    """Routes one request after another to the engine as it is at that moment."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, as ASGI passes it."""
        exchange = Exchange(scope, receive, send, self._engine.marks)
        has_route = True
        try:
            has_route = await self._answer(exchange)
        except EngineError as error:
            with contextlib.suppress(Gone):
                await exchange.error(error)
        except Gone:
            pass
        finally:
            self._engine.http.count(exchange, monotonic() - exchange.began_seconds, has_route=has_route)

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
            await methods[exchange.method](self._engine, exchange)
            return True
        self._engine.in_flight += 1
        task = asyncio.current_task()
        assert task is not None
        self._engine.generating.add(task)
        try:
            await self._generate(exchange, surface)
        finally:
            self._engine.generating.discard(task)
            self._engine.in_flight -= 1
        return True

    async def _generate(self, exchange: Exchange, surface: Surface) -> None:
        raw = await exchange.body()
        faults = self._engine.faults
        is_hit = faults.hits(self._engine.chance)
        if faults.hang:
            await self._hang(exchange)
        if self._engine.is_dead:
            raise dead()
        if is_hit and faults.error_status is not None:
            raise EngineError(faults.error_status, "This error was ordered from the simulated engine.")
        if is_hit:
            exchange.reset_after_events = faults.reset_after_events
        body = surface.read(
            read_body(exchange.header("content-type"), raw), self._engine.served, self._engine.plan.limits.max_model_len
        )
        if self._engine.is_draining:
            raise draining()
        if is_hit and faults.garbage:
            await exchange.whole(200, GARBAGE, "text/event-stream; charset=utf-8" if body.get("stream") else "application/json")
            return
        prompts = prompts_of(body, surface, self._engine.plan.token_bytes)
        if not surface.generates:
            await exchange.whole(200, counted(sum(prompt.tokens for prompt in prompts)))
            return
        feed: Feed = asyncio.Queue()
        choices = build_choices(
            body,
            surface,
            self._engine.plan,
            prompts,
            adapters=self._engine.adapters,
            priority=read_priority(body, exchange),
            seed=self._engine.seed,
            drawn=0 if is_greedy(body) else self._engine.draw(body.get("seed")),
            is_wrong=is_hit and faults.wrong_answers,
            feed=feed,
        )
        answer = surface.answer(
            body,
            choices,
            is_chat=surface.is_chat,
            model=body.get("model") or self._engine.plan.model,
            request_id=exchange.header("x-request-id") or body.get("request_id"),
            fingerprint=self._engine.fingerprint,
            with_details=self._engine.plan.tells_details,
        )
        await self._run(exchange, answer, feed, streams=bool(body.get("stream")))

    async def _run(self, exchange: Exchange, answer: Answer, feed: Feed, *, streams: bool) -> None:
        driver = self._rank_for(exchange.header("x-data-parallel-rank"))
        try:
            driver.model.admit(len(answer.choices))
        except QueueFull as error:
            raise full(error) from None
        now = self._engine.clock.now()
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
                driver.model.abort(choice.sequence, self._engine.clock.now())
            driver.wake()

    def _rank_for(self, asked: str | None) -> Driver:
        """The rank that a header pins, or the one with the least to do, as vLLM's own balancer takes it."""
        if asked is not None:
            if not asked.isdigit() or int(asked) >= len(self._engine.drivers):
                raise EngineError(400, f"data_parallel_rank {asked} is out of range [0, {len(self._engine.drivers)}).")
            return self._engine.drivers[int(asked)]
        return min(self._engine.drivers, key=lambda driver: driver.model.waiting * 4 + driver.model.running)

    def _load_header(self, exchange: Exchange) -> tuple[tuple[str, str], ...]:
        kind = exchange.header("endpoint-load-metrics-format")
        if kind not in ("json", "text"):
            return ()
        waiting = float(sum(model.waiting for model in self._engine.models))
        usage = max(model.pool.used_blocks / model.pool.capacity_blocks for model in self._engine.models)
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
