"""O-CAN-2: with room for one request, whatever became of the last one, the next is never refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from serving.routing.choose import Chooser
from tests.doubles.raw_client import HangUp, RawClient, RawResponse, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS
from tests.flow.conftest import GatewayOver
from tests.flow.surfaces import GENERATING, RESPONSES, asking, assert_error, is_whole

ROUNDS = 50
LIMITS = {"in_flight": 1, "body_bytes": 4096}
FAST = {"first_byte_timeout_seconds": 1.5, "idle_timeout_seconds": 1.5, "max_attempts": 1}
"""Long enough for good requests on a busy machine."""


@dataclass
class Place:
    """One round: a connection that may end, and the next one in its place."""

    gateway: RunningGateway
    engine: ScriptedEngine
    client: RawClient
    path: str
    stream: bool

    async def ask(self, script: Script | None = None, body: Any = None, **fields: Any) -> RawResponse | None:
        """Ask and read to the end; None where the connection ended before an answer."""
        if script is not None:
            self.engine.script(script)
        sent = asking(self.path, **({"stream": self.stream} | fields)) if body is None else body
        await self.client.send(request_bytes(self.path, sent))
        try:
            return await self.client.read()
        except HangUp:
            return None

    async def renew(self) -> None:
        self.client.hang_up()
        self.client = await RawClient(self.gateway.url).connect()


async def well(place: Place) -> None:
    response = await place.ask()
    assert response is not None and response.status == 200


async def refused_with(place: Place, status: int, *, script: Script | None = None, body: Any = None, **fields: Any) -> None:
    response = await place.ask(script, body, **fields)
    assert response is not None and response.status == status, response
    assert_error(response, place.path)


async def engine_refuses(place: Place) -> None:
    """The port is closed, also for the connections that were kept."""
    await place.engine.stop(how="rst")
    response = await place.ask()
    assert response is not None and response.status in (502, 503)
    await place.engine.start()
    await ready(place.gateway)


async def cut(place: Place) -> None:
    script = Script(close_after=2) if place.stream else Script(truncate_body_bytes=30)
    response = await place.ask(script)
    assert response is None or response.end != "complete" or not is_whole(response, place.path)


async def error_event(place: Place) -> None:
    place.stream = True
    response = await place.ask(Script(error_after=2))
    assert response is not None and response.status == 200
    if place.path == RESPONSES:
        assert not is_whole(response, place.path)


async def left_in_the_body(place: Place) -> None:
    head, _, _ = request_bytes(place.path, b"x" * 100).partition(b"\r\n\r\n")
    arrived = len(place.gateway.arrived)
    await place.client.send(head + b"\r\n\r\n{")
    while len(place.gateway.arrived) == arrived:
        await asyncio.sleep(0)


async def left_in_the_queue(place: Place) -> None:
    await _left(place, Script(blackhole=True), "arrived")


async def left_before_the_first_event(place: Place) -> None:
    place.stream = True
    await _left(place, Script(gate=Gate()), "held")


async def left_in_the_middle(place: Place) -> None:
    place.stream = True
    await _left(place, Script(gate=Gate(events=2)), "held:3")


async def _left(place: Place, script: Script, point: str) -> None:
    seen = len(place.engine.log.requests)
    place.engine.script(script)
    await place.client.send(request_bytes(place.path, asking(place.path, stream=place.stream)))
    async with asyncio.timeout(HANG_SECONDS):
        record = await place.engine.request_arrived(seen + 1)
        await record.reached(point)


async def fault_inside(place: Place) -> None:
    """The gateway's own code raises after the lease was taken."""

    def fails(*_: object) -> None:
        raise RuntimeError("a fault of the gateway itself")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chooser, "choose", fails)
        await refused_with(place, 500)


EXITS: dict[str, Callable[[Place], Awaitable[None]]] = {
    "200": well,
    "bad JSON": lambda place: refused_with(place, 400, body=b"{"),
    "unknown model": lambda place: refused_with(place, 404, model="nope"),
    "413": lambda place: refused_with(place, 413, body=b" " * 5000),
    "engine 400": lambda place: refused_with(place, 400, script=Script(status=400)),
    "engine 500": lambda place: refused_with(place, 502, script=Script(status=500)),
    "engine 503": lambda place: refused_with(place, 429, script=Script(status=503)),
    "engine refuses": engine_refuses,
    "no first byte": lambda place: refused_with(place, 504, script=Script(blackhole=True)),
    "cut": cut,
    "error event": error_event,
    "left in the body": left_in_the_body,
    "left in the queue": left_in_the_queue,
    "left before the first event": left_before_the_first_event,
    "left in the middle": left_in_the_middle,
    "a fault inside": fault_inside,
}
LEFT = [name for name in EXITS if name.startswith("left")]


async def ready(gateway: RunningGateway) -> None:
    async with asyncio.timeout(HANG_SECONDS), RawClient(gateway.url) as client:
        while (await client.ask("/readyz")).status != 200:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def one_place(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> AsyncIterator[Place]:
    relay, probe = FAST, {"period_seconds": 0.02}
    async with gateway_over({"e1": engine}, limits=LIMITS, relay=relay, probe=probe) as gateway:
        place = Place(gateway, engine, await RawClient(gateway.url).connect(), path, False)
        try:
            await ready(gateway)
            yield place
        finally:
            place.client.hang_up()


@pytest.mark.parametrize("path", GENERATING)
async def test_o_can_2_the_slot_comes_back_on_every_exit(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    """Each way to end equally often, shuffled; then at once a good request, where possible on the same connection."""
    chance = random.Random(path)
    names = (list(EXITS) * ROUNDS)[: max(ROUNDS, len(EXITS) * 4)]
    chance.shuffle(names)
    async with one_place(engine, gateway_over, path) as place:
        for number, name in enumerate(names):
            place.stream = chance.random() < 0.5
            where = f"round {number}: {name}, stream {place.stream}"
            await EXITS[name](place)
            if name in LEFT or place.client.end is not None or name in ("413", "cut"):
                await place.renew()
            response = await place.ask(stream=False)
            assert response is not None, where
            assert response.status == 200, f"{where}: {response.status} {response.body[:200]!r}"
            assert place.gateway.app.admission.open_leases == 0, where
        assert (await place.gateway.metrics()).sum("serving_rejections_total", reason="overloaded") == 0
