"""`serving sim`: any number of simulated engines in one process, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import resource
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from serving.catalog.load import load_catalog
from serving.core.errors import ConfigurationError
from serving.sim.connection import bind
from serving.sim.control import Control
from serving.sim.drive import SimulatedClock
from serving.sim.engine import SimulatedEngine
from serving.sim.faults import Faults
from serving.sim.plan import EnginePlan, plan

log = logging.getLogger("serving.sim")

_FILES_PER_ENGINE = 200
_PORTS = 65535
_NUMBER = re.compile("[0-9]{1,5}")
"""Of an engine; there are no more than a few thousand."""


@dataclass(frozen=True)
class SimOptions:
    """The command line."""

    profile: str
    catalog_root: Path
    host: str = "127.0.0.1"
    port: int = 8001
    count: int = 1
    speed: float = 1.0
    seed: int = 0
    adapters: tuple[str, ...] = ()
    faults: Faults = field(default_factory=Faults)
    faulty: tuple[int, ...] | None = None
    """Numbers of the engines that have the faults; None: all."""
    drain_seconds: float | None = None
    """Over the profile's `shutdown-timeout`."""
    control_port: int | None = None
    every_metric: bool = False


def run_sim(options: SimOptions) -> int:
    """Run until SIGTERM or SIGINT. Returns the process's exit status.

    Raises:
        ConfigurationError: the options are wrong or a port is taken; nothing is left running.
    """
    engine_plan = checked(options)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    _raise_file_limit(options.count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(engine_plan, options))


def checked(options: SimOptions) -> EnginePlan:
    """The plan of all engines. Raises: ConfigurationError, for options that contradict each other."""
    engine_plan = plan(load_catalog(options.catalog_root), options.profile, adapters=options.adapters)
    if options.port + options.count - 1 > _PORTS:
        raise ConfigurationError(f"--count: {options.count} engines from port {options.port} on need ports above {_PORTS}")
    if options.faulty is not None and (wrong := [number for number in options.faulty if number >= options.count]):
        raise ConfigurationError(f"--faulty: there is no engine {wrong[0]}; they are numbered from 0 to {options.count - 1}")
    if options.faulty is not None and options.faults == Faults():
        raise ConfigurationError("--faulty: needs a --fault, since engines without one are healthy")
    _check_adapters(engine_plan)
    if options.drain_seconds is not None and not math.isfinite(options.drain_seconds):
        raise ConfigurationError("--drain-seconds: must be a number of seconds, since the process would never end")
    ports = range(options.port, options.port + options.count)
    if options.control_port in ports:
        raise ConfigurationError(f"--control-port: {options.control_port} is the port of a simulated engine")
    return engine_plan


def _check_adapters(engine_plan: EnginePlan) -> None:
    """Raises: ConfigurationError, for names that one engine cannot have side by side."""
    for number, name in enumerate(engine_plan.models):
        if not name.strip():
            raise ConfigurationError("--lora: must be a name, not nothing")
        if name in engine_plan.models[:number]:
            raise ConfigurationError(f"--lora: {name} is the name of another model of this engine; each needs its own")


async def _run(engine_plan: EnginePlan, options: SimOptions) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    clock = SimulatedClock(options.speed)
    engines = [
        SimulatedEngine(
            engine_plan,
            clock,
            host=options.host,
            port=options.port + index,
            index=index,
            seed=options.seed,
            every_metric=options.every_metric,
        )
        for index in range(options.count)
    ]
    async with contextlib.AsyncExitStack() as open_:
        await _start(engines, options, open_)
        for index in range(options.count) if options.faulty is None else options.faulty:
            if options.faults != Faults():
                await engines[index].set_faults(options.faults)
        _say_ready(engine_plan, options)
        if await _stopped_or_gone(stopped, engines):
            log.info("the only engine was ordered to stop: %s", engines[0].faults.stop)
            return 0 if engines[0].faults.stop in ("drain", "abort", "abort_silently") else 1
        drain_seconds = engine_plan.shutdown_seconds if options.drain_seconds is None else options.drain_seconds
        log.info("stopping; running requests may go on for %g s", drain_seconds)
        # A second signal ends it at once.
        again = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, again.set)
        ends = {loop.create_task(engine.end(drain_seconds=drain_seconds)) for engine in engines if engine.is_up}
        hurry = loop.create_task(again.wait())
        await asyncio.wait({hurry, loop.create_task(_all(ends))}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
    return 0


async def _stopped_or_gone(stopped: asyncio.Event, engines: list[SimulatedEngine]) -> bool:
    """Whether the one engine of this process is gone, which ends it as vLLM ends with its engine."""
    waits = [asyncio.ensure_future(stopped.wait())]
    if len(engines) == 1:
        waits.append(asyncio.ensure_future(engines[0].gone.wait()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return not stopped.is_set()


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


async def _start(engines: list[SimulatedEngine], options: SimOptions, open_: contextlib.AsyncExitStack) -> None:
    for engine in engines:
        open_.push_async_callback(engine.close)
        try:
            await engine.start()
        except OSError as error:
            raise ConfigurationError(f"--port: {options.host}:{engine.port} cannot be listened on: {error.strerror}") from None
    if options.control_port is None:
        return
    try:
        listener = bind(options.host, options.control_port)
    except OSError as error:
        raise ConfigurationError(f"--control-port: {options.control_port} cannot be listened on: {error.strerror}") from None
    control = Control(engines)
    await control.start(listener)
    open_.push_async_callback(control.close)


def _say_ready(engine_plan: EnginePlan, options: SimOptions) -> None:
    last = options.port + options.count - 1
    ports = str(options.port) if last == options.port else f"{options.port}-{last}"
    log.warning(
        "SIMULATED: %d engine(s) of profile %s, model %s, on %s ports %s at %g x the wall clock; nothing here is a measurement",
        options.count,
        engine_plan.profile,
        engine_plan.model,
        options.host,
        ports,
        options.speed,
    )


def _raise_file_limit(engines: int) -> None:
    """Each engine's connections are open files."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + engines * _FILES_PER_ENGINE
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, wanted), most))


def parse_numbers(text: str) -> tuple[int, ...]:
    """`0,2,5-7` as numbers. Raises: ConfigurationError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        fits = _NUMBER.fullmatch(first) and (not dash or _NUMBER.fullmatch(last))
        if not fits or int(first) > int(last or first):
            raise ConfigurationError(f"--faulty: must be numbers like 0,2,5-7, not {text!r}")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
