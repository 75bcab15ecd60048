"""What an engine's metrics say of it: ranks are summed, what is missing is unknown, and no bytes can do harm."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from serving.core.clock import monotonic
from serving.engines.relay import PROBE_BODY_BYTES
from serving.fleet.engine_load import NAMES, EngineLoad, read_load
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.sim.rates import Rates
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.simulated_engine import TINY, simulated_engine

SNAPSHOT = Path(__file__).resolve().parents[2] / "serving" / "sim" / "data" / "vllm-0.32.0-metrics.json"
EPOCH = 1.7e9


def page(*ranks: dict[str, float | str], model: str = "tiny") -> bytes:
    """A `/metrics` page with a series for each rank, in the order of a real one: all ranks of one name together."""
    lines = []
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        lines += [f"# HELP vllm:{name} Words.", f"# TYPE vllm:{name} gauge"]
        for number, rank in enumerate(ranks):
            if name in rank:
                lines.append(f'vllm:{name}{{engine="{number}",model_name="{model}"}} {rank[name]}')
                lines.append(f'vllm:{name}_created{{engine="{number}",model_name="{model}"}} {EPOCH}')
    return "\n".join([*lines, ""]).encode()


def rank(running: float = 0.0, waiting: float = 0.0, usage: float = 0.0, **more: float | str) -> dict[str, float | str]:
    return {"num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": usage, **more}


def test_the_names_are_those_of_the_engine() -> None:
    families = json.loads(SNAPSHOT.read_text())["families"]
    for name in map(bytes.decode, NAMES):
        family = families[name.removesuffix("_total")]
        assert family["kind"] == ("counter" if name.endswith("_total") else "gauge")
        assert family["labels"] == ["model_name", "engine"], "one series for each rank"


def test_several_ranks_are_summed() -> None:
    """Not the last one, not the first one, and not the busiest."""
    load = read_load(page(rank(3, 5, 0.2, generation_tokens_total=10), rank(0, 0, 0.0, generation_tokens_total=1)), 7.0)
    assert load is not None
    assert (load.read_at, load.ranks, load.running, load.waiting, load.output_tokens) == (7.0, 2, 3.0, 5.0, 11.0)
    assert (load.kv_cache_usage, load.kv_cache_usage_of_fullest) == (0.1, 0.2)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1)), min_size=1, max_size=16), st.randoms())
def test_the_order_of_ranks_means_nothing(ranks: list[tuple[int, int, float]], random: object) -> None:
    load = read_load(page(*(rank(*each) for each in ranks)), 0.0)
    assert load is not None and load.kv_cache_usage is not None
    assert (load.ranks, load.running, load.waiting) == (len(ranks), sum(r[0] for r in ranks), sum(r[1] for r in ranks))
    assert load.kv_cache_usage == pytest.approx(sum(r[2] for r in ranks) / len(ranks))
    assert load.kv_cache_usage_of_fullest == max(r[2] for r in ranks)


def test_what_is_missing_is_unknown_and_not_zero() -> None:
    load = read_load(b'vllm:num_requests_running{engine="0"} 3\n', 0.0)
    assert load is not None
    known = {field.name: getattr(load, field.name) for field in fields(load) if getattr(load, field.name) is not None}
    assert known == {"read_at": 0.0, "ranks": 1, "running": 3.0}
    assert read_load(b"", 0.0) is None
    assert read_load(b'vllm:generation_tokens_total{engine="0"} 3\n', 0.0) is None
    assert read_load(b'serving_requests_total{engine="0"} 3\n', 0.0) is None


def test_a_figure_that_not_all_ranks_tell_is_unknown() -> None:
    second = rank(4, 4)
    del second["num_requests_waiting"]
    load = read_load(page(rank(1, 1), second), 0.0)
    assert load is not None and (load.running, load.waiting) == (5.0, None)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e400", "1_0", "x", "", "0x10", "9" * 100])
def test_a_value_that_makes_no_sense_is_none(value: str) -> None:
    load = read_load(page(rank(2, value)), 0.0)
    assert load is not None and (load.running, load.waiting) == (2.0, None)
    assert read_load(page({"num_requests_running": value}), 0.0) is None


def test_more_than_the_whole_cache_cannot_be_in_use() -> None:
    load = read_load(page(rank(1, 1, 55.0)), 0.0)
    assert load is not None and (load.kv_cache_usage, load.kv_cache_usage_of_fullest) == (None, None)


def test_labels_may_hold_anything_and_a_time_may_follow() -> None:
    text = b'vllm:num_requests_running{model_name="a } 9 \\" b{",engine="0"} 2.0 1700000000000\nvllm:num_requests_waiting 4 5\n'
    load = read_load(text, 0.0)
    assert load is not None and (load.running, load.waiting) == (2.0, 4.0)


def test_names_that_begin_alike_are_others() -> None:
    text = (
        page(rank(1, 2)) + b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9\n# vllm:num_requests_running 5\n'
    )
    load = read_load(text, 0.0)
    assert load is not None and (load.running, load.waiting) == (1.0, 2.0)


def test_rates_come_from_two_reads() -> None:
    def at(seconds: float, queries: float, hits: float, prompt: float, output: float, before: EngineLoad | None) -> EngineLoad:
        counters = {"prefix_cache_queries_total": queries, "prefix_cache_hits_total": hits}
        tokens = {"prompt_tokens_total": prompt, "generation_tokens_total": output}
        load = read_load(page(rank(1, 0, 0.5, **counters, **tokens)), seconds, before)
        assert load is not None
        return load

    def rates(load: EngineLoad) -> tuple[float | None, ...]:
        return load.cache_hit_rate, load.prompt_tokens_per_second, load.output_tokens_per_second

    first = at(10.0, 1000, 400, 1000, 50, None)
    assert rates(first) == (None, None, None)
    second = at(12.0, 1100, 475, 1100, 250, first)
    assert rates(second) == (0.75, 50.0, 100.0)
    quiet = at(14.0, 1100, 475, 1100, 250, second)
    assert rates(quiet) == (None, 0.0, 0.0)  # nobody looked anything up: no rate, rather than 0 %
    restarted = at(16.0, 10, 5, 10, 3, quiet)
    assert rates(restarted) == (None, None, None)


@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(st.sampled_from([*NAMES, b"\n", b"{", b"}", b" ", b"1", b"nan", b'"', b"#"])).map(b"".join),
    )
)
def test_no_bytes_can_do_harm(garbage: bytes) -> None:
    for text in (garbage, page(rank(1, 2)) + garbage, garbage + b"\n" + page(rank(1, 2))):
        load = read_load(text, 0.0)
        if load is not None:
            assert all(value is None or value >= 0 for field in fields(load) if (value := getattr(load, field.name)) is not None)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 1e12), st.text('ab {}",=\\', max_size=8)), max_size=20))
def test_it_reads_what_the_reference_parser_reads(samples: list[tuple[bytes, float, str]]) -> None:
    def escaped(label: str) -> str:
        return label.replace("\\", "\\\\").replace('"', '\\"')

    text = "".join(
        f'{name.decode()}{{engine="{number}",model_name="{escaped(label)}"}} {value!r}\n'
        for number, (name, value, label) in enumerate(samples)
    )
    wanted: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            wanted.setdefault(sample.name, []).append(sample.value)
    load = read_load(text.encode(), 0.0)
    ranks = max(map(len, wanted.values()), default=0)
    for name, figure in (("vllm:num_requests_running", "running"), ("vllm:num_requests_waiting", "waiting")):
        values = wanted.get(name, [])
        if load is None:
            assert len(values) < ranks or not values
        else:
            assert getattr(load, figure) == (sum(values) if values and len(values) == ranks else None)


@pytest.mark.parametrize("line", [NAMES[0] + b"x", NAMES[0] + b"{} 1", NAMES[0]])
def test_a_page_of_one_name_is_no_engine_and_costs_little(line: bytes) -> None:
    text = b"\n".join([line] * (PROBE_BODY_BYTES // len(line)))
    before = time.process_time()
    assert read_load(text, 0.0) is None
    assert time.process_time() - before < 1.0  # a few milliseconds


async def test_a_simulated_engine_with_every_metric_is_read() -> None:
    async with simulated_engine(every_metric=True, rates=Rates(prefill_tokens_per_second=1e6, step_seconds=0.0001)) as engine:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 300}], "max_tokens": 5}
        assert (await ask(engine.url, "/v1/chat/completions", body)).status == 200
        load = read_load((await ask(engine.url, "/metrics")).body, 0.0)
    assert load is not None
    assert (load.ranks, load.running, load.waiting, load.output_tokens) == (1, 0.0, 0.0, 5.0)
    assert load.prefix_queries and load.prompt_tokens and load.prompt_tokens > 300
    assert None not in (load.kv_cache_usage, load.prefix_hits, load.preemptions)


@pytest.mark.engine
async def test_a_real_engine_is_read(real_engine: RealEngine) -> None:
    body = {"model": real_engine.model, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5}
    before = read_load((await ask(real_engine.url, "/metrics")).body, 0.0)
    assert (await ask(real_engine.url, "/v1/chat/completions", body)).status == 200
    load = read_load((await ask(real_engine.url, "/metrics")).body, 1.0, before)
    assert load is not None and before is not None
    unknown = {field.name for field in fields(load) if getattr(load, field.name) is None}
    assert unknown == {"adapter_slots", "adapters_running"}, "it was started without LoRA"
    assert (load.ranks, load.output_tokens_per_second) == (1, 5.0)


async def test_a_scripted_engine_is_read() -> None:
    async with ScriptedEngine() as engine:
        engine.metric_overrides["vllm:num_requests_waiting"] = 3.0
        load = read_load((await ask(engine.url, "/metrics")).body, 0.0)
    assert load is not None and (load.running, load.waiting, load.kv_cache_usage) == (0.0, 3.0, 0.0)


# In the fleet

ENDPOINT = Endpoint("e1", "http://e1:8000", "tiny", "cpu", "x", uid="1")


def test_what_is_old_is_unknown() -> None:
    fleet = Fleet([ENDPOINT])
    fleet.load_stale_seconds = 10.0
    assert fleet.load("e1") is None
    load = read_load(page(rank(1, 2)), monotonic())
    assert load is not None
    fleet.record_load(ENDPOINT, load)
    assert fleet.load("e1") is load
    fleet.record_load(ENDPOINT, replace(load, read_at=monotonic() - 10.5))
    assert fleet.load("e1") is None


def test_a_load_belongs_to_one_engine() -> None:
    fleet = Fleet([ENDPOINT])
    load = read_load(page(rank(1, 2)), monotonic())
    assert load is not None
    before = fleet.loads
    fleet.record_load(ENDPOINT, load)
    assert not before, "a snapshot does not change"
    successor = replace(ENDPOINT, uid="2")
    fleet.replace("cpu", [successor])
    assert fleet.load("e1") is None, "it was another engine that said so"
    fleet.record_load(ENDPOINT, load)
    assert fleet.load("e1") is None, "nor may its last answer, which comes late, be taken for the new one's"
    fleet.record_load(successor, load)
    fleet.record("e1", EndpointState.READY, "ready")
    assert fleet.load("e1") is load
    fleet.replace("cpu", [])
    assert not fleet.loads


def test_the_newest_series_tells_the_adapters() -> None:
    """vLLM keeps a series for each set of adapters that there ever was."""
    line = 'vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}\n'
    text = line.format(4, "a,b", "", EPOCH) + line.format(4, "sql,b", "c", EPOCH + 5) + line.format(4, "", "", EPOCH + 1)
    load = read_load(page(rank(1)) + text.encode(), 0.0)
    assert load is not None
    assert (load.adapter_slots, load.adapters_running) == (4, {"sql", "b"})
    without = read_load(page(rank(1)), 0.0)
    assert without is not None and (without.adapter_slots, without.adapters_running) == (None, None)
    odd = read_load(page(rank(1)) + line.format("many", "a", "", EPOCH).encode(), 0.0)
    assert odd is not None and odd.adapter_slots is None


async def test_a_simulated_engine_tells_its_adapters() -> None:
    limits = replace(TINY.limits, max_loras=3)
    async with simulated_engine(adapters=("x",), options=frozenset({"enable-lora"}), limits=limits) as engine:
        load = read_load((await ask(engine.url, "/metrics")).body, 0.0)
    assert load is not None and (load.adapter_slots, load.adapters_running) == (3, frozenset())
