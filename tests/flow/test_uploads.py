"""Forms that are too large to be held go to the engine while the client still sends them, and end well or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from serving.core.context import RequestContext
from serving.engines.exchange import StaleConnection
from serving.engines.relay import Relay
from serving.settings import Settings
from tests.doubles.forms import file, form, headers, text
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.doubles.vllm_audio import ReadForm, read_form
from tests.flow.conftest import GatewayOver
from tests.flow.test_surfaces import error_of

PATH = "/v1/audio/transcriptions"
MEBIBYTE = 1024 * 1024
MODEL = text("model", "tiny")
SOUND = bytes(range(251)) * (3 * MEBIBYTE // 251)
BUFFER = {"form_buffer_bytes": 64 * 1024}
LARGE = form([MODEL, file(SOUND), text("language", "en")])
CHUNKED = (
    f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: {headers()['Content-Type']}\r\n\r\n"
).encode()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """A scripted engine that transcribes."""
    async with ScriptedEngine(tasks=("transcription",)) as started:
        yield started


def sent_form(engine: ScriptedEngine, number: int = 1) -> ReadForm:
    record = engine.log.requests[number - 1]
    return read_form(record.header("content-type"), record.body)


def head(length: int, **more: str) -> bytes:
    return request_bytes(PATH, b"", headers=headers() | {"Content-Length": str(length)} | more)


async def has_got(engine: ScriptedEngine, least_bytes: int) -> None:
    async def problems() -> list[str]:
        got = sum(len(record.body) for record in engine.log.requests)
        return [] if got >= least_bytes else [f"{got} bytes"]

    await settled(problems)


async def test_a_large_form_reaches_the_engine_while_it_is_sent(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(len(LARGE)) + LARGE[: 2 * MEBIBYTE])
            await has_got(engine, MEBIBYTE)
            await client.send(LARGE[2 * MEBIBYTE :])
            response = await client.read()
            assert (response.status, response.end) == (200, "complete")
            sent = sent_form(engine)
            assert sent.file is not None and sent.file.data == SOUND
            assert [part.name for part in sent.parts] == ["model", "file", "language"]
            record = engine.log.requests[0]
            assert (record.header("transfer-encoding"), record.header("content-length")) == ("chunked", None)
            again = await client.ask(PATH, form([MODEL, file()]), headers=headers())
            assert again.status == 200 and engine.log.requests[1].header("content-length")
        assert engine.accepted_connections - len(engine.log.control_requests) == 1, "the connection was kept"


async def test_a_model_behind_a_large_file_is_waited_for(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = form([file(SOUND), MODEL])
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(len(body)) + body[:-10])
            await gateway.metrics()
            assert not engine.log.requests
            await client.send(body[-10:])
            assert (await client.read()).status == 200
        sent = sent_form(engine)
        assert sent.file is not None and sent.file.data == SOUND and sent.text("model") == "tiny"


async def test_a_stream_may_be_asked_for_behind_the_file(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = form([MODEL, file(SOUND), text("stream", "true"), text("priority", "-1")])
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        response = await ask(gateway.url, PATH, body, headers=headers())
        assert response.is_done and all(event["choices"] for event in response.data)
        assert response.header("x-serving-dropped-fields") == "priority"
        assert [part.name for part in sent_form(engine).parts] == ["model", "file", "stream", "stream_include_usage"]
        assert (await gateway.metrics()).sum("serving_tokens_total", kind="output") == 16


@pytest.mark.parametrize("coding", ["gzip", "chunked"])
async def test_other_ways_to_send_it(engine: ScriptedEngine, gateway_over: GatewayOver, coding: str) -> None:
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        if coding == "gzip":
            packed = gzip.compress(LARGE)
            response = await ask(gateway.url, PATH, packed, headers=headers() | {"Content-Encoding": "gzip"})
        else:
            async with RawClient(gateway.url) as client:
                chunks = [LARGE[at : at + 100_000] for at in range(0, len(LARGE), 100_000)]
                framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
                await client.send(CHUNKED + framed + b"0\r\n\r\n")
                response = await client.read()
        assert response.status == 200
        sent = sent_form(engine)
        assert sent.file is not None and sent.file.data == SOUND


# Ends that are not well


async def test_a_client_that_leaves_while_it_sends_leaves_nothing(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(len(LARGE)) + LARGE[: 2 * MEBIBYTE])
            await has_got(engine, MEBIBYTE)
        await asyncio.wait_for(engine.log.requests[0].peer_closed.wait(), HANG_SECONDS)
        assert not engine.log.requests[0].is_complete
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="client_cancelled") == 1


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (b"\r\n" + form([text("model", "other")]), "'model' is given twice"),
        (b"\r\n" + form([text("stream", "perhaps")]), "must be true or false"),
        (b"\r\n" + form([file()]), "'file' is given twice"),
        (b"\r\n" + form([b"no head"]), "malformed"),
        (b"", "ends before its last boundary"),
    ],
)
async def test_what_is_wrong_at_the_end_never_becomes_a_whole_request(
    engine: ScriptedEngine, gateway_over: GatewayOver, ending: bytes, words: str
) -> None:
    body = form([MODEL, file(SOUND)], end=b"").rpartition(b"\r\n")[0] + ending
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        response = await ask(gateway.url, PATH, body, headers=headers())
        assert response.status == 400 and words in error_of(response)["message"]
        (record,) = engine.log.requests
        await asyncio.wait_for(record.peer_closed.wait(), HANG_SECONDS)
        assert not record.is_complete
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="invalid") == 1


@pytest.mark.parametrize("announced", [True, False])
async def test_a_form_over_the_limit_is_a_413(engine: ScriptedEngine, gateway_over: GatewayOver, announced: bool) -> None:
    async with gateway_over({"e1": engine}, relay=BUFFER, limits={"body_bytes": MEBIBYTE}) as gateway:
        async with RawClient(gateway.url) as client:
            if announced:
                await client.send(head(len(LARGE)))
            else:
                await client.send(CHUNKED + b"%x\r\n" % len(LARGE))
                with contextlib.suppress(OSError):
                    await client.send(LARGE)
            response = await client.read()
        assert (response.status, response.header("connection")) == (413, "close")
        assert len(engine.log.requests) == (0 if announced else 1)
        assert not any(record.is_complete for record in engine.log.requests)


async def test_a_form_that_grows_too_large_by_decompression_is_a_413(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    bomb = gzip.compress(form([MODEL, file(b"\0" * (20 * MEBIBYTE))]))
    async with gateway_over({"e1": engine}, relay=BUFFER, limits={"body_bytes": 4 * MEBIBYTE}) as gateway:
        response = await ask(gateway.url, PATH, bomb, headers=headers() | {"Content-Encoding": "gzip"})
        assert response.status == 413
        assert not any(record.is_complete for record in engine.log.requests)


async def test_a_slow_client_is_told_so(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, relay=BUFFER, limits={"body_timeout_seconds": 0.3}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(len(LARGE)) + LARGE[:MEBIBYTE])
            response = await client.read()
        assert (response.status, error_of(response)["code"]) == (408, "request_timeout")
        assert not engine.log.requests[0].is_complete


async def test_an_engine_that_cannot_be_reached_costs_nothing_of_the_form(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    async with ScriptedEngine(tasks=("transcription",)) as other:
        async with gateway_over({"e1": engine, "e2": other}, relay=BUFFER, probe={"period_seconds": 60}) as gateway:
            await _all_ready(gateway)
            engine.refuse()
            for _ in range(2):
                response = await ask(gateway.url, PATH, LARGE, headers=headers())
                assert response.status == 200
            assert len(other.log.requests) == 2


async def test_a_small_form_is_tried_again_and_a_large_one_is_not(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with ScriptedEngine(tasks=("transcription",)) as other:
        engine.default = other.default = Script(status=500)
        async with gateway_over({"e1": engine, "e2": other}, relay=BUFFER) as gateway:
            await _all_ready(gateway)
            for body, attempts in ((form([MODEL, file()]), 2), (LARGE, 3)):
                response = await ask(gateway.url, PATH, body, headers=headers())
                assert (response.status, error_of(response)["code"]) == (502, "engine_failed")
                assert len(engine.log.requests) + len(other.log.requests) == attempts


async def _all_ready(gateway: RunningGateway) -> None:
    async def problems() -> list[str]:
        statuses = gateway.app.fleet.snapshot.statuses.values()
        return [f"{status.endpoint.name} is {status.state}" for status in statuses if status.state != "ready"]

    await settled(problems)


# Engines that the scripted one is too polite for

Serve = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Gets the request's head."""


