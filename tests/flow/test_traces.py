"""O-OBS-3: one finished span a request and one below it for each attempt, on every way that a request can end."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from serving.observability.otlp import SendFailed
from tests.doubles.conservation import conserved
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.span_sink import MemorySink, OtlpReceiver
from tests.flow.conftest import GatewayOver, all_ready, chat, settings_over

CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
StartEngine = Callable[..., Awaitable[ScriptedEngine]]


@asynccontextmanager
async def traced(
    engines: dict[str, ScriptedEngine], *, sink: MemorySink | None = None, tracing: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[RunningGateway, MemorySink]]:
    """A gateway whose spans are kept in memory, checked for conservation at its end."""
    given = {"endpoint": "http://127.0.0.1:9", "interval_seconds": 0.01} | (tracing or {})
    async with conserved(settings_over(engines, tracing=given, **sections), engines) as gateway:
        assert gateway.app.tracing is not None
        kept = gateway.app.tracing.sink = sink or MemorySink()
        yield gateway, kept


async def request_span(gateway: RunningGateway, sink: MemorySink, number: int = 1) -> ReadableSpan:
    """The `number`-th request's span, once there are exactly that many."""

    async def problems() -> list[str]:
        metrics = await gateway.metrics()
        open_spans = metrics.sum("serving_in_flight_requests")
        finished = len(sink.of(SpanKind.SERVER))
        return [] if (finished, open_spans) == (number, 0) else [f"{finished} finished, {open_spans} open"]

    await settled(problems)
    return sink.of(SpanKind.SERVER)[-1]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def check_family(sink: MemorySink, engines: dict[str, ScriptedEngine]) -> None:
    """One trace, one request, its attempts inside it, and each engine got its attempt as parent."""
    (server,) = sink.of(SpanKind.SERVER)
    attempts, stages = sink.of(SpanKind.CLIENT), sink.of(SpanKind.INTERNAL)
    assert len(sink.spans) == 1 + len(attempts) + len(stages)
    assert len({span.context.span_id for span in sink.spans}) == len(sink.spans)
    assert [span.name for span in stages].count("route") == len(attempts)
    for span in (*attempts, *stages):
        assert span.parent == server.context
        assert server.start_time <= span.start_time <= span.end_time <= server.end_time
    sent = [record.header("traceparent") for engine in engines.values() for record in engine.log.requests]
    reached = [span for span in attempts if attributes(span)["serving.attempt.result"] != "unreachable"]
    assert sorted(map(str, sent)) == sorted(
        f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}-01" for span in reached
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_o_obs_3_a_whole_answer(engine: ScriptedEngine, stream: bool) -> None:
    engine.default = Script(text=("SECRET", " answer"))
    async with traced({"e1": engine}) as (gateway, sink):
        question = [{"role": "user", "content": "SECRET prompt"}]
        answer = await ask(gateway.url, CHAT, chat(stream=stream, messages=question), headers={"x-request-id": "r-1"})
        assert answer.status == 200
        span = await request_span(gateway, sink)
        check_family(sink, {"e1": engine})
        usage = engine.log.requests[0].usage
        assert usage is not None
        found = attributes(span)
        assert (found.pop("gen_ai.response.time_to_first_chunk", 0.0) > 0) is stream
        assert str(found.pop("gen_ai.response.id")).startswith("chatcmpl-")
        assert found == {
            "http.request.method": "POST",
            "http.route": CHAT,
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.stream": stream,
            "gen_ai.response.model": "tiny",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "serving.request_id": "r-1",
            "serving.tenant": "default",
            "serving.pool": "default",
            "serving.endpoint": "e1",
            "serving.outcome": "ok",
            "serving.attempts": 1,
        }
        assert (span.name, span.status.status_code, span.parent) == (f"POST {CHAT}", StatusCode.UNSET, None)
        (attempt,) = sink.of(SpanKind.CLIENT)
        assert (attempt.name, attempt.status.status_code) == ("chat tiny", StatusCode.UNSET)
        assert attributes(attempt)["http.response.status_code"] == 200
        assert "SECRET" not in " ".join(span.to_json() for span in sink.spans)


