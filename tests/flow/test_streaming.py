"""O-STR-5 and O-STR-6: events are neither held back nor merged, and neither a reader nor an engine makes memory grow."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver
from tests.flow.surfaces import CHAT, GENERATING, asking, is_whole
from tests.flow.test_edge_limits import MEBIBYTE, Growth

STREAMS = 20
EVENT = b'data: {"choices":[{"text":"12345"}]}\n\n'


@pytest.mark.parametrize("path", GENERATING)
async def test_o_str_5_the_headers_are_those_of_a_stream(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, asking(path, stream=True))
        assert is_whole(response, path)
        assert (response.header("content-type") or "").startswith("text/event-stream")
        assert response.all("cache-control") == ["no-cache"]
        assert response.all("x-accel-buffering") == ["no"]
        assert response.all("transfer-encoding") == ["chunked"]
        assert not response.all("content-length")


@pytest.mark.parametrize("options", [None, {"include_usage": True}], ids=["usage hidden", "usage shown"])
async def test_o_str_5_each_event_is_out_before_the_next_is_made(
    engine: ScriptedEngine, gateway_over: GatewayOver, options: dict[str, bool] | None
) -> None:
    """Twenty streams in step: the engines make their next event only when all clients have had the last one."""
    events = 100
    gates = [Gate() for _ in range(STREAMS)]
    engine.script(*(Script(gate=gate, raw_is="body", raw=[(0.0, EVENT)] * events, framing="chunked") for gate in gates))
    async with gateway_over({"e1": engine}) as gateway, contextlib.AsyncExitStack() as clients:
        readers = []
        for number, gate in enumerate(gates, start=1):
            client = await clients.enter_async_context(RawClient(gateway.url))
            await client.send(request_bytes(CHAT, asking(CHAT, stream=True, stream_options=options)))
            await engine.request_arrived(number)
            gate.open()
            response = await client.read_head()
            readers.append(client.read_body(response))
        for _ in range(events):
            for gate, reader in zip(gates, readers, strict=True):
                assert await anext(reader) == EVENT
                gate.open()
        for reader in readers:
            rest = [piece async for piece in reader]
            assert len(rest) == 1 and b'"error"' in rest[0], "there was no [DONE]"


async def test_o_str_5_no_event_is_late(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """Times of the engine's writes against those of the clients' reads; the bound leaves room for a busy machine."""
    engine.default = Script(raw_is="body", raw=[(0.02, EVENT)] * 40 + [(0.0, b"data: [DONE]\n\n")])
    async with gateway_over({"e1": engine}) as gateway:
        names = [f"stream-{number}" for number in range(STREAMS)]
        body = asking(CHAT, stream=True)
        answers = await asyncio.gather(*(ask(gateway.url, CHAT, body, headers={"X-Request-Id": name}) for name in names))
        written = {
            record.header("x-request-id"): [write.at_seconds for write in record.writes if write.size_bytes > len(EVENT)]
            for record in engine.log.requests
        }
        late = []
        for name, answer in zip(names, answers, strict=True):
            events = [at for at, piece in answer.pieces if piece == EVENT]
            assert len(events) == 40, "none is merged with its neighbour"
            late += [read - wrote for read, wrote in zip(events, written[name][-40:], strict=True)]
        late.sort()
        print(
            f"an event is late by {late[len(late) // 2] * 1000:.1f} ms (p50), {late[int(len(late) * 0.99)] * 1000:.1f} ms (p99)"
        )
        assert late[int(len(late) * 0.99)] < 1.0


async def test_o_str_6_readers_that_never_read_hold_their_engines_back(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """Twenty of them, each offered 50 MiB."""
    event = b"data: " + b"x" * 65_528 + b"\n\n"

    def offer() -> Iterator[tuple[float, bytes]]:
        return ((0.0, event) for _ in range(800))

    engine.choose = lambda _: Script(raw_is="body", raw=offer(), log_bytes=False)
    growth = Growth()
    async with gateway_over({"e1": engine}, relay={"client_write_timeout_seconds": 1.0}) as gateway:
        async with contextlib.AsyncExitStack() as clients, growth.measured():
            for _ in range(STREAMS):
                client = await clients.enter_async_context(RawClient(gateway.url, receive_buffer_bytes=4096))
                await client.send(request_bytes(CHAT, asking(CHAT, stream=True)))
            async with asyncio.timeout(HANG_SECONDS):
                await asyncio.gather(*[(await engine.request_arrived(n)).peer_closed.wait() for n in range(1, STREAMS + 1)])
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="client_slow") == STREAMS
        assert metrics.sum("serving_open_leases") == 0
    offered = [sum(write.size_bytes for write in record.writes) for record in engine.log.requests]
    assert max(offered) < 50 * MEBIBYTE / 2, "the engine's send blocks"
    assert growth.bytes <= 64 * MEBIBYTE


@pytest.mark.parametrize("options", [None, {"include_usage": True}], ids=["usage hidden", "usage shown"])
async def test_o_str_6_a_stream_that_never_ends_a_line_passes_in_bounded_memory(
    engine: ScriptedEngine, gateway_over: GatewayOver, options: dict[str, bool] | None
) -> None:
    pieces = 1024
    piece = b"a" * 65_536
    engine.script(Script(raw_is="body", raw=((0.0, piece if n else b"data: ") for n in range(pieces + 1)), log_bytes=False))
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        growth = Growth()
        sent, received = hashlib.sha256(b"data: "), hashlib.sha256()
        for _ in range(pieces):
            sent.update(piece)
        async with growth.measured():
            await client.send(request_bytes(CHAT, asking(CHAT, stream=True, stream_options=options)))
            response = await client.read_head()
            last = b""
            async for part in client.read_body(response):
                received.update(last)
                last = part
                response.pieces.clear()
                response.raw_body.clear()
        assert last.startswith(b'\n\ndata: {"error"'), "the end is said to be none"
        assert received.digest() == sent.digest()
        assert growth.bytes <= 16 * MEBIBYTE

        async def problems() -> list[str]:
            unknown = (await gateway.metrics()).sum("serving_tokens_estimated_total", kind="prompt")
            return [] if unknown > 0 else ["the prompt is not charged by estimate"]

        await settled(problems)
