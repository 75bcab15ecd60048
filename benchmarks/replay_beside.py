"""Other people's load tools beside `serving replay`: one real engine, the same loads and lengths, in turns.

    python -m benchmarks.replay_beside run rounds.jsonl 3      # starts an engine, appends three rounds
    python -m benchmarks.replay_beside table rounds.jsonl      # all rounds as a table

Beside what a tool says of its run stands what the engine counted of it: its own time to first token, prompt lengths and cached
tokens. On a machine that others use, too, the engine is faster in one run than in the next; what a tool adds to the engine's own
figure is its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.programs import PYTHON, ROOT, environment
from tests.doubles.real_engine import MODEL_NAME, running_engine
from tests.doubles.tiny_model import tiny_model

PROMPT_TOKENS, OUTPUT_TOKENS = 600, 60
TEMPLATE_TOKENS = 19
"""What the tiny model's chat template adds; the other tools give the length of the text."""
REQUESTS = 20
SETTLE_SECONDS = 3
START_SECONDS = 500
PROFILE = f"""
name: beside
description: Prompts without anything in common
traffic: {{kind: prompts, prompt_tokens: {PROMPT_TOKENS}, output_tokens: {OUTPUT_TOKENS}}}
concurrency: 1
settle_seconds: {SETTLE_SECONDS}
measure_seconds: {REQUESTS + 1}
"""


@dataclass(frozen=True)
class Load:
    """The same for all tools, in the words of each."""

    name: str
    replay: tuple[str, ...]
    vllm: tuple[str, ...]
    guidellm: str


LOADS = (
    Load(
        name="1 at a time", replay=("--concurrency", "1"), vllm=("--max-concurrency", "1"), guidellm="kind=concurrent,streams=1"
    ),
    Load(
        name="1 request/s, paced",
        replay=("--rate", "1", "--pace", "paced"),
        vllm=("--request-rate", "1", "--burstiness", "inf"),
        guidellm="kind=constant,rate=1",
    ),
)

Said = dict[str, float]
"""output_tokens_per_second, mean_ttft, p50_ttft, mean_tpot and requests; seconds."""


