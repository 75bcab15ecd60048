"""Whole replays against simulated and scripted engines: what is sent, what is seen, and what makes a run invalid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from serving.core.clock import monotonic
from serving.core.errors import ConfigurationError
from serving.replay.compare import compare
from serving.replay.profile import Objectives, ReplayProfile
from serving.replay.progress import LiveProgress
from serving.replay.report import Options, Report
from serving.replay.run import Order, replay
from serving.replay.stream import Client, Sample
from serving.settings import Settings, catalog_dir
from serving.sim.rates import Rates
from serving.sim.scheduler import Limits
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.virtual_time import VirtualTime, in_virtual_time, tell_its_time

LAG = ("client's lag", "client's CPU")
"""Checks that other work on the machine can fail."""
FAST = Rates(prefill_tokens_per_second=1_000_000, step_seconds=0.002)


CLOCKED = tuple(f"serving.{name}" for name in ("replay.stream", "replay.run", "replay.load", "sim.drive", "sim.exchange"))
"""Where a simulated engine and a replay read their clocks."""


def profile(**fields: Any) -> ReplayProfile:
    traffic = {
        "kind": "prompts",
        "prompt_tokens": 700,
        "output_tokens": 5,
        "shared_prefix": {"share": 0.6, "groups": 3},
        **fields.pop("traffic", {}),
    }
    base = {"name": "small", "description": "for tests", "concurrency": 4, "settle_seconds": 0.2, "measure_seconds": 1.0}
    return TypeAdapter(ReplayProfile).validate_python({**base, "traffic": traffic, **fields}, strict=False)


async def run(url: str, found: ReplayProfile | None = None, *, nonce: str = "n", **options: Any) -> Report:
    """A short replay; options are those of the command line."""
    given = Options(url=url, drain_seconds=5.0, timeout_seconds=20.0, **options)
    order = Order(given, found or profile(), nonce, catalog_dir())
    with LiveProgress(Console(file=StringIO())) as progress:
        return await replay(order, progress)


def faults(report: Report) -> dict[str, str]:
    """The failed checks of all stages but those of the client itself."""
    return {
        check.name: check.said
        for stage in report.stages
        for check in stage.checks
        if check.passed is False and check.name not in LAG
    }


def check(report: Report, name: str) -> Any:
    return next(check for check in report.stages[0].checks if check.name == name)


def block_for(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTime):
        loop.advance(seconds)
    else:
        time.sleep(seconds)


@asynccontextmanager
async def blocking_loop(seconds: float) -> AsyncIterator[None]:
    """Blocks the loop again and again, as a client does that has too much to do."""

    async def block() -> None:
        while True:
            block_for(seconds)
            await asyncio.sleep(seconds / 4)

    task = asyncio.get_running_loop().create_task(block())
    try:
        yield
    finally:
        task.cancel()


async def test_the_wanted_share_is_cached_and_lengths_are_exact() -> None:
    async with simulated_engine(rates=FAST) as engine:
        report = await run(engine.url)
    assert faults(report) == {}
    (stage,) = report.stages
    assert stage.cached_share == pytest.approx(0.6, abs=0.02)
    assert stage.engine_cached_share == pytest.approx(0.6, abs=0.03)
    assert set(stage.columns.prompt_tokens) == {700}
    assert set(stage.columns.output_tokens) == {5}
    for name in ("cached share", "engine's counters", "no other load", "prompt lengths"):
        assert check(report, name).passed is True, name
    assert report.simulated is not None
    assert (report.engine.block_tokens, report.engine.prefix_caching) == (128, True)


async def test_through_the_gateway_it_is_still_known_as_simulated() -> None:
    async with simulated_engine(rates=FAST) as engine:
        endpoint = {"name": "e1", "url": engine.url, "model": "tiny"}
        async with RunningGateway(Settings.model_validate({"endpoints": [endpoint]})) as gateway:
            report = await run(gateway.url, metrics_urls=(engine.url,))
            blind = await run(gateway.url, nonce="m")
    assert faults(report) == faults(blind) == {}
    assert report.simulated is not None
    assert blind.simulated is not None
    assert blind.engine.block_tokens == 128  # found by what was cached, since the gateway has no such metrics
    assert check(blind, "engine's counters").passed is None


async def test_sessions_grow_in_the_cache() -> None:
    sessions = {
        "kind": "sessions",
        "system_tokens": 300,
        "system_prompts": 2,
        "turns": 4,
        "first_user_tokens": 60,
        "next_user_tokens": 50,
        "output_tokens": 6,
        "think_seconds": 0.01,
    }
    data = {"name": "talk", "description": "d", "concurrency": 4, "settle_seconds": 0.3, "measure_seconds": 1.0}
    found = TypeAdapter(ReplayProfile).validate_python({**data, "traffic": sessions}, strict=False)
    async with simulated_engine(rates=FAST) as engine:
        report = await run(engine.url, found)
    assert faults(report) == {}
    assert len(set(report.stages[0].columns.prompt_tokens)) == 4
    assert min(report.stages[0].columns.sent_late) >= 0


@in_virtual_time
async def test_a_second_run_is_not_warm_and_equals_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_its_time(monkeypatch, *CLOCKED)
    found = profile(measure_seconds=2.0)
    async with simulated_engine(rates=Rates(prefill_tokens_per_second=1_000_000, step_seconds=0.02)) as engine:
        first = await run(engine.url, found, nonce="one")
        # All that it needs is in the report.
        second = await run(engine.url, first.profile, nonce="two", concurrencies=first.options.concurrencies)
    assert faults(first) == faults(second) == {}
    found_ratios = compare(first, second, margin=0.1, anyway=True)
    assert found_ratios.is_equal, found_ratios


async def test_the_same_words_again_are_a_warm_cache_and_invalid() -> None:
    async with simulated_engine(rates=FAST) as engine:
        await run(engine.url, nonce="same", rates=(40.0,))
        report = await run(engine.url, nonce="same", rates=(40.0,))
    assert "the cache was warm" in faults(report)["cached share"]
    assert not report.is_valid


async def test_an_engine_without_a_prefix_cache_is_found_out() -> None:
    async with simulated_engine(rates=FAST, keeps_prefixes=False) as engine:
        report = await run(engine.url)
    assert "prefix caching off" in faults(report)["cached share"]
    assert not report.is_valid


async def test_a_cache_that_is_too_small_is_found_out() -> None:
    limits = Limits(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=1024)
    groups = profile(traffic={"shared_prefix": {"share": 0.6, "groups": 20}})
    async with simulated_engine(rates=FAST, capacity_blocks=24, limits=limits) as engine:
        report = await run(engine.url, groups)
    assert "the cache is too small: it holds" in faults(report)["cached share"]


async def test_another_clients_load_is_found_out() -> None:
    async with simulated_engine(rates=FAST) as engine:
        other = asyncio.get_running_loop().create_task(run(engine.url, nonce="other"))
        report = await run(engine.url)
        await other
    assert "somebody else" in faults(report)["no other load"]


@in_virtual_time
async def test_a_client_that_lags_says_so_and_its_lag_is_in_the_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_its_time(monkeypatch, *CLOCKED)
    async with simulated_engine(rates=FAST) as engine:
        async with blocking_loop(0.25):
            report = await run(engine.url, rates=(60.0,), pace="paced")
    (stage,) = report.stages
    planned = stage.columns.intended
    assert [after - before for before, after in pairwise(planned)] == pytest.approx([1 / 60] * (len(planned) - 1), abs=1e-4)
    assert max(stage.columns.sent_late) > 0.1
    assert check(report, "client's lag").passed is False
    assert not report.is_valid
    assert any("the client lags" in fault for fault in report.faults)
    # Sent late by up to 250 ms: what counts from sending would not see it.
    assert stage.ttft.p99.value is not None
    assert stage.ttft.p99.value > 0.2


async def test_a_client_that_can_by_no_means_keep_up_gives_up() -> None:
    async with simulated_engine(rates=FAST) as engine:
        async with blocking_loop(1.5):
            report = await run(engine.url, profile(measure_seconds=30.0), rates=(50.0,))
    assert check(report, "client's CPU").passed is False
    assert any("gave up early" in fault for fault in report.faults)


async def test_latency_counts_from_the_intended_moment_when_the_engine_stalls() -> None:
    """Coordinated omission: a stall delays all requests that were to be sent in it, and each of them must show it."""
    stalls = Gate()
    async with ScriptedEngine(default=Script()) as engine:
        held = profile(traffic={"shared_prefix": None, "prompt_tokens": 200}, measure_seconds=2.0)
        running = asyncio.get_running_loop().create_task(run(engine.url, held, rates=(50.0,)))
        await engine.request_arrived(60)
        engine.default = Script(gate=stalls)
        await engine.request_arrived(100)
        engine.default = Script()
        stalls.open_all()
        report = await running
    slow = [value for value in report.stages[0].columns.ttft if value is not None and value > 0.1]
    assert len(slow) >= 20


@pytest.mark.parametrize(
    ("script", "name", "said"),
    [
        (Script(status=429), "errors", "status 429"),
        (Script(close_after=3), "errors", "connection"),
        (Script(error_after=2), "errors", "error in stream"),
        (Script(chunks=4), "output lengths", "answers are not as long as wanted"),
    ],
)
async def test_what_goes_wrong_in_answers_makes_a_run_invalid(script: Script, name: str, said: str) -> None:
    async with ScriptedEngine() as engine:
        engine.choose = lambda request: script if request.json.get("stream") else None
        report = await run(engine.url, profile(traffic={"shared_prefix": None}), rates=(60.0,))
    assert said in faults(report)[name]


async def test_one_simulated_answer_is_enough_to_call_a_run_simulated() -> None:
    """Behind one address some engines may be simulated, and others not."""
    marked = b'data: {"choices": [], "system_fingerprint": "vllm-0.32.0-simulated"}\n\n'
    async with ScriptedEngine() as engine:
        engine.choose = lambda request: (
            Script(raw_is="body", raw=[(0.0, marked), (0.0, b"data: [DONE]\n\n")]) if request.json.get("stream") else None
        )
        report = await run(engine.url, profile(traffic={"shared_prefix": None}), rates=(60.0,))
    assert report.simulated == "vllm-0.32.0-simulated"


async def test_an_engine_that_does_not_tell_what_was_cached() -> None:
    async with ScriptedEngine(prompt_tokens_details=False) as engine:
        engine.routes["/metrics"] = Script(status=404)
        report = await run(engine.url, rates=(60.0,))
    assert "nothing tells how much was cached" in faults(report)["cached share"]


async def test_an_engine_that_does_not_know_how_lengths_are_forced() -> None:
    async with ScriptedEngine() as engine:
        refusal = Script(status=400, body=b'{"error": {"message": "unknown field ignore_eos"}}')
        engine.choose = lambda request: refusal if "ignore_eos" in request.json else None
        report = await run(engine.url, rates=(60.0,))
        engine.choose = lambda request: refusal if "max_tokens" in request.json else None
        other = await run(engine.url, rates=(60.0,), nonce="m")
    assert report.engine.forced == ("max_tokens",)
    assert other.engine.forced == ("max_completion_tokens",)


async def test_dollars_come_from_the_price_and_from_nowhere_else() -> None:
    async with simulated_engine(rates=FAST) as engine:
        priced = await run(engine.url, price_dollars_per_hour=18.0, nodes=2)
        unpriced = await run(engine.url, nonce="m")
    stage = priced.stages[0]
    rate, cost = stage.output_tokens_per_second.value, stage.money.per_million_output_tokens.value
    assert rate is not None
    assert cost == pytest.approx(36.0 / 3600 / rate * 1e6)
    assert unpriced.stages[0].money.per_million_output_tokens.value is None


async def test_a_scale_that_does_not_fit_is_refused_with_one_that_does() -> None:
    async with simulated_engine(rates=FAST) as engine:
        with pytest.raises(ConfigurationError, match="--scale: at 10 the longest of 300 requests has 7,050 tokens"):
            await run(engine.url, scale=10.0)


@in_virtual_time
async def test_the_search_finds_a_known_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at a time, ten steps of 10 ms each: 40 requests a second."""
    tell_its_time(monkeypatch, *CLOCKED)
    rates = Rates(prefill_tokens_per_second=1e9, step_seconds=0.01)
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=100_000, max_model_len=4096)
    found = profile(
        traffic={"shared_prefix": None, "prompt_tokens": 60, "output_tokens": 10}, settle_seconds=1.0, measure_seconds=4.0
    )
    async with simulated_engine(rates=rates, limits=limits) as engine:
        report = await run(
            engine.url,
            found,
            search=True,
            search_from=30.0,
            search_precision=0.04,
            pace="paced",
            objectives=Objectives(e2e_seconds=0.5, share=0.95),
        )
    assert report.found is not None
    assert report.found.requests_per_second == pytest.approx(40.0, rel=0.05)