async def test_o_obs_3_a_span_ends_after_the_last_byte(engine: ScriptedEngine) -> None:
    gate = Gate(events=3)
    engine.default = Script(gate=gate)
    async with traced({"e1": engine}) as (gateway, sink), RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        await engine.reached("held:4")
        await gateway.metrics()
        assert sink.spans == (), "it is not over"
        gate.open_all()
        async for _ in client.read_body(response):
            pass
        span = await request_span(gateway, sink)
        record = engine.log.requests[0]
        lasted = record.writes[-1].at_seconds - record.arrived_seconds
        assert span.end_time is not None
        assert span.start_time is not None
        assert span.end_time - span.start_time > lasted * 1e9


async def test_the_stages_follow_each_other(start_engine: StartEngine) -> None:
    """Each has its own span, in the order of the pipeline, and a retry a choice and an attempt of its own."""
    engines = {"e1": await start_engine(default=Script(status=500)), "e2": await start_engine()}
    async with traced(engines) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(stream=True))).is_done
        await request_span(gateway, sink)
        check_family(sink, engines)
        below = [span for span in sink.spans if span.kind is not SpanKind.SERVER]
        assert [span.name for span in below] == ["admit", "route", "chat tiny", "route", "chat tiny", "relay"]
        for before, after in itertools.pairwise(below):
            assert before.start_time is not None and before.end_time is not None and after.start_time is not None
            assert before.start_time <= before.end_time
            assert before.start_time <= after.start_time
            assert before.end_time <= after.start_time or after.name == "relay", "the answer is under way until its end"
        assert {span.status.status_code for span in below if span.kind is SpanKind.INTERNAL} == {StatusCode.UNSET}
        assert attributes(below[-1])["serving.stream.events"] > 0


async def test_a_choice_says_why_and_what_was_predicted(start_engine: StartEngine) -> None:
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with traced(engines) as (gateway, sink):
        await all_ready(gateway)
        assert (await ask(gateway.url, CHAT, chat(stream=True, max_tokens=7))).is_done
        await request_span(gateway, sink)
        (route,) = [span for span in sink.spans if span.name == "route"]
        found = attributes(route)
        decision = json.loads(found.pop("serving.decision"))
        (chosen,) = [row for row in decision["candidates"] if row["endpoint"] == decision["chosen"]]
        assert found == {
            "serving.endpoint": decision["chosen"],
            "serving.pool": "default",
            "serving.decision.reason": decision["reason"],
            "serving.decision.candidates": 2,
            "serving.predicted.prompt_tokens": decision["prompt_tokens"],
            "serving.predicted.output_tokens": 7,
            "serving.predicted.cached_tokens": chosen["cached_tokens"],
            "serving.predicted.ttft_seconds": chosen["ttft_seconds"],
            "serving.predicted.wait_seconds": chosen["wait_seconds"],
            "serving.predicted.latency_seconds": chosen["latency_seconds"],
            "serving.predicted.busy_seconds": chosen["busy_seconds"],
            "serving.predicted.dollars": chosen["dollars"],
        }


async def test_a_request_that_finds_no_engine_ends_in_its_choice(engine: ScriptedEngine) -> None:
    engine.routes["/health"] = Script(status=503)
    async with traced({"e1": engine}) as (gateway, sink):

        async def is_unready() -> list[str]:
            return [] if gateway.app.fleet.snapshot.candidates("tiny") == () else ["still a candidate"]

        await settled(is_unready)
        assert (await ask(gateway.url, CHAT, chat())).status == 503
        await request_span(gateway, sink)
        admit, route = sink.of(SpanKind.INTERNAL)
        assert (admit.name, admit.status.status_code) == ("admit", StatusCode.UNSET)
        assert (route.name, route.status.status_code) == ("route", StatusCode.ERROR)
        assert attributes(route) == {"error.type": "unavailable"}


async def test_what_a_client_wants_of_the_answer_is_told_in_numbers(engine: ScriptedEngine) -> None:
    wishes = {"temperature": 0.5, "top_p": 1, "seed": 7, "n": 1, "stop": ["SECRET"], "max_completion_tokens": 3}
    async with traced({"e1": engine}) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(**wishes))).status == 200
        found = attributes(await request_span(gateway, sink))
        assert {name: value for name, value in found.items() if name.startswith("gen_ai.request.")} == {
            "gen_ai.request.model": "tiny",
            "gen_ai.request.stream": False,
            "gen_ai.request.max_tokens": 3,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 1,
            "gen_ai.request.seed": 7,
        }
        assert "SECRET" not in " ".join(span.to_json() for span in sink.spans)