class Waiting:
    """A tool in a process of its own; see `benchmarks.waiting_tool`."""

    def __init__(self, python: Path, name: str, home: Path) -> None:
        self._name = name
        self._home = home
        given = environment(home) | {"PYTHONPATH": str(ROOT), "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
        self._log = (home / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.waiting_tool", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=given,
            cwd=ROOT,
        )

    def ready(self) -> None:
        self._answer()

    def run(self, *words: str) -> None:
        """To its end; a tool's own opinion of its run, by a status of 1, stands in its report."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(self._home), *words]) + "\n")
        self._process.stdin.flush()
        if (status := self._answer()) not in ("0", "1"):
            raise SystemExit(f"{self._name}: {status}\n{(self._home / f'{self._name}.log').read_text()[-3000:]}")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def by_replay(tool: Waiting, url: str, load: Load, home: Path, seed: int) -> Said:
    (home / "beside.yaml").write_text(PROFILE)
    tool.run("replay", "beside.yaml", "--url", url, *load.replay, "--output", f"ours-{seed}")
    report = json.loads((home / f"ours-{seed}.json").read_text())
    (stage,) = report["stages"]
    return {
        "output_tokens_per_second": stage["output_tokens_per_second"]["value"],
        "mean_ttft": stage["ttft"]["mean"]["value"],
        "p50_ttft": stage["ttft"]["p50"]["value"],
        "mean_tpot": stage["tpot"]["mean"]["value"],
        "requests": stage["finished_ok"],
        "is_valid": report["is_valid"],
    }


def by_vllm(tool: Waiting, url: str, load: Load, home: Path, seed: int) -> Said:
    tool.run(
        *("--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions"),
        *("--model", MODEL_NAME, "--tokenizer", str(tiny_model())),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS - TEMPLATE_TOKENS)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--num-prompts", str(REQUESTS), "--seed", str(seed)),
        *(*load.vllm, "--save-result", "--result-filename", f"vllm-{seed}.json", "--disable-tqdm"),
    )
    report = json.loads((home / f"vllm-{seed}.json").read_text())
    return {
        "output_tokens_per_second": report["output_throughput"],
        "mean_ttft": report["mean_ttft_ms"] / 1000,
        "p50_ttft": report["median_ttft_ms"] / 1000,
        "mean_tpot": report["mean_tpot_ms"] / 1000,
        "requests": report["completed"],
    }


def by_guidellm(tool: Waiting, url: str, load: Load, home: Path, seed: int) -> Said:
    tool.run(
        *("run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL_NAME}", "--profile", load.guidellm),
        *("--constraint", f"kind=max_requests,count={REQUESTS}", "--seed", f"kind=static,value={seed}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS - TEMPLATE_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path=guidellm-{seed}.json"),
    )
    (benchmark,) = json.loads((home / f"guidellm-{seed}.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    return {
        "output_tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"],
        "mean_ttft": ttft["mean"] / 1000,
        "p50_ttft": ttft["median"] / 1000,
        "mean_tpot": metrics["inter_token_latency_ms"]["successful"]["mean"] / 1000,
        "requests": metrics["request_totals"]["successful"],
    }


By = Callable[[Waiting, str, Load, Path, int], Said]
TOOLS: Mapping[str, tuple[Path, str, By]] = {
    "serving replay": (Path(sys.executable), "serving", by_replay),
    "vllm bench serve": (Path(sys.executable), "vllm", by_vllm),
    "guidellm": (PYTHON, "guidellm", by_guidellm),
}


COUNTED = {
    "vllm:time_to_first_token_seconds_sum": "ttft_seconds",
    "vllm:time_to_first_token_seconds_count": "requests",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "output_tokens",
    "vllm:prefix_cache_hits_total": "cached_tokens",
}


def counted(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = dict.fromkeys(COUNTED.values(), 0.0)
    for line in lines:
        if (field := COUNTED.get(line.split("{", 1)[0])) is not None:
            found[field] += float(line.rsplit(" ", 1)[1])
    return found


def rounds(path: Path, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tools = {name: Waiting(python, module, home) for name, (python, module, _) in TOOLS.items()}
        try:
            with running_engine(tiny_model(), home / "engine.log", start_seconds=START_SECONDS) as engine:
                for tool in tools.values():
                    tool.ready()
                warm_up(engine.url)
                for _ in range(count):
                    one_round(engine.url, tools, home, path)
        finally:
            for tool in tools.values():
                tool.stop()


def one_round(url: str, tools: Mapping[str, Waiting], home: Path, path: Path) -> None:
    """Each tool with each load; a line of `path` for each. No tool is always the first."""
    done = len(path.read_text().splitlines()) if path.exists() else 0
    first = done // len(TOOLS) % len(TOOLS)
    for load in LOADS:
        for name in (*list(TOOLS)[first:], *list(TOOLS)[:first]):
            done += 1
            before = counted(url)
            said = TOOLS[name][2](tools[name], url, load, home, done)
            after = counted(url)
            engine = {field: after[field] - before[field] for field in after}
            with path.open("a") as file:
                file.write(json.dumps({"load": load.name, "tool": name, "said": said, "engine": engine}) + "\n")


def warm_up(url: str) -> None:
    """The first requests of an engine are slow."""
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "a" * 400}], "max_tokens": 40}
    for _ in range(5):
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).read()


def table(path: Path) -> None:
    """A row for each load and tool, over its rounds."""
    runs: dict[tuple[str, str], list[Any]] = {}
    for line in path.read_text().splitlines():
        found = json.loads(line)
        runs.setdefault((found["load"], found["tool"]), []).append(found)
    print("| Load | Tool | Output tokens/s | Mean TTFT | Median TTFT | Time per output token | The engine's own mean TTFT |")
    print("|---|---|---|---|---|---|---|")
    for (load, tool), found in sorted(runs.items()):
        said = [each["said"] for each in found]
        own = [each["engine"]["ttft_seconds"] / each["engine"]["requests"] for each in found]
        cells = (
            span([each["output_tokens_per_second"] for each in said], 0),
            *(span([1000 * each[field] for each in said], 1) + " ms" for field in ("mean_ttft", "p50_ttft", "mean_tpot")),
            span([1000 * value for value in own], 1) + " ms",
        )
        print("|", " | ".join((load, tool, *cells)), "|")


def span(values: list[float], digits: int) -> str:
    """Least – most, and the median."""
    return f"{min(values):.{digits}f}–{max(values):.{digits}f} ({statistics.median(values):.{digits}f})"


if __name__ == "__main__":
    if sys.argv[1] == "run":
        rounds(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        table(Path(sys.argv[2]))
