"""What the operator reads while an engine starts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from serving.engines.screen import ConsoleScreen, phase_of

# As vLLM 0.32.0 on a CPU writes them.
CORE = "(EngineCore pid=7) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: kv_cache_dtype=auto, Compiling"
WEIGHTS = "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  1.10it/s]"
CACHE = "(EngineCore pid=7) INFO [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, Maximum concurrency: 5.69x"
COMPILING = "(Worker pid=8) INFO [cpu_model_runner.py:87] Warming up model for the compilation..."
SERVER = "(APIServer pid=6) INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:8001"
EAGER = "(APIServer pid=6) WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (CORE, "starting the engine's core"),
        (WEIGHTS, "loading weights"),
        (CACHE, "allocating the cache"),
        (COMPILING, "compiling"),
        (SERVER, "starting the server"),
        (EAGER, None),
    ],
)
def test_a_line_tells_the_phase(line: str, phase: str | None) -> None:
    assert phase_of([line]) == phase


def test_the_last_line_that_tells_counts() -> None:
    assert phase_of([CORE, WEIGHTS, CACHE, EAGER, "of no interest"]) == "allocating the cache"


def test_without_a_terminal_a_line_comes_with_each_phase_and_each_few_seconds() -> None:
    out = io.StringIO()
    screen = ConsoleScreen(Console(file=out, width=20), Console(file=out))
    for seconds, line in (
        (0.0, ""),
        (0.2, ""),
        (4.9, ""),
        (5.1, ""),
        (5.3, WEIGHTS),
        (5.5, ""),
        (10.2, WEIGHTS),
        (10.4, WEIGHTS),
    ):
        screen.starting(seconds, [line])
    screen.started()
    screen.say("a line that is longer than the terminal is wide [and keeps its brackets]")
    assert out.getvalue().splitlines() == [
        "engine: starting, 0 s",
        "engine: starting, 5 s",
        "engine: loading weights, 5 s",
        "engine: loading weights, 10 s",
        "a line that is longer than the terminal is wide [and keeps its brackets]",
    ]


def test_on_a_terminal_one_line_is_kept_and_taken_away() -> None:
    out = io.StringIO()
    screen = ConsoleScreen(Console(file=out, force_terminal=True, width=80), Console(file=out))
    screen.starting(1.0, [WEIGHTS])
    screen.starting(2.0, [WEIGHTS])
    assert "engine: loading weights, 2 s" in out.getvalue()
    screen.started()
    assert out.getvalue().endswith("\x1b[2K")