@pytest.mark.parametrize("events", [0, 3])
async def test_o_obs_3_a_client_that_leaves(engine: ScriptedEngine, events: int) -> None:
    """Before the first token, and after it."""
    engine.default = Script(gate=Gate(events=events), chunks=50)
    async with traced({"e1": engine}) as (gateway, sink):
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=50)))
            await engine.reached(f"held:{events + 1}")
            if events:
                await client.read_head()
        span = await request_span(gateway, sink)
        check_family(sink, {"e1": engine})
        found = attributes(span)
        assert found["serving.outcome"] == found["serving.cancel_reason"] == found["error.type"] == "client_cancelled"
        assert span.status.status_code is StatusCode.ERROR
        assert ("gen_ai.response.time_to_first_chunk" in found) is bool(events)
        assert found.get("serving.usage_estimated", False) is bool(events)
        (attempt,) = sink.of(SpanKind.CLIENT)
        assert attributes(attempt)["serving.attempt.result"] == "cancelled"


@pytest.mark.parametrize(
    ("script", "outcome", "status", "attempt"),
    [
        (Script(status=500), "engine_error", 502, ("error", 500)),
        (Script(status=400), "invalid", 400, ("refused", 400)),
        (Script(status=503), "overloaded", 429, ("busy", 503)),
        (Script(rst_after=0, head_at_arrival=False), "engine_error", 502, ("broken", None)),
        (Script(close_after=3), "truncated", 200, ("broken", 200)),
        (Script(error_after=3), "engine_error", 200, ("error", 200)),
    ],
)
async def test_o_obs_3_an_engine_that_fails(
    engine: ScriptedEngine, script: Script, outcome: str, status: int, attempt: tuple[str, int | None]
) -> None:
    engine.default = script
    async with traced({"e1": engine}) as (gateway, sink):
        await ask(gateway.url, CHAT, chat(stream=True))
        span = await request_span(gateway, sink)
        check_family(sink, {"e1": engine})
        found = attributes(span)
        assert (found["serving.outcome"], found["http.response.status_code"]) == (outcome, status)
        expected = StatusCode.ERROR if status >= 500 or status == 200 else StatusCode.UNSET
        assert span.status.status_code is expected
        (client,) = sink.of(SpanKind.CLIENT)
        assert client.status.status_code is StatusCode.ERROR
        result = attributes(client)
        assert (result["serving.attempt.result"], result.get("http.response.status_code")) == attempt


async def test_o_obs_3_a_retry_is_a_second_attempt(start_engine: StartEngine) -> None:
    engines = {"e1": await start_engine(default=Script(status=500)), "e2": await start_engine()}
    async with traced(engines) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        span = await request_span(gateway, sink)
        check_family(sink, engines)
        first, second = map(attributes, sink.of(SpanKind.CLIENT))
        assert (first["serving.endpoint"], first["serving.attempt.result"]) == ("e1", "error")
        assert (second["serving.endpoint"], second["serving.attempt.result"]) == ("e2", "ok")
        assert ("http.request.resend_count" in first, second["http.request.resend_count"]) == (False, 1)
        assert attributes(span)["serving.attempts"] == 2


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (CHAT, chat(), {}, 401),
        (CHAT, {"model": "tiny"}, {"authorization": "Bearer sk-test"}, 400),
        (CHAT, chat(model="nobody's"), {"authorization": "Bearer sk-test"}, 404),
    ],
)
async def test_o_obs_3_a_request_that_no_engine_saw(
    engine: ScriptedEngine, path: str, body: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async with traced({"e1": engine}, auth={"api_key": "sk-test"}) as (gateway, sink):
        assert (await ask(gateway.url, path, body, headers=headers)).status == status
        span = await request_span(gateway, sink)
        assert sink.of(SpanKind.CLIENT) == []
        assert attributes(span)["http.response.status_code"] == status
        assert span.status.status_code is StatusCode.UNSET
        assert "nobody" not in span.to_json()


async def test_o_obs_3_a_full_gateway(engine: ScriptedEngine) -> None:
    engine.default = Script(gate=(gate := Gate()))
    async with traced({"e1": engine}, limits={"in_flight": 1}) as (gateway, sink):
        first = asyncio.create_task(ask(gateway.url, CHAT, chat()))
        await engine.request_arrived()
        assert (await ask(gateway.url, CHAT, chat())).status == 429
        gate.open_all()
        assert (await first).status == 200
        await request_span(gateway, sink, 2)
        assert sorted(attributes(span)["serving.outcome"] for span in sink.of(SpanKind.SERVER)) == ["ok", "overloaded"]


# The caller's trace


async def test_o_obs_3_a_valid_traceparent_is_continued(engine: ScriptedEngine) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=x"}
    async with traced({"e1": engine}, tracing={"sample_ratio": 0.0}) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(), headers=headers)).status == 200
        span = await request_span(gateway, sink)
        check_family(sink, {"e1": engine})
        assert span.parent is not None
        assert span.parent.is_remote
        assert (format_trace_id(span.context.trace_id), format_span_id(span.parent.span_id)) == (TRACE, CALLER)
        sent = engine.log.requests[0]
        assert str(sent.header("traceparent")).startswith(f"00-{TRACE}-")
        assert CALLER not in str(sent.header("traceparent"))
        assert sent.header("tracestate") == "vendor=x"


