"""The scripted engine does what its scripts say and its log says what happened."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "stream": True}
WHOLE = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}


async def test_gate_releases_event_by_event(engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.script(Script(gate=gate))
    async with RawClient(engine.url) as client:
        await client.send(request_bytes(CHAT, STREAM))
        record = await engine.reached("held:1")
        assert engine.metrics.running == 1 and record.delivered_tokens == 0
        response = await client.read_head()
        body = client.read_body(response)
        gate.open(2)
        await record.reached("first_token")
        await record.reached("held:3")
        assert record.delivered_tokens == 1
        assert b"role" in await anext(body) and b"t0" in await anext(body)
        gate.open_all()
        rest = [piece async for piece in body]
    assert rest[-1] == b"data: [DONE]\n\n" and response.end == "complete" and response.is_done
    assert record.outcome == "completed" and engine.metrics.running == 0


async def test_log_keeps_the_exact_bytes(engine: ScriptedEngine) -> None:
    sent = request_bytes(CHAT, WHOLE, headers={"x-Odd-Case": "1"})
    async with RawClient(engine.url) as client:
        await client.send(sent)
        response = await client.read()
    record = engine.log.requests[0]
    assert record.raw == sent and record.written == response.raw_head + bytes(response.raw_body)
    assert ("x-Odd-Case", "1") in record.headers and record.json == WHOLE


async def test_chunked_request_body_is_decoded_and_kept_raw(engine: ScriptedEngine) -> None:
    content = json.dumps(WHOLE).encode()
    framed = b"5\r\n" + content[:5] + b"\r\n%x;note=1\r\n" % len(content[5:]) + content[5:] + b"\r\n0\r\n\r\n"
    head = request_bytes(CHAT, headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, method="POST")
    async with RawClient(engine.url) as client:
        for byte in head + framed:
            await client.send(bytes([byte]))
        assert (await client.read()).status == 200
    assert engine.log.requests[0].body == content and engine.log.requests[0].raw == head + framed


@pytest.mark.parametrize(
    "bad",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"GET /x HTTP/1.1\n\n",
    ],
)
async def test_ambiguous_requests_are_refused_and_logged(engine: ScriptedEngine, bad: bytes) -> None:
    async with RawClient(engine.url) as client:
        await client.send(bad)
        assert (await client.read()).status == 400
        assert await client.closed_by_peer() == "fin"
    assert len(engine.log.malformed) == 1


@pytest.mark.parametrize(("fault", "end"), [("close_after", "truncated"), ("rst_after", "rst")])
async def test_stream_is_cut_after_k_events(engine: ScriptedEngine, fault: str, end: str) -> None:
    engine.script(Script(**{fault: 3}))
    response = await ask(engine.url, CHAT, STREAM)
    assert (response.end, len(response.events), response.is_done) == (end, 3, False)
    assert engine.log.requests[0].outcome == "script_closed" and engine.log.requests[0].delivered_tokens == 2


async def test_reset_without_one_byte(engine: ScriptedEngine) -> None:
    engine.script(Script(rst_after=0, head_at_arrival=False))
    with pytest.raises(HangUp, match="rst"):
        await ask(engine.url, CHAT, STREAM)
    assert engine.log.requests[0].writes == []


async def test_truncated_content_length(engine: ScriptedEngine) -> None:
    engine.script(Script(truncate_body_bytes=10))
    response = await ask(engine.url, CHAT, WHOLE)
    assert response.end == "truncated" and len(response.body) == 10 < int(response.header("content-length") or 0)


@pytest.mark.parametrize("script", [Script(blackhole=True), Script(stall_after=1), Script(stall_after=0, head_at_arrival=False)])
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_peer_that_leaves_is_seen_and_frees_its_slot(engine: ScriptedEngine, script: Script, how: str) -> None:
    engine.script(script)
    client = await RawClient(engine.url).connect()
    await client.send(request_bytes(CHAT, STREAM))
    record = await engine.request_arrived()
    if script.stall_after is not None:
        await record.reached("stalled")
    client.hang_up("rst" if how == "rst" else "fin")
    await record.done.wait()
    assert (record.outcome, record.peer_closed.is_set(), engine.metrics.running) == ("peer_closed", True, 0)
    if not record.writes:  # a reset, too, when unread bytes were left
        assert record.peer_closed_by == how


async def test_unfinished_body_is_logged(engine: ScriptedEngine) -> None:
    async with RawClient(engine.url) as client:
        await client.send(request_bytes(CHAT, WHOLE)[:-5])
        await client.send(b"")
        while not engine.log.requests:  # no event marks a request that is incomplete
            await asyncio.sleep(0)
    await engine.log.requests[0].done.wait()
    assert engine.log.requests[0].outcome == "peer_closed" and not engine.log.requests[0].is_complete


async def test_error_event_mid_stream(engine: ScriptedEngine) -> None:
    engine.script(Script(error_after=2))
    response = await ask(engine.url, CHAT, STREAM)
    assert response.data[-1]["error"]["code"] == 500 and response.is_done and response.end == "complete"
    assert len(response.events) == 4


async def test_raw_body_and_raw_response(engine: ScriptedEngine) -> None:
    usage = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=2)
    engine.script(Script(raw=[(0, b"data: a"), (0, b"\n\n")], raw_is="body", usage=usage))
    response = await ask(engine.url, "/anything", STREAM)
    assert [piece for _, piece in response.pieces] == [b"data: a", b"\n\n"] and response.end == "complete"
    assert engine.log.requests[0].usage == usage
    engine.script(Script(raw=[(0, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"), (0, b"\r\nok")], ending="fin"))
    assert (await ask(engine.url, CHAT, STREAM)).body == b"ok"


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_framing_and_gzip(engine: ScriptedEngine, framing: str) -> None:
    engine.default = Script(framing=framing, gzip=True)  # type: ignore[arg-type]
    whole = await ask(engine.url, CHAT, WHOLE)
    assert json.loads(gzip.decompress(whole.body))["usage"]["completion_tokens"] == 4
    stream = await ask(engine.url, CHAT, STREAM)
    assert zlib.decompress(stream.body, wbits=31).endswith(b"data: [DONE]\n\n")
    assert [bool(stream.header("content-length")), bool(stream.header("transfer-encoding"))] == [
        framing == "length",
        framing == "chunked",
    ]


async def test_scripts_by_queue_choice_and_default(engine: ScriptedEngine) -> None:
    engine.script(Script(status=503))
    engine.choose = lambda request: Script(status=500) if request.header("x-fail") else None
    assert (await ask(engine.url, CHAT, WHOLE)).json["error"]["code"] == 503
    assert (await ask(engine.url, CHAT, WHOLE, headers={"x-fail": "1"})).status == 500
    assert (await ask(engine.url, CHAT, WHOLE)).status == 200


async def test_refuse_and_come_back_on_the_same_port(engine: ScriptedEngine) -> None:
    url = engine.url
    engine.refuse()
    with pytest.raises(ConnectionRefusedError):
        await ask(url, "/health")
    await engine.start()
    assert engine.url == url and (await ask(url, "/health")).status == 200


async def test_stop_drains_then_cuts(engine: ScriptedEngine) -> None:
    gate, stuck = Gate(), Gate()
    engine.script(Script(gate=gate), Script(gate=stuck))
    finishing = asyncio.create_task(ask(engine.url, CHAT, STREAM))
    await engine.reached("held")
    cut = asyncio.create_task(ask(engine.url, CHAT, STREAM))
    await engine.reached("held", 2)
    stopping = asyncio.create_task(engine.stop(drain_seconds=0.2))
    gate.open_all()
    assert (await finishing).is_done and (await cut).end == "truncated"
    await stopping
    assert [record.outcome for record in engine.log.requests] == ["completed", "stopped"]


async def test_idle_connection_is_closed() -> None:
    async with ScriptedEngine(idle_close_seconds=0.05) as engine, RawClient(engine.url) as client:
        assert (await client.ask("/health")).status == 200
        assert await client.closed_by_peer() == "fin"


async def test_own_routes_can_be_scripted(engine: ScriptedEngine) -> None:
    engine.routes["/health"] = Script(status=503, body=b"")
    engine.metric_overrides["vllm:num_requests_running"] = 3
    engine.models.append("second")
    assert (await ask(engine.url, "/health")).status == 503
    assert b'vllm:num_requests_running{engine="0",model_name="tiny"} 3.0' in (await ask(engine.url, "/metrics")).body
    assert [card["id"] for card in (await ask(engine.url, "/v1/models")).json["data"]] == ["tiny", "second"]
    assert engine.log.requests == [] and len(engine.log.control_requests) == 3


async def test_requests_beyond_max_running_wait() -> None:
    async with ScriptedEngine(max_running=1) as engine:
        gate = Gate()
        engine.script(Script(gate=gate))
        first = asyncio.create_task(ask(engine.url, CHAT, WHOLE))
        await engine.reached("held")
        second = asyncio.create_task(ask(engine.url, CHAT, WHOLE))
        await engine.request_arrived(2)
        await asyncio.sleep(0)
        assert (engine.metrics.running, engine.metrics.waiting) == (1, 1)
        gate.open_all()
        assert [(await task).status for task in (first, second)] == [200, 200]
        assert (engine.metrics.running, engine.metrics.waiting) == (0, 0)


async def test_prefix_cache_depends_on_the_salt(engine: ScriptedEngine) -> None:
    async def cached_tokens(salt: str | None) -> int:
        body = {"prompt": "x" * 1000, "max_tokens": 1, "cache_salt": salt}
        answer = (await ask(engine.url, "/v1/completions", body)).json
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached_tokens(salt) for salt in (None, None, "a", "a")] == [0, 896, 0, 896]
