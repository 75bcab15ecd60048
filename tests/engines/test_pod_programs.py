"""The other programs of an engine's pod: the wait for an accelerator's memory, and the startup probe that wants a token."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine

FOLDER = Path(__file__).resolve().parents[2] / "serving" / "engines" / "pod"
TOTAL = 288_000_000_000


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """Device files and what the kernel says of them; each look of the program is one second and one step of `used`."""

    def __init__(self, folder: Path, used: dict[str, list[int]]) -> None:
        self.devices, self.kernel = folder / "dri", folder / "drm"
        self.devices.mkdir()
        self._used = used
        self.seconds = 0
        for name in used:
            (self.devices / name).touch()
            (self.kernel / name / "device").mkdir(parents=True)
            (self.kernel / name / "device" / "mem_info_vram_total").write_text(f"{TOTAL}\n")
        self.step(0)

    def step(self, seconds: float) -> None:
        for name, used in self._used.items():
            (self.kernel / name / "device" / "mem_info_vram_used").write_text(f"{used[min(self.seconds, len(used) - 1)]}\n")
        self.seconds += 1

    def wait(self, seconds: str) -> int:
        found = program("wait_for_memory").main(
            [seconds], self.devices, self.kernel, clock=lambda: float(self.seconds), sleep=self.step
        )
        return int(found)


def test_an_engine_waits_until_all_of_its_devices_are_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {"renderD128": [0], "renderD129": [TOTAL // 2, TOTAL // 2, TOTAL // 2, TOTAL // 20]})
    assert machine.wait("60") == 0
    assert capsys.readouterr().out == "waiting for memory: renderD129 50%\n2 devices are free\n"
    assert machine.seconds == 4


def test_memory_that_stays_in_use_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Machine(tmp_path, {"renderD128": [TOTAL]}).wait("5") == 1
    assert "after 5 s memory is still in use: renderD128 100%" in capsys.readouterr().err


def test_a_pod_without_a_device_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Machine(tmp_path, {}).wait("5") == 1
    assert "gave this pod no accelerator" in capsys.readouterr().err


def test_a_driver_that_says_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {"renderD128": [0]})
    (machine.kernel / "renderD128" / "device" / "mem_info_vram_total").unlink()
    assert machine.wait("5") == 1
    assert "is the driver loaded" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wait_for_memory", "first_token"])
def test_a_wrong_call_says_what_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(name).main([]) == 2
    assert f"usage: python3 {name}.py" in capsys.readouterr().err


async def probe(*words: str, environment: dict[str, str]) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", str(FOLDER / "first_token.py"), *words, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_an_engine_that_gives_a_token_has_started(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("new\nold\n")
    async with ScriptedEngine("tiny") as engine:
        assert await probe(str(engine.port), "tiny", environment={"SERVING_ENGINE_SECRET_FILE": str(secret)}) == (0, "")
    request = engine.log.requests[-1]
    assert request.header("x-serving-engine-secret") == "new"


async def test_an_engine_that_refuses_or_is_not_there_has_not(tmp_path: Path) -> None:
    async with ScriptedEngine("tiny", default=Script(status=500)) as engine:
        port = str(engine.port)
        status, said = await probe(port, "tiny", environment={})
    assert status == 1 and "the engine answers 500" in said
    status, said = await probe(port, "tiny", environment={})
    assert status == 1 and "no token yet" in said