@pytest.mark.parametrize(
    "malformed",
    [
        "nonsense",
        f"00-{TRACE}-{CALLER}",
        f"00-{TRACE.upper()}-{CALLER}-01",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{CALLER}-01",
    ],
)
async def test_o_obs_3_a_malformed_traceparent_begins_a_new_trace(engine: ScriptedEngine, malformed: str) -> None:
    async with traced({"e1": engine}) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(), headers={"traceparent": malformed, "tracestate": "a=b"})).status == 200
        span = await request_span(gateway, sink)
        check_family(sink, {"e1": engine})
        assert span.parent is None
        assert format_trace_id(span.context.trace_id) != TRACE
        assert engine.log.requests[0].header("tracestate") is None


async def test_o_obs_3_an_unsampled_trace_stays_unsampled(engine: ScriptedEngine) -> None:
    async with traced({"e1": engine}) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(), headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})).status == 200
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        await request_span(gateway, sink)
        sent = str(engine.log.requests[0].header("traceparent"))
        assert sent.startswith(f"00-{TRACE}-")
        assert sent.endswith("-00")
        assert TRACE not in {format_trace_id(span.context.trace_id) for span in sink.spans}


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.5, 20, 80), (1.0, 100, 100)])
async def test_a_share_of_the_requests_is_traced(engine: ScriptedEngine, ratio: float, least: int, most: int) -> None:
    async with traced({"e1": engine}, tracing={"sample_ratio": ratio}) as (gateway, sink), RawClient(gateway.url) as client:
        for _ in range(100):
            await client.ask(CHAT, chat())
        flags = [str(record.header("traceparent"))[-2:] for record in engine.log.requests]
        assert least <= flags.count("01") <= most
        if ratio:
            await request_span(gateway, sink, flags.count("01"))
    assert len(sink.of(SpanKind.SERVER)) == flags.count("01")


async def test_a_tracestate_that_is_none_is_not_logged(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "SECRET words, a=b, a=c"}
    async with traced({"e1": engine}) as (gateway, sink):
        assert (await ask(gateway.url, CHAT, chat(), headers=headers)).status == 200
        await request_span(gateway, sink)
    assert "SECRET" not in caplog.text


