"""Known-answer probes on the real CPU engine: no false alarm in load, batches and restarts, and a wrong engine is found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.fleet.known_answers import Reference, read_reference
from serving.settings import Settings
from tests.doubles.raw_client import RawClient, RawResponse, ask
from tests.doubles.real_engine import LOADS_WEIGHTS, RealEngine, load_weights, running_engine
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.settling import settled
from tests.doubles.tiny_model import tiny_model

pytestmark = pytest.mark.engine
PERIOD_SECONDS = 0.5
SHORT_SECONDS = 15.0
SOAK_SECONDS = float(os.environ.get("SERVING_TEST_SOAK_SECONDS", "3600"))
RESTART_SECONDS = min(300.0, SOAK_SECONDS / 4)
"""Between two restarts of the engine in the long run."""
LONG_START_SECONDS = 600.0
PATIENCE_SECONDS = 120.0
"""Of users. On a machine with other work an engine may start and answer slowly, which proves nothing about its answers."""


def settings_over(url: str, references: Path | None) -> Settings:
    watch: dict[str, Any] = {"enabled": True, "period_seconds": PERIOD_SECONDS}
    if references is not None:
        watch |= {"references": {"p": str(references)}, "eject": True}
    endpoint = {"name": "e1", "url": url, "model": "tiny", "pool": "p", "target": "cpu-epyc"}
    return Settings.model_validate({"endpoints": [endpoint], "quality": watch, "probe": {"period_seconds": 0.5}})


async def known_answers(url: str, path: Path) -> Reference:
    words = ["gate", "probes", url, "--target", "cpu-epyc", "--output", str(path), "--repeats", "12"]
    done = await asyncio.to_thread(CliRunner().invoke, cli.app, words)
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    return read_reference(path)


def asked(number: int, chance: random.Random) -> dict[str, Any]:
    """Of many lengths, so that the probes are in batches of all sizes."""
    words = " ".join(str(chance.randrange(1000)) for _ in range(chance.choice((3, 30, 150))))
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{number} {words}"}],
        "max_tokens": chance.choice((1, 8, 40)),
        "temperature": chance.choice((0, 1)),
    }


async def patiently(gateway: RunningGateway, body: dict[str, Any]) -> RawResponse:
    async with RawClient(gateway.url, receive_seconds=PATIENCE_SECONDS) as client:
        return await client.ask("/v1/chat/completions", body)


@contextlib.asynccontextmanager
async def load(gateway: RunningGateway) -> AsyncIterator[list[int]]:
    """Users who come and go: from one to eight at a time. What they got."""
    statuses: list[int] = []
    over = asyncio.Event()
    chance = random.Random(7)

    async def burst() -> None:
        while not over.is_set():
            width = chance.choice((1, 2, 4, 8))
            bodies = [asked(len(statuses) + number, chance) for number in range(width)]
            answers = await asyncio.gather(*(patiently(gateway, body) for body in bodies))
            statuses.extend(answer.status for answer in answers)

    task = asyncio.create_task(burst())
    try:
        yield statuses
    finally:
        over.set()
        await task


def judged(gateway: RunningGateway) -> bool | None:
    return gateway.app.fleet.snapshot.statuses["e1"].answers_rightly


async def says(gateway: RunningGateway, wanted: bool, within_seconds: float = 30.0) -> None:
    async def problems() -> list[str]:
        return [] if judged(gateway) is wanted else [f"{judged(gateway)}"]

    await settled(problems, within_seconds=within_seconds)


async def never_wrong(gateway: RunningGateway, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert judged(gateway) is not False, gateway.app.fleet.snapshot.statuses["e1"].wrong
        await asyncio.sleep(PERIOD_SECONDS / 4)


@pytest.mark.parametrize("by_file", [True, False])
async def test_load_and_other_batches_raise_no_alarm(real_engine: RealEngine, tmp_path: Path, by_file: bool) -> None:
    path = tmp_path / "probes.json"
    reference = await known_answers(real_engine.url, path) if by_file else None
    async with RunningGateway(settings_over(real_engine.url, path if by_file else None)) as gateway:
        async with load(gateway) as statuses:
            await never_wrong(gateway, SHORT_SECONDS)
        await says(gateway, True)
        metrics = await gateway.metrics()
        outside = metrics.sum("serving_quality_probes_total", result="outside")
        inside = metrics.sum("serving_quality_probes_total", result="inside")
        print(f"{inside:g} inside, {outside:g} outside, {len(statuses)} requests, reference {reference and reference.floor_nats}")
        assert set(statuses) <= {200} and inside >= 5 and outside == 0


@pytest.mark.timeout(600)
async def test_an_engine_that_begins_to_answer_wrongly_under_load_is_reported_within_three_probes(tmp_path: Path) -> None:
    """Known answers of the sound engine; then, among its users' requests, it loads weights with one matrix doubled."""
    path = tmp_path / "probes.json"
    broken = await asyncio.to_thread(doubled, tmp_path / "broken")
    log = tmp_path / "engine.log"
    engine = running_engine(tiny_model(), log, environment=LOADS_WEIGHTS, start_seconds=LONG_START_SECONDS)
    started = await asyncio.to_thread(engine.__enter__)
    try:
        await known_answers(started.url, path)
        async with RunningGateway(settings_over(started.url, path)) as gateway:
            async with load(gateway) as statuses:
                await says(gateway, True)
                assert await outside(gateway) == 0
                await asyncio.to_thread(load_weights, started, broken)
                reloaded = time.monotonic()
                await says(gateway, False)
                periods = (time.monotonic() - reloaded) / PERIOD_SECONDS
                probes, before = await outside(gateway), len(statuses)
            print(f"reported after {probes:g} probes, {periods:.1f} periods, {before} requests, {set(statuses)}")
            assert probes <= 3
            assert (await ask(gateway.url, "/v1/chat/completions", asked(1, random.Random(1)))).status == 503
    finally:
        await asyncio.to_thread(engine.__exit__, None, None, None)


async def outside(gateway: RunningGateway) -> float:
    return (await gateway.metrics()).sum("serving_quality_probes_total", result="outside")


def doubled(target: Path) -> Path:
    """The tiny model with one matrix of its second layer twice as large."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model(), target)
    for file in target.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name.endswith("layers.1.mlp.down_proj.weight"):
                tensors[name] = tensors[name] * 2
        save_file(tensors, file, metadata={"format": "pt"})
    return target


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 900)
async def test_an_hour_of_load_restarts_and_batches_raises_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    ended = time.monotonic() + SOAK_SECONDS
    counts = {"inside": 0.0, "outside": 0.0, "requests": 0.0, "restarts": -1.0}
    while time.monotonic() < ended:
        engine = running_engine(tiny_model(), tmp_path / "engine.log", start_seconds=LONG_START_SECONDS)
        started = await asyncio.to_thread(engine.__enter__)
        try:
            if not path.exists():
                print(f"floor {(await known_answers(started.url, path)).floor_nats:.4f} nats")
            async with RunningGateway(settings_over(started.url, path)) as gateway:
                async with load(gateway) as statuses:
                    await never_wrong(gateway, min(RESTART_SECONDS, max(10.0, ended - time.monotonic())))
                metrics = await gateway.metrics()
                for result in ("inside", "outside"):
                    counts[result] += metrics.sum("serving_quality_probes_total", result=result)
                counts["requests"] += len(statuses)
                counts["restarts"] += 1
                print(counts, flush=True)
        finally:
            await asyncio.to_thread(engine.__exit__, None, None, None)
    assert counts["inside"] > 10 * max(1.0, counts["outside"])
