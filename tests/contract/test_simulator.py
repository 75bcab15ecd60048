"""What a simulated engine has that the scripted one lacks: all of vLLM's metrics and routes, held to a real engine's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving.sim.exposition import families as known
from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.simulated_engine import TINY, simulated_engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.engine)])
async def full_engine(request: pytest.FixtureRequest) -> AsyncIterator[AnyEngine]:
    if request.param == "real":
        real = request.getfixturevalue("real_engine")
        yield AnyEngine(real.url, real.model, real.max_model_len)
        return
    async with simulated_engine() as engine:
        yield AnyEngine(engine.url, engine.plan.model, engine.plan.limits.max_model_len, is_simulated=True)


async def families(url: str) -> dict[str, Metric]:
    response = await ask(url, "/metrics")
    assert response.header("content-type") == "text/plain; version=1.0.0; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(response.body.decode())}


async def used(url: str) -> None:
    """Some traffic, so that all series are there: streams, whole answers, an error and an abort."""
    for body in ({"messages": HI, "max_tokens": 3}, {"messages": HI, "max_tokens": 3, "stream": True}, {"messages": []}):
        await ask(url, CHAT, body)
    await ask(url, COMPLETIONS, {"prompt": "a", "max_tokens": 2})
    await ask(url, "/v1/models")


def shape(family: Metric) -> tuple[str, str, frozenset[tuple[str, frozenset[str]]], tuple[str, ...]]:
    """Kind, help, names with their labels, and bounds of buckets."""
    names = frozenset((sample.name, frozenset(sample.labels)) for sample in family.samples)
    bounds = tuple(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
    return family.type, family.documentation, names, bounds


@pytest.mark.engine
async def test_all_series_are_those_of_a_real_engine(real_engine: RealEngine) -> None:
    async with simulated_engine() as simulated:
        await used(simulated.url)
        await used(real_engine.url)
        ours, theirs = await families(simulated.url), await families(real_engine.url)
    assert {name for name in ours if not name.startswith("serving_sim_")} == set(theirs)
    assert {name: shape(ours[name]) for name in theirs} == {name: shape(family) for name, family in theirs.items()}


CLOSED_LABELS = ("reason", "sleep_state", "source", "finished_reason")


@pytest.mark.engine
async def test_labels_of_closed_sets_have_a_real_engines_values(real_engine: RealEngine) -> None:
    async with simulated_engine() as simulated:
        found = [await families(url) for url in (simulated.url, real_engine.url)]

    def values(all_families: dict[str, Metric]) -> set[tuple[str, str, str]]:
        return {
            (sample.name, label, value)
            for family in all_families.values()
            for sample in family.samples
            for label, value in sample.labels.items()
            if label in CLOSED_LABELS
        }

    assert values(found[0]) == values(found[1])


async def test_what_a_load_moves(full_engine: AnyEngine) -> None:
    """The same requests move the same series by the same amounts."""

    async def counts() -> dict[str, float]:
        found: dict[str, float] = {}
        for family in (await families(full_engine.url)).values():
            for sample in family.samples:
                if sample.name.startswith("vllm:") and not sample.name.endswith(("_created", "_sum", "_bucket")):
                    key = sample.name + "".join(f"|{sample.labels[label]}" for label in CLOSED_LABELS if label in sample.labels)
                    found[key] = sample.value
        return found

    text = uuid.uuid4().hex + "abc " * 100  # 432 bytes and the template's 19: three full blocks
    before = await counts()
    for _ in range(2):
        await ask(full_engine.url, CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 5})
    # A real engine's counters follow its answers by a moment.
    for _ in range(50):
        after = await counts()
        moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        if moved.get("vllm:request_success_total|length") == 2 and moved.get("vllm:generation_tokens_total") == 10:
            break
        await asyncio.sleep(0.1)
    tokens = 432 + 19
    assert moved.pop("vllm:iteration_tokens_total_count", 10) >= 10  # a real engine may count an empty step
    moved.pop("vllm:lora_requests_info", None)
    assert moved == {
        "vllm:prefix_cache_queries_total": 2 * tokens,
        "vllm:prefix_cache_hits_total": 384,
        "vllm:prompt_tokens_total": 2 * tokens,
        "vllm:prompt_tokens_by_source_total|local_compute": 2 * tokens - 384,
        "vllm:prompt_tokens_by_source_total|local_cache_hit": 384,
        "vllm:prompt_tokens_cached_total": 384,
        "vllm:prompt_tokens_cached_by_source_total|device": 384,
        "vllm:generation_tokens_total": 10,
        "vllm:request_success_total|length": 2,
        "vllm:inter_token_latency_seconds_count": 8,
        **{
            f"vllm:{name}_count": 2
            for name in (
                *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
                *("request_params_max_tokens", "time_to_first_token_seconds", "request_time_per_output_token_seconds"),
                *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
                *("request_prefill_time_seconds", "request_decode_time_seconds", "request_num_preemptions"),
                "request_prefill_kv_computed_tokens",
            )
        },
    }


async def test_tokens_and_back(full_engine: AnyEngine) -> None:
    answer = (await ask(full_engine.url, "/tokenize", {"prompt": "hello", "return_token_strs": True})).json
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert (answer["count"], answer["max_model_len"], answer["token_strs"]) == (5, 4096, list("hello"))
    back = await ask(full_engine.url, "/detokenize", {"tokens": answer["tokens"]})
    assert back.json == {"prompt": "hello"}
    chat = (await ask(full_engine.url, "/tokenize", {"messages": HI})).json
    assert (chat["count"], len(chat["tokens"]), chat["token_strs"]) == (21, 21, None)


REFUSED: dict[str, tuple[str, dict[str, Any], int]] = {
    "tokenize nothing": ("/tokenize", {}, 400),
    "tokenize for no model": ("/tokenize", {"model": "nope", "prompt": "x"}, 404),
    "detokenize nothing": ("/detokenize", {}, 400),
    "no choices": (CHAT, {"messages": HI, "max_tokens": 1, "n": 0}, 400),
    "priority a word": (CHAT, {"messages": HI, "max_tokens": 1, "priority": "x"}, 400),
    "negative temperature": (CHAT, {"messages": HI, "max_tokens": 1, "temperature": -1}, 400),
    "long salt": (CHAT, {"messages": HI, "max_tokens": 1, "cache_salt": "x" * 129}, 400),
    "salt with a slash": (CHAT, {"messages": HI, "max_tokens": 1, "cache_salt": "a/b"}, 400),
    "no such route": ("/v1/embeddings", {"input": "hello"}, 404),
    "no such rank": (CHAT, {"messages": HI, "max_tokens": 1}, 400),
    "message for no model": ("/v1/messages", {"messages": HI, "max_tokens": 1}, 400),
}


@pytest.mark.engine
@pytest.mark.parametrize("case", REFUSED)
async def test_refusals_are_those_of_a_real_engine(real_engine: RealEngine, case: str) -> None:
    path, body, status = REFUSED[case]
    headers = {"X-data-parallel-rank": "7"} if case == "no such rank" else {}
    async with simulated_engine() as simulated:
        ours, theirs = [await ask(url, path, body, headers=headers) for url in (simulated.url, real_engine.url)]
    assert (ours.status, ours.json) == (theirs.status, theirs.json)
    assert ours.status == status


def heads(response: RawResponse) -> list[str]:
    return [name for name, _ in response.headers if not name.startswith("x-serving-")]


ASKED: dict[str, tuple[str, dict[str, Any] | None]] = {
    "chat": (CHAT, {"messages": HI, "max_tokens": 2}),
    "chat stream": (CHAT, {"messages": HI, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}),
    "completion": (COMPLETIONS, {"prompt": "a", "max_tokens": 2}),
    "chat with logprobs": (CHAT, {"messages": HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 1}),
    "chat stream with logprobs": (CHAT, {"messages": HI, "max_tokens": 2, "logprobs": True, "stream": True}),
    "continuous usage": (
        CHAT,
        {
            "messages": HI,
            "max_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "response": ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2}),
    "response stream": ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2, "stream": True}),
    "message": ("/v1/messages", {"model": "tiny", "messages": HI, "max_tokens": 2}),
    "message stream": ("/v1/messages", {"model": "tiny", "messages": HI, "max_tokens": 2, "stream": True}),
    "models": ("/v1/models", None),
    "health": ("/health", None),
    "load": ("/load", None),
    "unknown": ("/nope", None),
}


def form(value: Any) -> Any:
    """Names, kinds and nesting, without the values."""
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [form(inner) for inner in value]
    return type(value).__name__


def said(response: RawResponse) -> Any:
    if response.header("content-type") == "text/event-stream; charset=utf-8":
        lines = [line for line in response.body.decode().split("\n") if line]
        return [form(json.loads(line[6:])) if line.startswith("data: {") else line for line in lines]
    return form(response.json) if response.body else None


@pytest.mark.engine
@pytest.mark.parametrize("case", ASKED)
async def test_answers_have_a_real_engines_heads_and_forms(real_engine: RealEngine, case: str) -> None:
    path, body = ASKED[case]
    if "logprobs" in case:
        with contextlib.suppress(TimeoutError):  # the first request for them makes a real engine compile for some seconds
            await ask(real_engine.url, path, body)
    async with simulated_engine() as simulated:
        ours, theirs = [await ask(url, path, body) for url in (simulated.url, real_engine.url)]
    assert (ours.status, heads(ours)) == (theirs.status, heads(theirs))
    assert said(ours) == said(theirs)


@pytest.mark.parametrize("route", ["/v1/models", "/health", "/version", "/metrics", "/nope", CHAT])
async def test_everything_says_that_it_is_simulated(route: str) -> None:
    async with simulated_engine() as engine:
        body = {"messages": HI, "max_tokens": 1} if route == CHAT else None
        response = await ask(engine.url, route, body)
        assert (response.header("x-serving-simulated") or "").startswith("tiny-cpu")
        if route == CHAT:
            assert response.json["system_fingerprint"] == "vllm-0.32.0-simulated"
        if route == "/version":
            assert response.json["simulated"] == "tiny-cpu"
        if route == "/metrics":
            assert "serving_sim_info{" in response.body.decode()


async def test_every_metric_of_the_version_can_be_exported() -> None:
    async with simulated_engine(every_metric=True) as engine:
        text = (await ask(engine.url, "/metrics")).body.decode()
    kinds = {family.name: family for family in text_string_to_metric_families(text)}
    for name, about in known("0.32.0").items():
        family = kinds[name.removesuffix("_total") if about["kind"] == "counter" else name]
        assert family.type == about["kind"]
        (labels,) = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == set(about["labels"]), name


def test_the_metrics_are_those_of_the_snapshot() -> None:
    root = Path(__file__).resolve().parents[2]
    names: dict[str, str] = json.loads((root / "configs" / "engines" / f"vllm-{TINY.version}.json").read_text())["metrics"]
    assert set(known(TINY.version)) == set(names)
    ours = {name: about["kind"] for name, about in known(TINY.version).items()}
    assert {name: kind for name, kind in names.items() if kind not in ("unknown", ours[name])} == {}