async def test_without_tracing_a_traceparent_passes_as_it_is(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        given = f"00-{TRACE}-{CALLER}-00"
        assert (await ask(gateway.url, CHAT, chat(), headers={"traceparent": given})).status == 200
        assert (await ask(gateway.url, CHAT, chat())).status == 200
    assert [record.header("traceparent") for record in engine.log.requests] == [given, None]


# The receiver


async def problems_of_counts(gateway: RunningGateway, **counts: int) -> list[str]:
    metrics = await gateway.metrics()
    found = {result: metrics.sum("serving_traces_total", result=result) for result in counts}
    return [] if found == counts else [f"{found} ≠ {counts}"]


async def test_a_receiver_gets_the_spans(engine: ScriptedEngine) -> None:
    with OtlpReceiver() as receiver:
        tracing = {"endpoint": receiver.url, "headers": {"x-key": "secret"}, "interval_seconds": 0.05}
        async with conserved(settings_over({"e1": engine}, tracing=tracing), {"e1": engine}) as gateway:
            for _ in range(5):
                assert (await ask(gateway.url, CHAT, chat())).status == 200
            await settled(lambda: problems_of_counts(gateway, sent=5))
        whole = [f"POST {CHAT}", "admit", "chat tiny", "relay", "route"]
        assert sorted(receiver.span_names) == [name for name in whole for _ in range(5)]
        path, headers, message = receiver.requests[0]
        assert (path, headers["content-type"], headers["x-key"]) == ("/v1/traces", "application/x-protobuf", "secret")
        (service, *_) = message.resource_spans[0].resource.attributes
        assert (service.key, service.value.string_value) == ("service.name", "serving-gateway")
        span = message.resource_spans[0].scope_spans[0].spans[0]
        assert span.end_time_unix_nano > span.start_time_unix_nano


@pytest.mark.parametrize(("statuses", "counts"), [([503, 429], {"sent": 1}), ([400], {"refused": 1})])
async def test_a_receiver_is_asked_again_while_it_is_busy(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, statuses: list[int], counts: dict[str, int]
) -> None:
    caplog.set_level(logging.INFO, "serving.tracing")
    with OtlpReceiver() as receiver:
        receiver.statuses = statuses[:]
        tracing = {"endpoint": receiver.url, "interval_seconds": 0.01}
        async with conserved(settings_over({"e1": engine}, tracing=tracing), {"e1": engine}) as gateway:
            assert (await ask(gateway.url, CHAT, chat())).status == 200
            await settled(lambda: problems_of_counts(gateway, **counts))
        assert len(receiver.requests) == len(statuses) + counts.get("sent", 0)
    said = [message for message in caplog.messages if "traces" in message]
    assert said[0] == f"traces cannot be sent: it answered {statuses[0]}"
    assert said[1:] == (["traces are sent again"] if "sent" in counts else [])


async def test_what_is_left_at_the_end_is_sent(engine: ScriptedEngine) -> None:
    with OtlpReceiver() as receiver:
        tracing = {"endpoint": receiver.url, "interval_seconds": 600.0}
        async with conserved(settings_over({"e1": engine}, tracing=tracing), {"e1": engine}) as gateway:
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len(receiver.span_names) == 5


async def test_a_receiver_that_hangs_delays_nobody_and_the_rest_is_dropped_and_counted(engine: ScriptedEngine) -> None:
    released = threading.Event()
    sink = MemorySink(on_send=lambda: assert_waited(released))
    tracing = {"queue_requests": 10}
    async with traced({"e1": engine}, sink=sink, tracing=tracing) as (gateway, _), RawClient(gateway.url) as client:
        await client.ask(CHAT, chat())

        async def not_hanging() -> list[str]:
            await gateway.metrics()
            return [] if sink.spans else ["nothing was sent yet"]

        await settled(not_hanging)
        for _ in range(30):
            assert (await client.ask(CHAT, chat())).status == 200
        await settled(lambda: problems_of_counts(gateway, dropped=20))
        released.set()
        await settled(lambda: problems_of_counts(gateway, dropped=20, sent=11))


def assert_waited(event: threading.Event) -> None:
    assert event.wait(60)


async def test_a_receiver_that_is_away_fails_nothing(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, not for each request; and the end of the process does not wait for it."""

    def away() -> None:
        raise SendFailed("nobody listens", retriable=True)

    async with traced({"e1": engine}, sink=MemorySink(on_send=away)) as (gateway, _):
        for _ in range(20):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
            await gateway.metrics()
    assert [message for message in caplog.messages if "traces" in message] == ["traces cannot be sent: nobody listens"]


@pytest.mark.engine
async def test_the_real_engine_takes_a_traceparent(real_engine: Any) -> None:
    settings = settings_over({}).model_dump() | {
        "endpoints": [{"name": "e1", "url": real_engine.url, "model": "tiny"}],
        "tracing": {"endpoint": "http://127.0.0.1:9", "interval_seconds": 0.01},
    }
    async with RunningGateway(settings_over({}).model_validate(settings)) as gateway:
        assert gateway.app.tracing is not None
        sink = gateway.app.tracing.sink = MemorySink()
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=x"}
        for stream in (False, True):
            answer = await ask(gateway.url, CHAT, chat(stream=stream), headers=headers)
            assert answer.status == 200
        span = await request_span(gateway, sink, 2)
        assert format_trace_id(span.context.trace_id) == TRACE
        assert attributes(span)["gen_ai.response.model"] == "tiny"
        assert attributes(span)["gen_ai.usage.output_tokens"] > 0
