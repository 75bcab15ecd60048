"""A simulated engine over its sockets: what the contract with a real one does not cover."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from serving.sim.engine import SimulatedEngine
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.settling import HANG_SECONDS
from tests.doubles.simulated_engine import TINY, simulated_engine

CHAT = "/v1/chat/completions"


def asking(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **more}


async def samples(engine: SimulatedEngine, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    text = (await ask(engine.url, "/metrics")).body.decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


async def test_full_queues_answer_503_as_vllm_does() -> None:
    limits = replace(TINY.limits, max_num_queued_reqs=1)
    async with simulated_engine(step_seconds=0.01, limits=limits) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=1000)))
            await client.read_head()
            response = await ask(engine.url, CHAT, asking(stream=True))
        assert (response.status, response.header("retry-after")) == (503, None)
        assert response.json["error"]["type"] == "Service Unavailable"
        assert "cannot accept new requests" in response.json["error"]["message"]
        found = await samples(engine, "vllm:admission_rejections_total")
        assert sum(found.values()) == 1


async def test_adapters_are_models_with_a_parent_and_caches_of_their_own() -> None:
    limits = replace(TINY.limits, max_loras=1)
    async with simulated_engine(adapters=("x",), options=frozenset({"enable-lora"}), limits=limits) as engine:
        cards = (await ask(engine.url, "/v1/models")).json["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("x", "tiny")]
        body = asking(messages=[{"role": "user", "content": "a" * 300}])
        cached = []
        for model in ("tiny", "x", "x"):
            answer = (await ask(engine.url, CHAT, body | {"model": model})).json
            assert answer["model"] == model
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[:2] == [0, 0] and cached[2] > 0
        ((labels, _),) = (await samples(engine, "vllm:lora_requests_info")).items()
        assert dict(labels) == {"max_lora": "1", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        assert (await ask(engine.url, "/v1/load_lora_adapter", {"lora_name": "y"})).status == 404


async def test_greedy_answers_repeat_and_sampled_ones_do_not() -> None:
    async with simulated_engine() as engine, simulated_engine() as other:

        async def answers(*engines: SimulatedEngine, **more: Any) -> list[str]:
            """Texts and log-probabilities."""
            body = asking(logprobs=True, top_logprobs=2, **more)
            found = [(await ask(each.url, CHAT, body)).json["choices"][0] for each in engines]
            return [json.dumps([each["message"]["content"], each["logprobs"]]) for each in found]

        both, thrice = (engine, engine, other), (engine, engine, engine)
        assert len(set(await answers(*both, temperature=0))) == 1
        assert len(set(await answers(*both, temperature=0.7, seed=3))) == 1
        assert len(set(await answers(*thrice, temperature=0.7))) == 3
        assert len(set(await answers(*thrice))) == 3
        assert await answers(engine, seed=3) != await answers(engine, seed=4)


async def test_adapters_come_and_go_where_that_is_allowed() -> None:
    async with simulated_engine(adapters_may_change=True) as engine:
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        assert (await ask(engine.url, CHAT, asking(model="y"))).status == 404
        assert (await ask(engine.url, load, {"lora_name": "y", "lora_path": "/y"})).status == 200
        assert (await ask(engine.url, load, {"lora_name": "y", "lora_path": "/y"})).status == 400
        assert (await ask(engine.url, unload, {"lora_name": "y"})).status == 200
        assert (await ask(engine.url, unload, {"lora_name": "y"})).status == 404


async def test_each_rank_has_its_own_series_and_can_be_pinned() -> None:
    async with simulated_engine(ranks=2) as engine:
        for rank in ("0", "1", "1"):
            response = await ask(engine.url, CHAT, asking(), headers={"X-data-parallel-rank": rank})
            assert response.status == 200
        found = {
            dict(labels)["engine"]: value for labels, value in (await samples(engine, "vllm:generation_tokens_total")).items()
        }
        assert found == {"0": 5, "1": 10}
        assert (await ask(engine.url, CHAT, asking(), headers={"X-data-parallel-rank": "2"})).status == 400


async def test_priority_of_a_header_goes_over_the_bodys() -> None:
    limits = replace(TINY.limits, max_num_seqs=1, by_priority=True)
    async with simulated_engine(limits=limits, step_seconds=0.005) as engine:
        async with RawClient(engine.url) as first:
            await first.send(request_bytes(CHAT, asking(stream=True, max_tokens=40)))
            await first.read_head()
            done: list[str] = []

            async def one(name: str, headers: dict[str, str]) -> None:
                await ask(engine.url, CHAT, asking(priority=5), headers=headers)
                done.append(name)

            later = asyncio.create_task(one("later", {}))
            while engine.models[0].unfinished < 2:
                await asyncio.sleep(0.001)
            sooner = asyncio.create_task(one("sooner", {"X-Vllm-Priority": "1"}))
            await asyncio.gather(later, sooner)
        assert done == ["sooner", "later"]
        assert (await ask(engine.url, CHAT, asking(), headers={"X-Vllm-Priority": "soon"})).status == 400


async def test_answers_that_end_by_themselves_stop() -> None:
    async with simulated_engine(answer_tokens=3) as engine:
        choices = [(await ask(engine.url, CHAT, asking(seed=n, max_tokens=200))).json["choices"][0] for n in range(3)]
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        whole = (await ask(engine.url, CHAT, asking(max_tokens=50, ignore_eos=True))).json
        assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (50, "length")
        least = (await ask(engine.url, CHAT, asking(max_tokens=200, min_tokens=100))).json
        assert least["usage"]["completion_tokens"] >= 100


async def test_speculation_puts_several_tokens_into_a_chunk() -> None:
    async with simulated_engine(rates=replace(TINY.rates, tokens_per_step=4.0)) as engine:
        response = await ask(engine.url, CHAT, asking(max_tokens=16, stream=True))
        texts = [chunk["choices"][0]["delta"]["content"] for chunk in response.data[1:]]
        assert [len(text) for text in texts] == [4, 4, 4, 4]
        assert response.data[-1]["choices"][0]["finish_reason"] == "length"


async def test_speculation_is_counted_as_vllm_counts_it() -> None:
    """Each draft has so many tokens; the accepted ones are a part of them, and those at each place add up."""
    async with simulated_engine(rates=replace(TINY.rates, tokens_per_step=2.5), speculated_tokens=3, every_metric=True) as engine:
        await ask(engine.url, CHAT, asking(max_tokens=200))
        name = "vllm:spec_decode_num"
        ((drafts,), (drafted,), (accepted,)) = [
            (await samples(engine, f"{name}_{what}_total")).values() for what in ("drafts", "draft_tokens", "accepted_tokens")
        ]
        by_place = list((await samples(engine, f"{name}_accepted_tokens_per_pos_total")).values())
        assert drafted == 3 * drafts and 0 < accepted < drafted
        assert len(by_place) == 3 and sum(by_place) == accepted and by_place == sorted(by_place, reverse=True)


async def test_time_is_scaled_and_metrics_tell_simulated_seconds() -> None:
    """Five minutes of an engine, which nobody waits for."""
    async with simulated_engine(step_seconds=30.0, speed=1000.0) as engine:
        began = time.monotonic()
        await asyncio.wait_for(ask(engine.url, CHAT, asking(max_tokens=10)), HANG_SECONDS)
        took_seconds = time.monotonic() - began
        (latency,) = (await samples(engine, "vllm:e2e_request_latency_seconds_sum")).values()
        assert 300.0 <= latency <= 1000.0 * took_seconds


async def test_load_is_tracked_where_it_is_asked_for() -> None:
    async with simulated_engine(step_seconds=0.01, tracks_load=True) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=1000)))
            await client.read_head()
            assert (await ask(engine.url, "/load")).json == {"server_load": 1}
            response = await ask(engine.url, CHAT, asking(), headers={"endpoint-load-metrics-format": "json"})
            assert (response.header("endpoint-load-metrics") or "").startswith('JSON {"named_metrics":')


async def test_an_idle_engine_sets_no_timer() -> None:
    async with simulated_engine() as engine:
        await ask(engine.url, CHAT, asking())
        assert engine.models[0].next_seconds is None and engine.drivers[0].is_asleep
