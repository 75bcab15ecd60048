"""Fleets in trouble under load: every engine restarted one after another; engines killed, stopped and cut off at random."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from serving.core.outcomes import Outcome
from serving.settings import Settings
from serving.sim.engine import SimulatedEngine
from serving.sim.faults import Faults
from tests.doubles.conservation import GAUGES, Resources
from tests.doubles.lossy_network import LossyNetwork
from tests.doubles.raw_client import HangUp, RawClient, RawResponse, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.simulated_process import MODEL, SimulatedProcess

CHAT = "/v1/chat/completions"
ENGINES = 6
MEBIBYTE = 1024 * 1024


@contextlib.asynccontextmanager
async def leaving_nothing(settings: Settings) -> AsyncIterator[RunningGateway]:
    """A gateway that ends with what it began with: no lease, no task, no open file."""
    resources = Resources()
    async with RunningGateway(settings) as gateway:
        yield gateway

        async def problems() -> list[str]:
            metrics = await gateway.metrics()
            left = [name for name in GAUGES if metrics.sum(name)]
            busy = [name for name in gateway.app.fleet.snapshot.statuses if gateway.app.chooser.in_flight(name)]
            return left + busy + ([f"{gateway.app.relay.open_exchanges} exchanges"] if gateway.app.relay.open_exchanges else [])

        await settled(problems)
    await settled(resources.problems)


def how_it_ended(answer: RawResponse, tokens: int) -> str:
    """`whole`, `error` (said so), or what must not be."""
    if answer.status != 200:
        return "refused" if answer.json["error"]["code"] else "refused without a code"
    if answer.end != "complete":
        return f"cut: {answer.end}"
    if not answer.is_done:
        return "error" if b'data: {"error"' in answer.events[-1] else "ended without a word"
    choices = [choice for event in answer.data if isinstance(event, dict) for choice in event.get("choices", [])]
    if any("error" in event for event in answer.data if isinstance(event, dict)):
        return "error"  # the engine's own words, which it ends with [DONE]
    said = sum(bool(choice["delta"].get("content")) for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "whole" if (said, reasons) == (tokens, ["length"]) else f"short: {said} of {tokens} tokens, {reasons}"


async def stream(gateway: RunningGateway, model: str, tokens: int) -> tuple[str, str]:
    """One stream; how it ended and its request's id."""
    body = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": tokens, "stream": True}
    try:
        async with RawClient(gateway.url, receive_seconds=180) as client:
            await client.send(request_bytes(CHAT, body))
            answer = await client.read()
    except HangUp as hung_up:
        return f"hung up: {hung_up}", ""
    return how_it_ended(answer, tokens), answer.header("x-request-id") or ""


# Rolling restart


async def restart_all(gateway: RunningGateway, engines: dict[str, SimulatedEngine]) -> None:
    """Half of them abort, half drain; the next one when all are back."""
    for number, engine in enumerate(engines.values()):
        await engine.set_faults(Faults(stop="abort" if number % 2 else "drain", restart_after_seconds=1.0))
        # Not: until it left the rotation, which on a busy machine goes by unseen.
        await asyncio.wait_for(wait_for(lambda engine=engine: engine.faults.stop is None and engine.is_up), 60)  # type: ignore[misc]
        await asyncio.wait_for(wait_for(lambda: len(rotation(gateway)) == len(engines)), 120)


async def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def rotation(gateway: RunningGateway, model: str = "tiny") -> list[str]:
    return [endpoint.name for endpoint in gateway.app.fleet.snapshot.candidates(model)]


