"""One simulated engine on one port: its life, its faults and its routes."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from typing import Any

import uvicorn

from serving import __version__
from serving.core.clock import wall_seconds
from serving.sim.application import Application
from serving.sim.connection import SharedState, bind, configure, listen
from serving.sim.drive import Driver, SimulatedClock
from serving.sim.exposition import histograms
from serving.sim.faults import Faults, Stop
from serving.sim.http_facts import HttpFacts
from serving.sim.model import EngineModel
from serving.sim.plan import EnginePlan

log = logging.getLogger("serving.sim")

_LAST_WORDS_SECONDS = 1.0
_DRAWS = 1 << 32
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
        self.is_draining = False
        self.is_up = False
        self.gone = asyncio.Event()
        """Set when it was ordered to stop and does not come back by itself."""
        self.in_flight = 0
        self.generating: set[asyncio.Task[Any]] = set()
        self.marks = [(b"x-serving-simulated", f"{plan.profile}; serving {__version__}".encode("latin-1"))]
        self.fingerprint = f"vllm-{plan.version}-simulated"
        self.seed = seed + index
        self.chance = random.Random(self.seed)
        self._drawn = self.seed
        self._faults = Faults()
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._state = SharedState()
        self._config: uvicorn.Config = configure(Application(self), plan.keep_alive_seconds)
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
                    capacity_blocks=plan.usable_blocks,
                    histograms=histograms(plan.version, plan.limits.max_model_len),
                    keeps_prefixes=plan.keeps_prefixes,
                    seed=self.seed * 1000 + rank,
                ),
                self.clock,
            )
            for rank in range(plan.ranks)
        ]
        self.http = HttpFacts()
        self.created_seconds = wall_seconds()
        self.is_dead = self.is_draining = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def served(self) -> list[str]:
        """The names of the models that it answers to."""
        return [self.plan.model, *self.adapters]

    @property
    def models(self) -> list[EngineModel]:
        return [driver.model for driver in self.drivers]

    def draw(self, seed: int | None) -> int:
        """What makes a sampled answer another one than the last; the same for the same seed of a request."""
        if seed is not None:
            return 1 + seed % _DRAWS
        self._drawn += 1
        return 1 + self._drawn % _DRAWS

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
        """As vLLM 0.32 on SIGTERM. While it drains its port is open and its health is green, but what comes new is answered 500;
        what runs goes on for so long, and what is left then fails as with a dead engine."""
        running = set(self.generating)
        if running and drain_seconds:
            self.is_draining = True
            await asyncio.wait(running, timeout=drain_seconds)
        self.refuse()
        self.is_dead = True
        self._fail_all()
        if self.generating:
            await asyncio.wait(set(self.generating), timeout=_LAST_WORDS_SECONDS)
        self._die(resets=False)

    async def _fall_silent(self) -> None:
        self.refuse()
        for driver in self.drivers:
            driver.model.is_hung = True
            driver.wake()
        if self.generating:
            await asyncio.wait(set(self.generating))
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
        if self._ending is not None and self._ending is not asyncio.current_task():
            # A stop that is under way would end what begins now.
            self._ending.cancel()
            self.is_draining = False
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
        elif stop == "abort_silently":
            self._ending = asyncio.get_running_loop().create_task(self._fall_silent())
        else:
            drain_seconds = self.plan.shutdown_seconds if stop == "drain" else 0.0
            self._ending = asyncio.get_running_loop().create_task(self.end(drain_seconds=drain_seconds))

    def _fail_all(self) -> None:
        now = self.clock.now()
        for driver in self.drivers:
            driver.model.fail(now)
            driver.wake()

    def _restart(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self.is_up:
            self._die()
        self._ending = asyncio.get_running_loop().create_task(self.set_faults(Faults()))

    def _after(self, seconds: float, call: Any) -> None:
        self._later = asyncio.get_running_loop().call_later(seconds, call)

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
