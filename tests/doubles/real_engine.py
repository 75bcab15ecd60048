"""A real vLLM on the CPU, started and stopped by the tests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MODEL_NAME = "tiny"
START_SECONDS = 180.0
STOP_SECONDS = 20.0
UNSPINNING = Path(__file__).parent / "unspinning_engine"
"""Its `sitecustomize` keeps the engine from starving the machine; it says how."""

LOADS_WEIGHTS = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens vLLM's route for loading other weights into a running engine."""


class EngineDied(Exception):
    """The engine did not come up; the message ends with the tail of its log."""


@dataclass(frozen=True)
class RealEngine:
    """A vLLM that answers at `url` for the model name `model`."""

    url: str
    model: str
    pid: int
    log: Path
    started_in_seconds: float
    max_model_len: int


def is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


@contextlib.contextmanager
def running_engine(
    model: Path,
    log: Path,
    arguments: Sequence[str] = (),
    max_model_len: int = 4096,
    environment: Mapping[str, str] | None = None,
    start_seconds: float = START_SECONDS,
) -> Iterator[RealEngine]:
    """Start vLLM, yield it when it is healthy, and leave no process behind. `environment` goes over the inherited one."""
    given = os.environ | dict(environment or {})
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"),
        *("--model", str(model), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(max_model_len), "--kv-cache-memory-bytes", str(200_000_000)),
        *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--fail-on-environ-validation", *arguments),
    ]
    python_path = os.pathsep.join(filter(None, (str(UNSPINNING), given.get("PYTHONPATH"))))
    environment = given | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": python_path}
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(url, process, log, began + start_seconds)
        yield RealEngine(url, MODEL_NAME, process.pid, log, time.monotonic() - began, max_model_len)
    finally:
        _stop(process)


def load_weights(engine: RealEngine, checkpoint: Path) -> None:
    """Other weights into a running engine that was started with LOADS_WEIGHTS, and nothing kept of the ones before."""
    _post(engine, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}})
    _post(engine, "/reset_prefix_cache", {})


def _post(engine: RealEngine, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        engine.url + path, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineDied(f"exit status {process.returncode}\n{_tail(log)}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise EngineDied(f"not healthy in time\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the engine, then SIGKILL to whatever is left of its process group."""
    family = _family(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _, left = psutil.wait_procs(family, timeout=5)
    for survivor in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(left, timeout=5)


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
