"""What one client may send and how long it may take has a limit with a name; what lies beyond it costs little memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
MEBIBYTE = 1024 * 1024
START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class Growth:
    """The most by which this process grew while the block ran."""

    def __init__(self) -> None:
        self.bytes = 0

    async def _watch(self, start: int) -> None:
        while True:
            self.bytes = max(self.bytes, resident_bytes() - start)
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[Growth]:
        watch = asyncio.create_task(self._watch(resident_bytes()))
        try:
            yield self
        finally:
            watch.cancel()
            await asyncio.wait({watch})


async def send_until_refused(client: RawClient, piece: bytes, most_bytes: int) -> int:
    """Send the same piece again and again until the peer ends it. Returns how much went out."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most_bytes:
            await client.send(piece)
            sent += len(piece)
    return sent


def image_body(size_bytes: int) -> bytes:
    """A chat with an image as a data URL."""
    url = "data:image/png;base64," + base64.b64encode(os.urandom(size_bytes * 3 // 4)).decode()
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps(chat(messages=[{"role": "user", "content": content}])).encode()


def in_chunks(body: bytes, chunk_bytes: int) -> list[bytes]:
    pieces = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


# Bodies


@pytest.mark.parametrize("chunk_bytes", [None, 1024])
async def test_o_api_4_12_mib_pass_unchanged(engine: ScriptedEngine, gateway_over: GatewayOver, chunk_bytes: int | None) -> None:
    body = image_body(12 * MEBIBYTE)
    assert len(body) >= 12 * MEBIBYTE
    engine.default = Script(body=b"{}")
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        framing = f"Content-Length: {len(body)}" if chunk_bytes is None else "Transfer-Encoding: chunked"
        await client.send(START + f"Content-Type: application/json\r\n{framing}\r\n\r\n".encode())
        for piece in [body] if chunk_bytes is None else in_chunks(body, chunk_bytes):
            await client.send(piece)
        response = await client.read()
        assert response.status == 200, response.body
        assert engine.log.requests[0].body == body


async def test_o_api_4_a_head_that_announces_33_mib_is_a_413_at_once(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(START + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (33 * MEBIBYTE))
        response = await client.read()
        assert (response.status, response.json["error"]["code"]) == (413, "request_too_large")
        assert await client.closed_by_peer() == "fin"
        assert not engine.log.requests


async def test_o_api_4_an_endless_body_is_a_413_and_the_end(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The client reads only when it can send no more, and still finds the answer."""
    limit = 8 * MEBIBYTE
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    async with gateway_over({"e1": engine}, limits={"body_bytes": limit}) as gateway, RawClient(gateway.url) as client:
        await client.send(START + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        growth = Growth()
        async with growth.measured():
            reading = asyncio.create_task(client.read())
            slowest = 0.0
            sending = asyncio.create_task(send_until_refused(client, piece, 1 << 40))
            while not reading.done():
                started = time.process_time()  # what else is done meanwhile; a busy machine may take longer
                assert (await ask(gateway.url, "/livez")).status == 200
                slowest = max(slowest, time.process_time() - started)
            response = await reading
            await sending
        assert (response.status, response.json["error"]["code"]) == (413, "request_too_large")
        assert response.header("connection") == "close"
        assert growth.bytes <= 2 * limit + 4 * MEBIBYTE
        assert slowest < 0.5
        assert not engine.log.requests


async def test_an_early_answer_reaches_a_client_that_sends_on(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """A reset over unread bytes would overtake the answer at clients that send all before they read."""
    async with gateway_over({"e1": engine}, limits={"body_bytes": 1024}) as gateway, RawClient(gateway.url) as client:
        body = b" " * 200_000
        await client.send(START + b"Content-Length: %d\r\n\r\n" % len(body))
        await asyncio.sleep(0.1)
        for start in range(0, len(body), 20_000):
            await client.send(body[start : start + 20_000])
            await asyncio.sleep(0.01)
        assert (await client.read()).status == 413
        assert await client.closed_by_peer() == "fin"


# Heads


@pytest.mark.parametrize(
    ("beginning", "piece", "status"),
    [
        (START, b"X-%08d: a\r\n" % 1, 431),
        (START + b"X: ", b"a" * 65_536, 431),
        (START, b"X" * 65_536, 431),
        (b"POST /", b"a" * 65_536, 414),
        (b"", b"\r\n" * 32_768, 431),
        (START + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", b"a" * 65_536, 431),
        (START + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X: %s\r\n" % (b"a" * 1000), 431),
        (START + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 65_536, 431),
    ],
    ids=[
        "many fields",
        "a long value",
        "a long name",
        "a long url",
        "empty lines",
        "a long trailer",
        "many trailers",
        "a long extension",
    ],
)
async def test_a_head_without_end_is_cut(
    engine: ScriptedEngine, gateway_over: GatewayOver, beginning: bytes, piece: bytes, status: int
) -> None:
    """100 MiB are on offer; neither are they taken nor is memory."""
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        growth = Growth()
        async with growth.measured():
            await client.send(beginning)
            reading = asyncio.create_task(client.read())
            sending = asyncio.create_task(send_until_refused(client, piece, 1 << 40))
            response = await reading
            await sending
        assert (response.status, response.header("connection")) == (status, "close")
        assert set(response.json["error"]) == {"message", "type", "param", "code"}
        assert growth.bytes <= 4 * MEBIBYTE
        assert not engine.log.requests


async def test_a_head_is_cut_at_its_limit_and_not_at_its_end(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(START)
        for _ in range(4):
            await client.send(b"X: %s\r\n" % (b"a" * 30_000))
            await asyncio.sleep(0.05)
        assert (await client.read()).status == 431


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", {f"X-{number}": "a" for number in range(31)}, 200),
        ("/v1/models", {f"X-{number}": "a" for number in range(32)}, 431),
        ("/v1/models", {"X": "a" * 900}, 200),
        ("/v1/models", {"X": "a" * 1100}, 431),
        ("/v1/models?" + "a" * 180, {}, 200),
        ("/v1/models?" + "a" * 200, {}, 414),
    ],
)
async def test_the_limits_of_a_head_are_settings(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, headers: dict[str, str], status: int
) -> None:
    limits = {"header_bytes": 1024, "header_count": 32, "url_bytes": 200}
    async with gateway_over({"e1": engine}, limits=limits) as gateway:
        assert (await ask(gateway.url, path, headers=headers)).status == status


async def test_a_body_is_no_part_of_the_heads_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = chat(messages=[{"role": "user", "content": "word " * 400}])
    async with gateway_over({"e1": engine}, limits={"header_bytes": 256}) as gateway, RawClient(gateway.url) as client:
        for _ in range(3):
            assert (await client.ask(CHAT, body)).status == 200


# Time


@pytest.mark.parametrize(
    ("after_a_request", "sent", "dribble", "answer"),
    [
        (False, b"", b"", None),
        *[
            (after, *case)
            for after in (False, True)
            for case in ((b"", b"\r\n", None), (START, b"", 408), (START + b"X: ", b"a", 408), (b"GE", b"", 408))
        ],
    ],
)
async def test_a_head_that_does_not_come_in_time_ends_the_connection(
    engine: ScriptedEngine, gateway_over: GatewayOver, after_a_request: bool, sent: bytes, dribble: bytes, answer: int | None
) -> None:
    limits = {"header_timeout_seconds": 0.3}
    async with gateway_over({"e1": engine}, limits=limits) as gateway, RawClient(gateway.url) as client:
        if after_a_request:
            assert (await client.ask("/v1/models")).status == 200
            await asyncio.sleep(0.4)
        started = time.monotonic()
        await client.send(sent)
        reading = asyncio.create_task(client.read())
        with contextlib.suppress(ConnectionError):
            while not reading.done() and time.monotonic() - started < HANG_SECONDS:
                await client.send(dribble)
                await asyncio.sleep(0.05)
        if answer is None:
            with pytest.raises(HangUp):
                await reading
        else:
            assert (await reading).status == answer
            await client.closed_by_peer()
        assert time.monotonic() - started > 0.2
        assert (await gateway.metrics()).sum("serving_rejections_total", reason="header_timeout") == 1


async def test_a_long_answer_is_no_slow_head(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(ttft_seconds=3.0), Script(itl_seconds=0.4, chunks=8))
    async with gateway_over({"e1": engine}, limits={"header_timeout_seconds": 1.5}) as gateway, RawClient(gateway.url) as client:
        assert (await client.ask(CHAT, chat())).status == 200
        assert (await client.ask(CHAT, chat(stream=True, max_tokens=8))).is_done


async def test_a_body_that_does_not_come_in_time_is_a_408(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, limits={"body_timeout_seconds": 0.3}) as gateway, RawClient(gateway.url) as client:
        await client.send(START + b"Content-Length: 100\r\n\r\n{")
        response = await client.read()
        assert (response.status, response.json["error"]["code"]) == (408, "request_timeout")
        assert await client.closed_by_peer() == "fin"


# Connections


async def test_one_connection_too_many_is_a_503_that_says_when_to_come_back(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    async with contextlib.AsyncExitStack() as clients, gateway_over({"e1": engine}, limits={"connections": 3}) as gateway:
        await settled(lambda: no_connections(gateway))
        kept = [await clients.enter_async_context(RawClient(gateway.url)) for _ in range(3)]
        for client in kept:
            assert (await client.ask(CHAT, chat())).status == 200
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, response.json["error"]["code"]) == (503, "too_many_connections")
        assert 1 <= int(response.header("retry-after") or 0) <= 30
        assert response.header("connection") == "close"
        for path in ("/livez", "/readyz"):
            assert (await ask(gateway.url, path)).status == 200, "a full gateway is alive"
        assert (await kept[0].ask(CHAT, chat())).status == 200
        for client in kept:
            client.hang_up()
        await settled(lambda: no_connections(gateway))
        assert (await ask(gateway.url, CHAT, chat())).status == 200


async def test_connections_far_beyond_the_limit_are_not_even_answered(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with contextlib.AsyncExitStack() as clients, gateway_over({"e1": engine}, limits={"connections": 3}) as gateway:
        await settled(lambda: no_connections(gateway))
        for _ in range(3 + 64):
            await clients.enter_async_context(RawClient(gateway.url))
        last = await clients.enter_async_context(RawClient(gateway.url))
        assert await last.closed_by_peer() in ("fin", "rst")
        await clients.aclose()
        await settled(lambda: no_connections(gateway))


async def no_connections(gateway: RunningGateway) -> list[str]:
    count = gateway.open_connections
    return [f"{count} connections"] if count else []


# What clients of other makes send


async def test_an_offer_to_upgrade_is_passed_over_with_its_body(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """Java's HTTP client offers HTTP/2 with its first request; the parser would lose its body and all that follows."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAAAAMAAAAA"}
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for _ in range(2):
            assert (await client.ask(CHAT, chat(), headers=offer)).status == 200
        assert (await client.ask("/v1/models", headers=offer)).status == 200
        assert [record.json for record in engine.log.requests] == [chat(), chat()]


async def test_a_client_that_waits_for_100_continue_is_asked_for_its_body(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    head, _, body = request_bytes(CHAT, chat(), headers={"Expect": "100-continue"}).partition(b"\r\n\r\n")
    async with gateway_over({"e1": engine}) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head + b"\r\n\r\n")
        async with asyncio.timeout(HANG_SECONDS):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
