"""`serving sim` as a process: many engines, their control address, and how it ends."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from serving.core.errors import ConfigurationError
from serving.sim.faults import Faults
from serving.sim.run import SimOptions, checked, parse_numbers
from tests.doubles.catalogs import copy_of_catalog
from tests.engines.processes import until

PROFILE = "smollm2-135m-cpu"
ENGINES = 20


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=180) as answer:
        return json.loads(answer.read() or b"null")


def free_ports(count: int) -> int:
    """The first of so many free ones in a row: below those that the system gives to connections, which other tests use up by the
    thousand."""
    listening = {each.laddr.port for each in psutil.net_connections("tcp") if each.laddr and each.status == psutil.CONN_LISTEN}
    while listening & set(range(first := random.randrange(10_000, 32_000 - count), first + count)):
        pass
    return first


@contextmanager
def running(*words: str, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "serving", "sim", "--profile", PROFILE, "--port", str(port), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if "SIMULATED" in line), None)
        assert line is not None, "it ended before it was ready"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_one_process_holds_many_engines_that_fail_one_by_one() -> None:
    port = free_ports(ENGINES + 1)
    control = f"http://127.0.0.1:{port + ENGINES}"
    words = ("--count", str(ENGINES), "--control-port", str(port + ENGINES), "--fault", "error_status=500", "--faulty", "1,3-4")
    with running(*words, port=port) as process:
        found = ask(f"{control}/sim/engines")
        assert [entry["engine"] for entry in found if entry["faults"]] == [1, 3, 4] and len(found) == ENGINES
        body = {"prompt": "a", "max_tokens": 2}
        assert ask(f"{found[0]['url']}/v1/completions", body)["usage"]["completion_tokens"] == 2
        with pytest.raises(urllib.error.HTTPError, match="500") as refused:
            ask(f"{found[1]['url']}/v1/completions", body)
        refused.value.close()
        ask(f"{control}/sim/engines/2/faults", {"refuse": True})
        with pytest.raises(urllib.error.URLError, match="refused"):
            ask(f"{found[2]['url']}/health")
        assert not any(entry["faults"] for entry in ask(f"{control}/sim/faults", {}))
        assert ask(f"{found[2]['url']}/version")["simulated"] == PROFILE
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_an_idle_process_sleeps() -> None:
    port = free_ports(ENGINES)
    with running("--count", str(ENGINES), port=port) as process:
        watched = psutil.Process(process.pid)
        # It may have a little of its start to do yet. One that never sleeps is seen on a busy machine, too: it gets little of the
        # processor there, but often.
        assert until(lambda: turns_in_a_second(watched) < 1.0 * ENGINES, "it sleeps")


def turns_in_a_second(process: psutil.Process) -> float:
    """How often it had the processor, or for how many milliseconds, if that is more."""
    turns, seconds = sum(process.num_ctx_switches()), sum(process.cpu_times()[:2])
    with pytest.raises(psutil.TimeoutExpired):
        process.wait(1.0)
    return max(sum(process.num_ctx_switches()) - turns, 1000 * (sum(process.cpu_times()[:2]) - seconds))


@pytest.mark.parametrize(("words", "is_whole"), [((), True), (("--drain-seconds", "0"), False)])
def test_sigterm_lets_requests_end_or_aborts_them(words: tuple[str, ...], is_whole: bool) -> None:
    port = free_ports(1)
    with running(*words, port=port) as process:
        body = json.dumps({"prompt": "a", "max_tokens": 40, "stream": True, "ignore_eos": True}).encode()
        url = f"http://127.0.0.1:{port}/v1/completions"
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=180) as answer:
            first = answer.readline()
            assert first.startswith(b"data: {")
            process.send_signal(signal.SIGTERM)
            try:
                rest = answer.read()
            except OSError:
                rest = b""
            except Exception as error:  # noqa: BLE001 - http.client.IncompleteRead has no better base
                rest = getattr(error, "partial", b"")
        assert (b'"finish_reason":"length"' in rest, b'{"error": ' in rest) == (is_whole, not is_whole)
        assert until(lambda: process.poll() is not None, "the process ends")
        assert process.returncode == 0


@pytest.mark.parametrize(("stop", "status"), [("die", 1), ("abort", 0)])
def test_a_process_ends_with_its_only_engine(stop: str, status: int) -> None:
    port = free_ports(1)
    with running(port=port) as process:
        ask(f"http://127.0.0.1:{port}/sim/faults", {"stop": stop})
        assert process.wait(120) == status


def options(root: Path, **more: Any) -> SimOptions:
    return SimOptions(**{"profile": PROFILE, "catalog_root": copy_of_catalog(root), **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"port": 65_000, "count": 1000}, "--count: 1000 engines"),
        ({"count": 2, "faulty": (2,), "faults": Faults(hang=True)}, "--faulty: there is no engine 2"),
        ({"faulty": (0,)}, "--faulty: needs a --fault"),
        ({"adapters": ("sql", "sql")}, "--lora: sql is the name of another model"),
        ({"adapters": ("smollm2-135m-instruct",)}, "--lora: smollm2-135m-instruct is the name of another model"),
        ({"adapters": (" ",)}, "--lora: must be a name"),
        ({"drain_seconds": math.inf}, "--drain-seconds: must be a number of seconds"),
        ({"port": 8001, "count": 3, "control_port": 8003}, "--control-port"),
        ({"profile": "smollm2-135m-cpp"}, "did you mean smollm2-135m-cpu"),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checked(options(tmp_path, **more))


def test_numbers_of_engines() -> None:
    assert parse_numbers("0,2, 5-7") == (0, 2, 5, 6, 7)
    for text in ("a", "1-", "-1", "", "3-1", "²", "0-99999999999"):
        with pytest.raises(ConfigurationError, match="--faulty"):
            parse_numbers(text)
