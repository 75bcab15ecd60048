"""Tools that send load or evaluations, unchanged, through the gateway to a real vLLM: their own reports against our counts."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import ENVIRONMENT, HERE, environment
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.tiny_model import tiny_model

REQUESTS, CONCURRENT, OUTPUT_TOKENS = 6, 2, 12
QUESTIONS = ("The capital of France is", "The capital of Italy is", "The capital of Spain is")
CHOICES = ("Paris", "Rome")
TOOL_SECONDS = 200.0

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("clients_installed"),
    pytest.mark.parametrize("engine_url", ["real"], indirect=True),
]


async def run(home: Path, *command: str) -> str:
    """Run a tool in `home` to its good end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment(home) | {"OPENAI_API_KEY": "sk-test"}, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with asyncio.timeout(TOOL_SECONDS):
            printed = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"exit status {process.returncode}\n{printed[-4000:]}"
    return printed


async def counted(gateway: RunningGateway) -> dict[str, float]:
    """Requests that ended well, all requests, and tokens, as the gateway's metrics have them; a tool may also ask for tokens."""
    metrics = await gateway.metrics()
    tokens = {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "output")}
    routes = ("chat_completions", "completions")
    ok = sum(metrics.sum("serving_requests_total", route=route, outcome="ok") for route in routes)
    return {"ok": ok, "requests": sum(metrics.sum("serving_requests_total", route=route) for route in routes), **tokens}


async def test_guidellm(tmp_path: Path, gateway: RunningGateway) -> None:
    await run(
        tmp_path,
        *(str(ENVIRONMENT / "bin" / "guidellm"), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={gateway.url},model=tiny,api_key=sk-test"),
        *("--profile", f"kind=concurrent,streams={CONCURRENT}", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={OUTPUT_TOKENS}"),
        *("--output", "kind=json,path=report.json"),
    )
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"] == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    prompt, output = (metrics[f"{kind}_token_count"]["successful"]["total_sum"] for kind in ("prompt", "output"))
    assert output == REQUESTS * OUTPUT_TOKENS
    assert await counted(gateway) == {"ok": REQUESTS, "requests": REQUESTS, "prompt": prompt, "output": output}


async def test_vllm_bench_serve(tmp_path: Path, gateway: RunningGateway) -> None:
    await run(
        tmp_path,
        *(sys.executable, str(HERE / "python" / "vllm_bench_serve.py"), "--backend", "openai-chat"),
        *("--base-url", gateway.url, "--endpoint", "/v1/chat/completions", "--model", "tiny", "--tokenizer", str(tiny_model())),
        *("--dataset-name", "random", "--random-input-len", "30", "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos"),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", str(CONCURRENT)),
        *("--save-result", "--result-filename", "report.json", "--disable-tqdm"),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["completed"], report["failed"]) == (REQUESTS, 0)
    assert report["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    tokens = {"prompt": report["total_input_tokens"], "output": report["total_output_tokens"]}
    assert await counted(gateway) == {"ok": REQUESTS, "requests": REQUESTS, **tokens}


def write_task(folder: Path, **fields: Any) -> None:
    """A task for lm-eval over `QUESTIONS`, whose answer is always the first of `CHOICES`. YAML takes JSON."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps({"question": question}) + "\n" for question in QUESTIONS))
    task = {
        "task": "capitals",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": CHOICES[0],
        **fields,
    }
    (folder / "capitals.yaml").write_text(json.dumps(task))


async def evaluate(folder: Path, model: str, address: str, *options: str) -> list[dict[str, Any]]:
    """Run the task with lm-eval; its samples, a question each."""
    arguments = f"model=tiny,base_url={address},num_concurrent={CONCURRENT},max_retries=1,tokenizer={tiny_model()}"
    await run(
        folder,
        *(str(ENVIRONMENT / "bin" / "lm_eval"), "run", "--model", model, "--model_args", arguments),
        *("--include_path", str(folder), "--tasks", "capitals", "--output_path", "out", "--log_samples", *options),
    )
    return samples_in(folder)


def samples_in(folder: Path) -> list[dict[str, Any]]:
    (samples,) = folder.glob("out/**/samples_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


async def test_lm_eval_over_chat(tmp_path: Path, gateway: RunningGateway) -> None:
    metrics = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    generation = {"until": ["\n"], "max_gen_toks": OUTPUT_TOKENS, "temperature": 0}
    write_task(tmp_path, output_type="generate_until", generation_kwargs=generation, metric_list=metrics)
    samples = await evaluate(tmp_path, "local-chat-completions", f"{gateway.url}/v1/chat/completions", "--apply_chat_template")
    assert len(samples) == len(QUESTIONS)
    assert all(len(sample["resps"][0][0]) == OUTPUT_TOKENS for sample in samples)  # one character a token
    counts = await counted(gateway)
    assert (counts["ok"], counts["requests"]) == (len(QUESTIONS), len(QUESTIONS))
    assert counts["output"] == len(QUESTIONS) * OUTPUT_TOKENS


async def test_lm_eval_over_completions(tmp_path: Path, gateway: RunningGateway) -> None:
    """Log-likelihoods: prompts of token ids, echoed with their log-probabilities."""
    metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    write_task(tmp_path, output_type="multiple_choice", doc_to_choice=list(CHOICES), metric_list=metrics)
    samples = await evaluate(tmp_path, "local-completions", f"{gateway.url}/v1/completions", "--batch_size", "1")
    assert len(samples) == len(QUESTIONS)
    likelihoods = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
    assert len(likelihoods) == len(QUESTIONS) * len(CHOICES)
    assert all(math.isfinite(value) and value < 0 for value in likelihoods)
    counts = await counted(gateway)
    assert counts["ok"] == counts["requests"] == len(likelihoods)
    words = [f"{question} {choice}" for question in QUESTIONS for choice in CHOICES]
    assert counts["prompt"] == sum(len(text) for text in words)  # one token a character
