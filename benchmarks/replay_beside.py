"""Other people's load tools beside `serving replay`: one real engine, the same loads and lengths, in turns.

    python -m benchmarks.replay_beside run rounds.jsonl        # starts an engine, appends one round (about five minutes)
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

from tests.clients.programs import ENVIRONMENT, HERE, ROOT, environment
from tests.doubles.real_engine import MODEL_NAME, running_engine
from tests.doubles.tiny_model import tiny_model

PROMPT_TOKENS, OUTPUT_TOKENS = 600, 60
TEMPLATE_TOKENS = 19
"""What the tiny model's chat template adds; the other tools give the length of the text."""
REQUESTS = 20
SETTLE_SECONDS = 3
TOOL_SECONDS = 300
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
        name="1 request/s, paced",
        replay=("--rate", "1", "--pace", "paced"),
        vllm=("--request-rate", "1", "--burstiness", "inf"),
        guidellm="kind=constant,rate=1",
    ),
    Load(
        name="1 at a time", replay=("--concurrency", "1"), vllm=("--max-concurrency", "1"), guidellm="kind=concurrent,streams=1"
    ),
)

Said = dict[str, float]
"""output_tokens_per_second, mean_ttft, p50_ttft and requests; seconds."""


def by_replay(url: str, load: Load, home: Path, seed: int) -> Said:
    (home / "beside.yaml").write_text(PROFILE)
    run(home, str(ROOT / ".venv" / "bin" / "serving"), "replay", "beside.yaml", "--url", url, *load.replay, "--output", "ours")
    report = json.loads((home / "ours.json").read_text())
    (stage,) = report["stages"]
    return {
        "output_tokens_per_second": stage["output_tokens_per_second"]["value"],
        "mean_ttft": stage["ttft"]["mean"]["value"],
        "p50_ttft": stage["ttft"]["p50"]["value"],
        "requests": stage["finished_ok"],
        "is_valid": report["is_valid"],
    }


def by_vllm(url: str, load: Load, home: Path, seed: int) -> Said:
    run(
        home,
        *(sys.executable, str(HERE / "python" / "vllm_bench_serve.py"), "--backend", "openai-chat"),
        *("--base-url", url, "--endpoint", "/v1/chat/completions", "--model", MODEL_NAME, "--tokenizer", str(tiny_model())),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS - TEMPLATE_TOKENS)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--num-prompts", str(REQUESTS), "--seed", str(seed)),
        *(*load.vllm, "--save-result", "--result-filename", "vllm.json", "--disable-tqdm"),
    )
    report = json.loads((home / "vllm.json").read_text())
    return {
        "output_tokens_per_second": report["output_throughput"],
        "mean_ttft": report["mean_ttft_ms"] / 1000,
        "p50_ttft": report["median_ttft_ms"] / 1000,
        "requests": report["completed"],
    }


def by_guidellm(url: str, load: Load, home: Path, seed: int) -> Said:
    run(
        home,
        *(str(ENVIRONMENT / "bin" / "guidellm"), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL_NAME}", "--profile", load.guidellm),
        *("--constraint", f"kind=max_requests,count={REQUESTS}", "--seed", f"kind=static,value={seed}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS - TEMPLATE_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", "kind=json,path=guidellm.json"),
    )
    (benchmark,) = json.loads((home / "guidellm.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    return {
        "output_tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"],
        "mean_ttft": ttft["mean"] / 1000,
        "p50_ttft": ttft["median"] / 1000,
        "requests": metrics["request_totals"]["successful"],
    }


TOOLS: Mapping[str, Callable[[str, Load, Path, int], Said]] = {
    "serving replay": by_replay,
    "vllm bench serve": by_vllm,
    "guidellm": by_guidellm,
}


def run(home: Path, *command: str) -> None:
    """To its end; a tool's own opinion of its run, by its status, stands in its report."""
    done = subprocess.run(
        command, cwd=home, env=environment(home), capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command[0]}: exit status {done.returncode}\n{done.stderr[-3000:]}")


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


def one_round(path: Path) -> None:
    seed = len(path.read_text().splitlines()) if path.exists() else 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with running_engine(tiny_model(), home / "engine.log", start_seconds=START_SECONDS) as engine:
            in_turns(engine.url, home, seed, path)


def in_turns(url: str, home: Path, seed: int, path: Path) -> None:
    """Each tool with each load; a line of `path` for each."""
    warm_up(url)
    for load in LOADS:
        for name, tool in rotated(seed):
            seed += 1
            before = counted(url)
            said = tool(url, load, home, seed)
            after = counted(url)
            engine = {field: after[field] - before[field] for field in after}
            with path.open("a") as file:
                file.write(json.dumps({"load": load.name, "tool": name, "said": said, "engine": engine}) + "\n")


def rotated(seed: int) -> list[tuple[str, Callable[[str, Load, Path, int], Said]]]:
    """So that no tool is always the first."""
    tools, first = list(TOOLS.items()), seed // len(LOADS) // len(TOOLS) % len(TOOLS)
    return tools[first:] + tools[:first]


def warm_up(url: str) -> None:
    """The first requests of an engine are slow."""
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "a" * 400}], "max_tokens": 40}
    for _ in range(5):
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).read()


def table(path: Path) -> None:
    """A row for each load and tool, least – most of its rounds."""
    runs: dict[tuple[str, str], list[Any]] = {}
    for line in path.read_text().splitlines():
        found = json.loads(line)
        runs.setdefault((found["load"], found["tool"]), []).append(found)
    print("| Load | Tool | Output tokens/s | Mean TTFT | The engine's own mean TTFT | What the tool adds | Prompt tokens |")
    print("|---|---|---|---|---|---|---|")
    for (load, tool), found in sorted(runs.items()):
        own = [each["engine"]["ttft_seconds"] / each["engine"]["requests"] for each in found]
        mean = [each["said"]["mean_ttft"] for each in found]
        cells = (
            span([each["said"]["output_tokens_per_second"] for each in found], 1),
            span([1000 * value for value in mean], 1) + " ms",
            span([1000 * value for value in own], 1) + " ms",
            span([1000 * (a - b) for a, b in zip(mean, own, strict=True)], 1) + " ms",
            span([each["engine"]["prompt_tokens"] / each["engine"]["requests"] for each in found], 1),
        )
        print("|", " | ".join((load, tool, *cells)), "|")


def span(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f}–{max(values):.{digits}f} ({statistics.median(values):.{digits}f})"


if __name__ == "__main__":
    {"run": one_round, "table": table}[sys.argv[1]](Path(sys.argv[2]))
