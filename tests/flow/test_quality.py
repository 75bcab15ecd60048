"""Known-answer probes in a whole gateway under load: what operators see, who is ejected, and what users get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.core.errors import ConfigurationError
from serving.fleet.known_answers import read_reference
from serving.settings import Settings
from serving.sim.engine import SimulatedEngine
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import become
from tests.fleet.answers import completion
from tests.fleet.test_known_answers import REFERENCE
from tests.flow.conftest import all_ready, chat

RIGHT, WRONG = Script(body=completion()), Script(body=completion(words="hgfedcba"))
PERIOD_SECONDS = 0.1
USERS = 4


def settings_over(*engines: ScriptedEngine, reference: Path | None, **quality: Any) -> Settings:
    watch = {"enabled": True, "period_seconds": PERIOD_SECONDS, **quality}
    if reference is not None:
        reference.write_text(REFERENCE.model_copy(update={"target": "cpu-epyc"}).model_dump_json())
        watch["references"] = {"p": str(reference)}
    return Settings.model_validate(
        {
            "endpoints": [
                {"name": f"e{number}", "url": engine.url, "model": "tiny", "pool": "p", "target": "cpu-epyc"}
                for number, engine in enumerate(engines, start=1)
            ],
            "quality": watch,
            "probe": {"period_seconds": 0.05},
            "health": {"slow_start_seconds": 0},
            "prices": {"models": {"tiny": {"prompt": 1.0, "output": 2.0}}},
        }
    )


def says(gateway: RunningGateway, name: str) -> bool | None:
    return gateway.app.fleet.snapshot.statuses[name].answers_rightly


@pytest.mark.parametrize("eject", [True, False])
async def test_one_that_begins_to_answer_wrongly_under_load(engine: ScriptedEngine, tmp_path: Path, eject: bool) -> None:
    engine.probes = RIGHT
    async with ScriptedEngine() as other:
        other.probes = RIGHT
        settings = settings_over(engine, other, reference=tmp_path / "probes.json", eject=eject)
        async with RunningGateway(settings) as gateway:
            await become(lambda: says(gateway, "e1") and says(gateway, "e2"))
            statuses: list[int] = []
            over = asyncio.Event()

            async def use() -> None:
                while not over.is_set():
                    statuses.append((await ask(gateway.url, "/v1/chat/completions", chat())).status)

            users = [asyncio.create_task(use()) for _ in range(USERS)]
            await become(lambda: engine.log.requests and other.log.requests)
            engine.probes = WRONG
            await become(lambda: says(gateway, "e1") is False)
            asked, served = len(engine.log.requests), len(statuses)
            await become(lambda: len(statuses) >= served + 200)
            if not eject:  # a slow one gets few of so many, and gets them all the same
                await become(lambda: len(engine.log.requests) > asked + USERS)
            metrics = await gateway.metrics()
            report = (await ask(gateway.url, "/fleet")).json["pools"][0]["endpoints"]
            over.set()
            await asyncio.gather(*users)
            assert set(statuses) == {200}
            assert metrics.sum("serving_quality_state", endpoint="e1", pool="p", target="cpu-epyc") == 0
            assert metrics.sum("serving_quality_state", endpoint="e2") == 1
            assert metrics.sum("serving_quality_probes_total", pool="p", result="outside") >= 2
            tokens = metrics.sum("serving_quality_tokens_total", tenant="serving-quality", kind="prompt")
            assert tokens >= 48 * 4
            assert metrics.sum("serving_quality_dollars_total", kind="prompt") == pytest.approx(tokens / 1e6)
            assert "answers wrongly" in next(each["reason"] for each in report if each["name"] == "e1")
            if eject:  # with what was under way when it went out
                assert len(engine.log.requests) <= asked + USERS
            engine.probes = RIGHT
            await become(lambda: says(gateway, "e1"))


async def test_a_model_whose_engines_all_answer_wrongly_answers_503(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.probes = RIGHT
    async with RunningGateway(settings_over(engine, reference=tmp_path / "probes.json", eject=True)) as gateway:
        await become(lambda: says(gateway, "e1"))
        engine.probes = WRONG
        await become(lambda: says(gateway, "e1") is False)
        answer = await ask(gateway.url, "/v1/chat/completions", chat())
        assert answer.status == 503 and answer.header("retry-after")
        assert (await ask(gateway.url, "/health")).json["models"] == {"tiny": False}
        (shown,) = (await ask(gateway.url, "/fleet")).json["pools"][0]["endpoints"]
        assert "answers wrongly and gets no requests" in shown["reason"]
        engine.probes = RIGHT
        await become(lambda: says(gateway, "e1"))
        assert (await ask(gateway.url, "/v1/chat/completions", chat())).status == 200


async def test_by_its_own_answers_nobody_is_ejected(engine: ScriptedEngine) -> None:
    engine.probes = RIGHT
    async with RunningGateway(settings_over(engine, reference=None)) as gateway:
        await become(lambda: says(gateway, "e1"))
        engine.probes = WRONG
        await become(lambda: says(gateway, "e1") is False)
        assert (await ask(gateway.url, "/v1/chat/completions", chat())).status == 200


async def test_it_is_off_by_default(engine: ScriptedEngine) -> None:
    settings = Settings.model_validate({"endpoints": [{"name": "e1", "url": engine.url, "model": "tiny"}]})
    async with RunningGateway(settings) as gateway:
        await all_ready(gateway)
        assert (await gateway.metrics()).select("serving_quality_state") == []
    probes = [each.header("x-serving-probe") for each in engine.log.control_requests]
    assert "token" in probes and "quality" not in probes


async def test_a_wrong_file_ends_the_start(engine: ScriptedEngine, tmp_path: Path) -> None:
    settings = settings_over(engine, reference=tmp_path / "probes.json")
    (tmp_path / "probes.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"quality\.references"):
        RunningGateway(settings)


async def test_known_answers_are_made_and_found_again(engine: ScriptedEngine, tmp_path: Path) -> None:
    """`serving gate probes` over real HTTP, and a gateway that finds the same engine inside its band."""
    path = tmp_path / "probes.json"
    engine.default = engine.probes = RIGHT
    words = ["gate", "probes", engine.url, "--target", "cpu-epyc", "--output", str(path), "--repeats", "5"]
    done = await asyncio.to_thread(CliRunner().invoke, cli.app, words)
    assert done.exit_code == 0, done.output
    reference = read_reference(path)
    assert reference.repeats == 5 and reference.band_nats >= 4 * reference.floor_nats
    settings = {
        "endpoints": [{"name": "e1", "url": engine.url, "model": "tiny", "pool": "p", "target": "cpu-epyc"}],
        "quality": {"enabled": True, "period_seconds": PERIOD_SECONDS, "references": {"p": path}, "eject": True},
    }
    async with RunningGateway(Settings.model_validate(settings)) as gateway:
        await become(lambda: says(gateway, "e1"))


@pytest.mark.parametrize(
    ("words", "said"), [([], "does not repeat itself"), (["--model", "other"], "other"), (["--repeats", "1"], "")]
)
async def test_known_answers_of_nothing_are_refused(
    simulated: SimulatedEngine, tmp_path: Path, words: list[str], said: str
) -> None:
    """The words of a simulated engine are chance."""
    path = tmp_path / "probes.json"
    words = ["gate", "probes", simulated.url, "--target", "cpu-epyc", "--output", str(path), *words]
    done = await asyncio.to_thread(CliRunner().invoke, cli.app, words)
    assert done.exit_code != 0 and said in str(done.exception)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_reference(path)
