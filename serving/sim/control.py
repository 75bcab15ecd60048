"""The process's own address: all its engines with what they do wrong, also those whose ports are closed."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serving.core.errors import ConfigurationError
from serving.sim.connection import SharedState, configure, listen
from serving.sim.errors import EngineError, dump
from serving.sim.exchange import Exchange, Gone, Message, Receive, Send
from serving.sim.faults import read_faults

if TYPE_CHECKING:
    from serving.sim.engine import SimulatedEngine

_ONE = re.compile(r"/sim/engines/(\d+)/faults")


class Control:
    """`GET /sim/engines` lists them; `POST /sim/engines/{number}/faults` and `POST /sim/faults` (all) change them."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = engines
        self._state = SharedState()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await listen(listener, configure(self, 5.0), self._state)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.cut()  # type: ignore[union-attr]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, [(b"x-serving-simulated", b"control")])
        try:
            await self._answer(exchange)
        except EngineError as error:
            await exchange.error(error)
        except Gone:
            pass

    async def _answer(self, exchange: Exchange) -> None:
        chosen = self._chosen(exchange.path)
        if exchange.method == "POST" and exchange.path != "/sim/engines":
            try:
                faults = read_faults(await exchange.body())
            except ConfigurationError as error:
                raise EngineError(400, str(error)) from None
            for engine in chosen:
                await engine.set_faults(faults)
        elif exchange.method != "GET":
            raise EngineError(405, "Ask with GET or POST.")
        await exchange.whole(200, dump([_shown(engine) for engine in chosen]))

    def _chosen(self, path: str) -> Sequence[SimulatedEngine]:
        if path in ("/sim/engines", "/sim/faults"):
            return self._engines
        found = _ONE.fullmatch(path)
        if found is None:
            raise EngineError(404, "There are /sim/engines, /sim/faults and /sim/engines/{number}/faults.")
        number = int(found[1])
        if number >= len(self._engines):
            raise EngineError(404, f"There is no engine {number}; they are numbered from 0 to {len(self._engines) - 1}.")
        return [self._engines[number]]


def _shown(engine: SimulatedEngine) -> dict[str, object]:
    return {
        "engine": engine.index,
        "url": engine.url,
        "up": engine.is_up,
        "running": sum(model.running for model in engine.models),
        "waiting": sum(model.waiting for model in engine.models),
        "faults": engine.faults.model_dump(exclude_defaults=True),
    }