async def rolling_restart(requests: int, at_once: int, streams_at_once: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            f"e{number}": await stack.enter_async_context(simulated_engine(step_seconds=0.01, shutdown_seconds=2.0))
            for number in range(1, ENGINES + 1)
        }
        endpoints = [{"name": name, "url": engine.url, "model": "tiny"} for name, engine in engines.items()]
        settings = {
            "endpoints": endpoints,
            # Engines and clients share this process: what comes late says nothing about an engine.
            "relay": {"connect_timeout_seconds": 30.0},
            "probe": {"period_seconds": 0.25, "timeout_seconds": 30.0},
            # The same engine is restarted every few seconds.
            "health": {"slow_start_seconds": 2.0, "most_open_seconds": 5.0},
        }
        gateway = await stack.enter_async_context(leaving_nothing(Settings.model_validate(settings)))
        await wait_for(lambda: len(rotation(gateway)) == ENGINES)
        statuses: Counter[int | str] = Counter()
        ended: Counter[str] = Counter()
        left = requests
        over = asyncio.Event()

        async def asking() -> None:
            nonlocal left
            async with RawClient(gateway.url, receive_seconds=180) as client:
                while left > 0 or not over.is_set():
                    left -= 1
                    body = {"model": "tiny", "messages": [{"role": "user", "content": f"{left}"}], "max_tokens": 8}
                    answer = await client.ask(CHAT, body)
                    is_whole = answer.status == 200 and answer.json["usage"]["completion_tokens"] == 8
                    statuses["whole" if is_whole else answer.status] += 1

        async def streaming() -> None:
            while not over.is_set():
                how, _ = await stream(gateway, "tiny", 100)
                ended[how] += 1

        async def restarting() -> int:
            rounds = 0
            try:
                while left > 0 or not rounds:
                    await restart_all(gateway, engines)
                    rounds += 1
            finally:
                over.set()
            return rounds

        began = time.monotonic()
        restarts = asyncio.create_task(restarting())
        await asyncio.gather(*(asking() for _ in range(at_once)), *(streaming() for _ in range(streams_at_once)))
        rounds = await restarts
        metrics = await gateway.metrics()
        attempts = metrics.sum("serving_engine_attempts_total") / metrics.sum("serving_requests_total")
        print(
            f"\n{rounds} rolling restarts of {ENGINES} engines in {time.monotonic() - began:.0f} s: {dict(statuses)}; "
            f"streams {dict(ended)}; {attempts:.4f} attempts a request",
            flush=True,
        )
        assert set(statuses) == {"whole"} and statuses["whole"] >= requests
        assert set(ended) <= {"whole", "error"} and ended["whole"] > 0
        assert attempts <= 1.05