class Telling(LiveProgress):
    """Tells when a phase begins."""

    def __init__(self, awaited: str) -> None:
        super().__init__(Console(file=StringIO()))
        self._awaited = awaited
        self.has_begun = asyncio.Event()

    def phase(self, text: str, total_seconds: float | None = None) -> None:
        super().phase(text, total_seconds)
        if text == self._awaited:
            self.has_begun.set()


async def test_a_sweep_that_is_stopped_keeps_the_loads_that_it_has_measured() -> None:
    async with simulated_engine(rates=FAST) as engine:
        options = Options(url=engine.url, rates=(30.0, 40.0, 50.0))
        with Telling("40 requests/s, poisson") as progress:
            running = asyncio.create_task(replay(Order(options, profile(), "n", catalog_dir()), progress))
            await progress.has_begun.wait()
            running.cancel()
            report = await running
    assert [stage.label for stage in report.stages] == ["30 requests/s, poisson"]
    assert report.faults == ("it was stopped; only these of its loads were measured: 30 requests/s, poisson",)
    assert not report.is_valid


async def test_a_run_that_is_stopped_in_its_first_load_has_no_report() -> None:
    async with simulated_engine(rates=FAST) as engine:
        with Telling("30 requests/s, poisson") as progress:
            options = Options(url=engine.url, rates=(30.0,))
            running = asyncio.create_task(replay(Order(options, profile(), "n", catalog_dir()), progress))
            await progress.has_begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


