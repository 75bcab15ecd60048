"""Traces in a real collector process: the gateway's and the engine's under one id; and one that is down or hangs harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.collector import Collector, running_collector
from tests.doubles.raw_client import RawClient, ask
from tests.doubles.real_engine import running_engine
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.tiny_model import tiny_model
from tests.flow.conftest import all_ready, chat, settings_over

CHAT = "/v1/chat/completions"
WHOLE = {f"POST {CHAT}", "admit", "route", "chat tiny", "relay"}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with running_collector(tmp_path / "collector.log") as started:
        yield started


async def whole_traces(collector: Collector, number: int) -> None:
    """Wait until that many requests have come through the collector, each with all of its spans."""

    async def problems() -> list[str]:
        by_trace: dict[bytes, set[str]] = {}
        for service, span in collector.receiver.spans:
            if service == "serving-gateway":
                by_trace.setdefault(span.trace_id, set()).add(span.name)
        found = list(by_trace.values())
        return [] if len(found) == number and all(names == WHOLE for names in found) else [f"{len(found)} traces: {found[:3]}"]

    await settled(problems)


@pytest.mark.chart
async def test_o_obs_3_a_collector_that_hangs_or_is_down_slows_and_fails_nothing(
    engine: ScriptedEngine, collector: Collector
) -> None:
    tracing = {"endpoint": collector.url, "interval_seconds": 0.05, "timeout_seconds": 0.5}
    async with (
        RunningGateway(settings_over({"e1": engine}, tracing=tracing)) as gateway,
        RawClient(gateway.url) as client,
    ):
        await all_ready(gateway)
        assert (await client.ask(CHAT, chat(stream=True))).is_done
        await whole_traces(collector, 1)
        collector.hang()
        for _ in range(20):
            assert (await client.ask(CHAT, chat(stream=True))).is_done
        collector.wake()

        async def all_sent() -> list[str]:
            sent = (await gateway.metrics()).sum("serving_traces_total", result="sent")
            return [] if sent >= 21 else [f"{sent} sent"]

        await settled(all_sent)
        collector.die()
        for _ in range(20):
            assert (await client.ask(CHAT, chat(stream=True))).is_done
        collector.start_again()
        before = len({span.trace_id for _, span in collector.receiver.spans})

        async def come_again() -> list[str]:
            now = len({span.trace_id for _, span in collector.receiver.spans})
            return [] if now >= before + 20 else [f"{now - before} of 20"]

        await settled(come_again)
        assert (await gateway.metrics()).sum("serving_traces_total", result="dropped") == 0


@pytest.mark.chart
@pytest.mark.engine
async def test_o_obs_3_the_engines_spans_join_the_gateways(collector: Collector, tmp_path: Path) -> None:
    """A streamed request, a real vLLM, a real collector: one trace, in which the engine's span hangs below the attempt."""
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SERVICE_NAME": "vllm",
    }
    arguments = ["--otlp-traces-endpoint", collector.url]
    with running_engine(tiny_model(), tmp_path / "engine.log", arguments, environment=environment) as engine:
        given: dict[str, Any] = {
            "endpoints": [{"name": "e1", "url": engine.url, "model": "tiny"}],
            "tracing": {"endpoint": collector.url, "interval_seconds": 0.05},
        }
        async with RunningGateway(settings_over({}).model_validate(given)) as gateway:
            await all_ready(gateway)
            assert (await ask(gateway.url, CHAT, chat(stream=True, max_tokens=8))).is_done

            async def problems() -> list[str]:
                spans = collector.receiver.spans
                attempts = [span for service, span in spans if service == "serving-gateway" and span.name == "chat tiny"]
                if len(attempts) != 1:
                    return [f"{len(attempts)} attempts"]
                (attempt,) = attempts
                below = [span for service, span in spans if service == "vllm" and span.parent_span_id == attempt.span_id]
                return [] if below and {span.trace_id for span in below} == {attempt.trace_id} else [f"{len(spans)} spans"]

            await settled(problems)
    trace = {span.trace_id for service, span in collector.receiver.spans if service == "serving-gateway"}
    assert len(trace) == 1
    names = {span.name for service, span in collector.receiver.spans if span.trace_id in trace}
    assert names > WHOLE, f"the engine's are among {names}"
    (llm,) = [
        span
        for service, span in collector.receiver.spans
        if service == "vllm" and span.trace_id in trace and span.name == "llm_request"
    ]
    said = {each.key: each.value for each in llm.attributes}
    assert said["gen_ai.usage.completion_tokens"].int_value == 8