async def test_a_rolling_restart_loses_no_request() -> None:
    await rolling_restart(requests=1000, at_once=12, streams_at_once=6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_rolling_restarts_under_30000_requests() -> None:
    await rolling_restart(requests=30_000, at_once=40, streams_at_once=20)


# Random faults


@dataclass
class Trouble:
    """When which endpoint was not itself, in monotonic seconds."""

    spans: dict[str, list[list[float]]] = field(default_factory=dict)

    def begins(self, name: str) -> None:
        self.spans.setdefault(name, []).append([time.monotonic(), float("inf")])

    def ends(self, name: str) -> None:
        self.spans[name][-1][1] = time.monotonic()

    def touched(self, names: set[str], began: float, ended: float) -> bool:
        return any(start <= ended and began <= end for name in names for start, end in self.spans.get(name, []))


class Ways:
    """Endpoints that each request was sent to, as the gateway itself knows them."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.by_id: dict[str, set[str]] = {}
        pipeline = gateway.app.pipeline
        begin = pipeline._begin_attempt

        def noted(passage: Any, ticket: Any) -> None:
            self.by_id.setdefault(passage.ctx.request_id, set()).add(ticket.endpoint.name)
            begin(passage, ticket)

        pipeline._begin_attempt = noted  # type: ignore[method-assign]


async def random_faults(seconds: float, streams: int, seed: int) -> None:
    chance = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        processes = {f"e{number}": SimulatedProcess() for number in range(1, ENGINES + 1)}
        await asyncio.gather(*(stack.enter_async_context(process) for process in processes.values()))
        networks = {name: await stack.enter_async_context(LossyNetwork(processes[name].url)) for name in ("e5", "e6")}
        urls = {name: networks[name].url if name in networks else process.url for name, process in processes.items()}
        settings = {
            "endpoints": [{"name": name, "url": url, "model": MODEL} for name, url in urls.items()],
            # An engine runs 32 of them at once, so that where few are left some wait for seconds, and not for the time-out.
            "relay": {"first_byte_timeout_seconds": 12.0, "idle_timeout_seconds": 8.0},
            # Engines, clients and the gateway share a machine: a look that was late there says nothing about an engine.
            "probe": {"period_seconds": 0.5, "timeout_seconds": 5.0},
            "health": {"slow_start_seconds": 5.0, "most_open_seconds": 10.0},
        }
        gateway = await stack.enter_async_context(leaving_nothing(Settings.model_validate(settings)))
        await wait_for(lambda: len(rotation(gateway, MODEL)) == ENGINES)
        ways, trouble, over = Ways(gateway), Trouble(), asyncio.Event()
        ended: Counter[str] = Counter()
        wrong: list[str] = []
        ordered: Counter[str] = Counter()

        async def pause(least: float, most: float) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(least, most)):
                    await over.wait()

        async def streaming(number: int) -> None:
            await asyncio.sleep(number * 0.02)
            while not over.is_set():
                began = time.monotonic()
                how, request_id = await stream(gateway, MODEL, 40)
                seen = ways.by_id.pop(request_id, set())
                was_hit = trouble.touched(seen, began, time.monotonic())
                ended[("hit, " if was_hit else "") + how] += 1
                if how != "whole" and not (was_hit and how in ("error", "refused")):
                    wrong.append(f"{how} at {sorted(seen)}, hit: {was_hit}")

        async def break_one(name: str) -> None:
            kind = chance.choice(["kill", "stop", "stop"] if name not in networks else ["kill", "network", "network"])
            ordered[kind] += 1
            trouble.begins(name)
            match kind:
                case "kill":
                    await processes[name].kill()
                    await pause(0.0, 2.0)
                    await processes[name].start()
                case "stop":
                    processes[name].send(signal.SIGSTOP)
                    await pause(1.0, 16.0)
                    processes[name].send(signal.SIGCONT)
                case _:
                    networks[name].lose()
                    await pause(1.0, 16.0)
                    networks[name].restore()
            # What was sent before it was itself again still suffers.
            await pause(4.0, 4.0)
            trouble.ends(name)

        async def breaking(names: list[str]) -> None:
            while not over.is_set():
                await pause(1.0, 4.0)
                await break_one(chance.choice(names))

        async def clock() -> list[int]:
            sizes = []
            for _ in range(4):
                await asyncio.sleep(seconds / 4)
                gc.collect()
                sizes.append(psutil.Process().memory_info().rss)
            over.set()
            return sizes

        clocked = asyncio.create_task(clock())
        breakers = [asyncio.create_task(breaking(names)) for names in (["e1", "e2", "e3"], ["e4", "e5", "e6"])]
        await asyncio.gather(*(streaming(number) for number in range(streams)))
        await asyncio.gather(*breakers)
        sizes = await clocked
        metrics = await gateway.metrics()
        requests = metrics.sum("serving_requests_total")
        by_outcome = {o: n for o in Outcome if (n := metrics.sum("serving_requests_total", outcome=o))}
        print(
            f"\n{seconds:.0f} s of faults {dict(ordered)}: {streams} streams at once, {sum(ended.values())} in all: "
            f"{dict(ended)}; "
            f"{by_outcome}; {metrics.sum('serving_engine_attempts_total') / requests:.4f} attempts a request; "
            f"memory {[round(size / MEBIBYTE) for size in sizes]} MiB",
            flush=True,
        )
        assert wrong == [], wrong[:20]
        assert requests == sum(ended.values())
        assert ended["hit, error"] > 0
        assert sizes[-1] - sizes[0] < 32 * MEBIBYTE


@pytest.mark.slow
async def test_a_minute_of_random_faults() -> None:
    await random_faults(40.0, streams=30, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_twenty_minutes_of_random_faults() -> None:
    await random_faults(1200.0, streams=200, seed=2)
