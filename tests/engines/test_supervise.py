"""`serving up`'s supervision with small programs in the places of engine and gateway; every process is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serving.engines.supervise import Backoff
from tests.doubles.real_engine import free_port
from tests.engines.processes import DEADLINE_SECONDS, Marked, marked, until

FAKE_UP = Path(__file__).with_name("programs") / "fake_up.py"
READY = "All ready."


class Up:
    """One supervising process, with what it wrote and what runs under it."""

    def __init__(self, processes: Marked, folder: Path, *words: str) -> None:
        self.processes = processes
        self.folder = folder
        self.engine_port, self.gateway_port = free_port(), free_port()
        folder.mkdir(exist_ok=True)
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                (sys.executable, str(FAKE_UP), str(self.engine_port), str(self.gateway_port), str(folder), *words),
                stdout=out,
                stderr=err,
                env=processes.environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
            )
        processes.started.append(self.process)

    def out(self) -> str:
        return (self.folder / "out").read_text()

    def err(self) -> str:
        return (self.folder / "err").read_text()

    def until_said(self, text: str) -> None:
        until(lambda: text in self.out(), f"{text!r} in {self.out()!r} {self.err()!r}")

    def status(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def program(self, port: int) -> psutil.Process:
        """The engine or gateway on `port`; its keeper has the port among its arguments too."""
        return until(lambda: self._of(port, keeper=False), f"a program on {port}")[0]

    def keeper(self, port: int) -> psutil.Process:
        return until(lambda: self._of(port, keeper=True), f"a keeper for {port}")[0]

    def _of(self, port: int, *, keeper: bool) -> list[psutil.Process]:
        found = []
        for process in self.processes.alive(str(port)):
            words = process.cmdline()
            if process.pid != self.process.pid and any("keeper.py" in word for word in words) == keeper:
                found.append(process)
        return found


@pytest.fixture
def processes() -> Iterator[Marked]:
    yield from marked()


def ready_up(processes: Marked, folder: Path, *words: str) -> Up:
    up = Up(processes, folder, *words)
    up.until_said(READY)
    assert len(processes.alive("core-of-engine")) == 2
    return up


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_wish_to_stop_ends_gateway_then_engine_and_is_a_success(
    processes: Marked, tmp_path: Path, number: signal.Signals
) -> None:
    up = ready_up(processes, tmp_path)
    up.process.send_signal(number)
    assert up.status() == 0
    assert processes.gone()
    assert up.out().splitlines()[-2:] == ["Stopping the gateway.", "Stopping the engine."]


def test_the_terminals_interrupt_reaches_only_the_supervisor(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    own_group = os.getpgid(up.process.pid)
    others = [process for process in processes.alive() if process.pid != up.process.pid]
    assert len(others) == 6
    assert own_group not in {os.getpgid(process.pid) for process in others}


def test_killed_outright_it_leaves_nothing(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    up.process.kill()
    up.status()
    until(processes.gone, "keepers end what is left")


def test_killed_outright_during_start_it_leaves_nothing(processes: Marked, tmp_path: Path) -> None:
    up = Up(processes, tmp_path, "never-ready")
    until(lambda: processes.alive("core-of-engine"), "the engine starts")
    up.process.kill()
    up.status()
    until(processes.gone, "keepers end what is left")


def test_a_killed_engine_is_restarted_without_its_old_core_while_the_gateway_stays(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    engine, gateway = up.program(up.engine_port), up.program(up.gateway_port)
    (core,) = engine.children()
    engine.kill()
    up.until_said("The engine is ready again after")
    assert "The engine was killed by SIGKILL (often: out of memory); it is started again in 1 s." in up.out()
    assert not core.is_running()
    assert up.program(up.engine_port).pid != engine.pid
    assert up.program(up.gateway_port) == gateway


def test_a_killed_gateway_is_restarted_at_once_while_the_engine_stays(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    engine, gateway = up.program(up.engine_port), up.program(up.gateway_port)
    gateway.kill()
    up.until_said("The gateway is ready again after")
    assert "it is started again now." in up.out()
    assert up.program(up.gateway_port).pid != gateway.pid
    assert up.program(up.engine_port) == engine


def test_a_killed_keeper_costs_its_own_program_only(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    engine, gateway = up.program(up.engine_port), up.program(up.gateway_port)
    (core,) = engine.children()
    up.keeper(up.engine_port).kill()
    up.until_said("The engine is ready again after")
    assert not engine.is_running()
    assert not core.is_running()
    assert up.program(up.gateway_port) == gateway
    up.process.send_signal(signal.SIGINT)
    assert up.status() == 0
    assert processes.gone()


def test_an_engine_that_dies_before_it_was_ready_ends_everything_with_its_last_words(processes: Marked, tmp_path: Path) -> None:
    up = Up(processes, tmp_path, "die-at-start")
    assert up.status() == 1
    assert processes.gone()
    assert "The engine ended with status 7 before it was ready; everything is stopped." in up.err()
    assert str(tmp_path / "engine.log") in up.err()
    assert "RuntimeError: the cache does not fit" in up.err()


@pytest.mark.parametrize(("word", "name"), [("exit-2", "engine"), ("gateway-exit-2", "gateway")])
def test_a_configuration_error_of_a_program_is_not_tried_again(processes: Marked, tmp_path: Path, word: str, name: str) -> None:
    up = Up(processes, tmp_path, word)
    assert up.status() == 1
    assert processes.gone()
    assert f"The {name} ended with status 2" in up.err()
    assert "usage: no such flag" in up.err()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wish_to_stop_during_start_is_a_success(processes: Marked, tmp_path: Path, number: signal.Signals) -> None:
    up = Up(processes, tmp_path, "never-ready")
    up.until_said("engine: loading weights")
    up.process.send_signal(number)
    assert up.status() == 0
    assert processes.gone()
    assert READY not in up.out()


def test_an_engine_that_does_not_stop_is_killed_when_its_time_is_over(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path, "deaf", "brief")
    up.process.send_signal(signal.SIGTERM)
    assert up.status() == 0
    assert processes.gone()


def test_a_second_interrupt_stops_at_once(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path, "deaf")
    up.process.send_signal(signal.SIGINT)
    up.until_said("Stopping the engine.")

    def interrupted() -> bool:
        up.process.send_signal(signal.SIGINT)
        return up.process.poll() is not None

    until(interrupted, "an engine with a minute to stop ends now")
    assert up.status() == 0
    assert processes.gone()


def test_two_at_once_do_not_touch_each_other(processes: Marked, tmp_path: Path) -> None:
    first = ready_up(processes, tmp_path / "first")
    second = Up(processes, tmp_path / "second")
    second.until_said(READY)
    engine = second.program(second.engine_port)
    first.process.kill()
    first.status()
    until(lambda: len(processes.alive("core-of-engine")) == 2, "the first's programs end")
    second.process.send_signal(signal.SIGINT)
    assert second.status() == 0
    assert "is started again" not in second.out()
    assert not engine.is_running()
    until(processes.gone, "nothing is left")


def test_the_log_says_what_the_program_wrote_in_all_its_runs(processes: Marked, tmp_path: Path) -> None:
    up = ready_up(processes, tmp_path)
    engine = up.program(up.engine_port)
    engine.kill()
    up.until_said("The engine is ready again after")
    lines = (tmp_path / "engine.log").read_text().splitlines()
    assert lines[0].startswith(f"engine {engine.pid} core ")
    assert lines[1].startswith(f"engine {up.program(up.engine_port).pid} core ")


def test_delays_double_to_their_ceiling() -> None:
    backoff = Backoff(first_delay_seconds=1.0)
    assert [backoff.died(now=100.0) for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_first_delay_of_nothing_is_followed_by_a_second() -> None:
    backoff = Backoff(first_delay_seconds=0.0)
    assert [backoff.died(now=100.0) for _ in range(3)] == [0.0, 1.0, 2.0]


def test_a_minute_of_readiness_is_forgiveness_and_less_is_not() -> None:
    backoff = Backoff(first_delay_seconds=1.0)
    backoff.became_ready(now=0.0)
    assert backoff.died(now=10.0) == 1.0
    backoff.became_ready(now=20.0)
    assert backoff.died(now=79.9) == 2.0
    backoff.became_ready(now=100.0)
    assert backoff.died(now=160.0) == 1.0
    assert backoff.died(now=1000.0) == 2.0, "it was not ready since"