@in_virtual_time
async def test_simulated_hardware_compares_as_it_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_its_time(monkeypatch, *CLOCKED)
    reports = []
    for step_seconds in (0.010, 0.016):
        async with simulated_engine(rates=Rates(prefill_tokens_per_second=1e9, step_seconds=step_seconds)) as engine:
            found = profile(traffic={"shared_prefix": None, "prompt_tokens": 60, "output_tokens": 20}, measure_seconds=3.0)
            reports.append(await run(engine.url, found))
    ratios = {ratio.name: ratio.ratio for ratio in compare(*reports, margin=0.02, anyway=True).stages[0].ratios}
    per_token = ratios["time per output token p50"]
    assert per_token.value == pytest.approx(1.6, rel=0.03)


async def test_a_kept_connection_that_was_closed_is_tried_again(engine: ScriptedEngine) -> None:
    client = Client(engine.url, None, timeout_seconds=5.0)
    try:
        for number in (1, 2):
            ended: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
            body = b'{"model": "tiny", "stream": true, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}'
            client.send(body, Sample(number, monotonic(), 1, 0, 2), ended.set_result)
            sample = await ended
            assert sample.error is None, sample.detail
            assert len(sample.token_moments) == 2
            # The next request finds its kept connection gone, after it was written.
            engine.script(Script(rst_after=0, head_at_arrival=False))
    finally:
        await client.close()