@asynccontextmanager
async def rude_gateway(serve: Serve, **relay: float) -> AsyncIterator[RunningGateway]:
    """A gateway over an engine whose clients' connections are served by `serve` from the request's body on."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST") and b"x-serving-probe" not in head:
                await serve(head, reader, writer)
            else:
                body = b'{"data":[{"id":"tiny"}],"text":""}'
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, limit=8 * MEBIBYTE) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = {"name": "e1", "url": f"http://127.0.0.1:{port}", "model": "tiny", "tasks": ["transcription"]}
        settings = Settings.model_validate({"endpoints": [endpoint], "relay": BUFFER | relay})
        async with RunningGateway(settings) as gateway:
            yield gateway


@pytest.mark.parametrize(("status", "expected"), [(413, 413), (400, 400), (503, 429), (500, 502), (200, 502)])
async def test_an_engine_that_answers_before_the_end_is_heard_and_its_connection_is_not_kept(status: int, expected: int) -> None:
    gone = asyncio.Event()

    async def refuse(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        body = b'{"error":{"message":"Too much sound.","type":"x","param":null,"code":%d}}' % status
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
        )
        with contextlib.suppress(OSError):
            while await reader.read(2**16):
                pass
        gone.set()

    async with rude_gateway(refuse) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(10 * MEBIBYTE) + LARGE)
            with contextlib.suppress(OSError):
                await client.send(b"s" * (10 * MEBIBYTE - len(LARGE)))
            response = await client.read()
        assert response.status == expected
        assert ("Too much sound." in error_of(response)["message"]) == (expected in (400, 413))
        await asyncio.wait_for(gone.wait(), HANG_SECONDS)
        assert gateway.app.relay.open_exchanges == 0


async def test_an_engine_that_dies_inside_the_form_is_a_502() -> None:
    async def die(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        writer.transport.abort()

    async with rude_gateway(die) as gateway:
        response: RawResponse = await ask(gateway.url, PATH, LARGE, headers=headers())
        assert (response.status, error_of(response)["code"]) == (502, "engine_failed")


async def test_a_form_that_cannot_be_sent_twice_takes_no_kept_connection() -> None:
    """An engine may close one just then, and what was read of the form is gone."""

    async def answer_once(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"content-length" in head:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        await reader.read(1)

    async with rude_gateway(answer_once) as gateway:
        for body in (form([MODEL, file()]), LARGE):
            response = await ask(gateway.url, PATH, body, headers=headers())
            assert (response.status, response.body) == (200, b"{}")


async def test_a_form_of_which_something_is_gone_is_not_sent_again(
    engine: ScriptedEngine, gateway_over: GatewayOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def lose(_: Relay, __: str, ctx: RequestContext, **___: bool) -> None:
        nonlocal asked
        asked += 1
        assert ctx.rest is not None
        await ctx.rest.piece()
        raise StaleConnection("the connection was closed")

    monkeypatch.setattr(Relay, "ask", lose)
    async with gateway_over({"e1": engine}, relay=BUFFER) as gateway:
        response = await ask(gateway.url, PATH, LARGE, headers=headers())
        assert (response.status, error_of(response)["code"]) == (502, "engine_failed")
        assert asked == 1


async def test_an_engine_that_takes_nothing_holds_the_client_back_and_is_given_up() -> None:
    """What waits is what the sockets hold, not the form."""
    release = asyncio.Event()

    async def stall(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await release.wait()

    sent_bytes = 0
    async with rude_gateway(stall, first_byte_timeout_seconds=1.0) as gateway:
        try:
            async with RawClient(gateway.url) as client:
                await client.send(head(30 * MEBIBYTE) + LARGE[:MEBIBYTE])

                async def push() -> None:
                    nonlocal sent_bytes
                    while True:
                        await client.send(b"s" * 65_536)
                        sent_bytes += 65_536

                pushing = asyncio.create_task(push())
                await asyncio.wait({pushing}, timeout=0.5)
                assert not pushing.done() and sent_bytes < 16 * MEBIBYTE
                pushing.cancel()
                await asyncio.wait({pushing})
                response = await client.read()
                assert (response.status, error_of(response)["code"]) == (504, "engine_timeout")
        finally:
            release.set()


async def test_a_client_that_leaves_an_engine_that_takes_nothing_is_noticed() -> None:
    gone = asyncio.Event()

    async def stall(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while gateway.app.relay.open_exchanges == 0:
            await asyncio.sleep(0)
        while gateway.app.relay.open_exchanges:
            await asyncio.sleep(0.01)
        gone.set()

    async with rude_gateway(stall) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(head(30 * MEBIBYTE))
            pushing = asyncio.create_task(client.send(b"".join([LARGE] * 5)))
            await asyncio.wait({pushing}, timeout=0.5)
            pushing.cancel()
            await asyncio.wait({pushing})
        await asyncio.wait_for(gone.wait(), HANG_SECONDS)
