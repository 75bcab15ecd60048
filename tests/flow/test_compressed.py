"""O-HTTP-2: compressed bodies are decompressed within the limit, or refused by name; the engine gets plain JSON."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from serving.api.decoding import Decoder
from tests.doubles.raw_client import RawClient, RawResponse, ask
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat
from tests.flow.test_edge_limits import MEBIBYTE, START, Growth

CHAT = "/v1/chat/completions"
BODY = json.dumps(chat()).encode()


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def bomb(size_bytes: int) -> Iterator[bytes]:
    """About a thousandth of its size, decompressed."""
    deflater = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    zeros = b" " * MEBIBYTE
    for _ in range(size_bytes // MEBIBYTE):
        yield deflater.compress(zeros)
    yield deflater.flush()


async def send_compressed(url: str, coding: str, body: bytes) -> RawResponse:
    return await ask(url, CHAT, body, headers={"Content-Encoding": coding})


GZIPPED = gzip.compress(BODY, mtime=0)


@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
        ("identity", bytes),
        ("identity, gzip", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:])),
    ],
)
async def test_o_http_2_a_supported_coding_is_undone(
    engine: ScriptedEngine, gateway_over: GatewayOver, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert (await send_compressed(gateway.url, coding, compress(BODY))).status == 200
        record = engine.log.requests[0]
        assert record.body == BODY
        assert record.header("content-encoding") is None
        assert record.header("content-length") == str(len(BODY))


@pytest.mark.parametrize("coding", ["zstd", "br", "foo", "compress", "gzip, foo", "gzip, gzip, gzip"])
async def test_o_http_2_another_coding_is_a_415_that_says_what_would_do(
    engine: ScriptedEngine, gateway_over: GatewayOver, coding: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await send_compressed(gateway.url, coding, b"whatever")
        assert (response.status, response.json["error"]["code"]) == (415, "unsupported_media_type")
        assert response.header("accept-encoding") == "gzip, deflate"
        assert not engine.log.requests


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", GZIPPED[:-9]),
        ("gzip", GZIPPED[:-1]),
        ("gzip", GZIPPED[:5]),
        ("gzip", b""),
        ("gzip", BODY),
        ("gzip", GZIPPED + b"more"),
        ("gzip", GZIPPED[:-8] + bytes(8)),
        ("deflate", zlib.compress(BODY)[:-1]),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("deflate", zlib.compress(BODY[:20]) + zlib.compress(BODY[20:])),
        ("deflate", b"\xff\xff\xff"),
        ("gzip, gzip", GZIPPED),
    ],
    ids=itertools.count(),
)
async def test_o_http_2_what_is_corrupt_or_cut_short_is_a_400(
    engine: ScriptedEngine, gateway_over: GatewayOver, coding: str, body: bytes
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await send_compressed(gateway.url, coding, body)
        assert (response.status, response.json["error"]["code"]) == (400, "invalid_content_encoding")
        assert not engine.log.requests


async def test_o_http_2_a_bomb_stops_at_the_decompressed_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """A thousandth of its size arrives; others do not wait, and memory does not grow beyond the limit's double."""
    limit = 32 * MEBIBYTE
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        growth = Growth()
        head = START + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        pieces = bomb(64 * MEBIBYTE)
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
        assert len(body) < MEBIBYTE // 8
        async with growth.measured():
            await client.send(head + body)
            reading = asyncio.create_task(client.read())
            slowest = 0.0
            while not reading.done():
                started = time.process_time()  # what else is done meanwhile; a busy machine may take longer
                assert (await ask(gateway.url, "/livez")).status == 200
                slowest = max(slowest, time.process_time() - started)
            response = await reading
        assert (response.status, response.json["error"]["code"]) == (413, "request_too_large")
        assert "decompressed" in response.json["error"]["message"]
        assert growth.bytes <= 2 * limit
        assert slowest < 0.5
        assert not engine.log.requests


def test_o_http_2_no_step_is_long_and_no_stage_blows_up() -> None:
    """A bomb in a bomb is small enough to be fed at once; each step of its way is short and its middle is bounded."""
    inner = b"".join(bomb(256 * MEBIBYTE))
    outer = gzip.compress(inner)
    assert len(outer) < 20_000
    decoder = Decoder(["gzip", "gzip"], 32 * MEBIBYTE)
    steps: list[float] = []
    made = 0
    started = time.process_time()
    with pytest.raises(Exception, match="larger than"):
        for piece in decoder.feed(outer):
            steps.append(time.process_time() - started)
            made += len(piece)
            started = time.process_time()
    assert made <= 32 * MEBIBYTE
    # The median of what the processor did, since another process may have it in any one step.
    assert sorted(steps)[len(steps) // 2] < 0.005


def test_o_http_2_empty_members_are_steps_too() -> None:
    decoder = Decoder(["gzip"], MEBIBYTE)
    assert sum(1 for _ in decoder.feed(gzip.compress(b"") * 5000)) >= 5000
    decoder.finish()


@pytest.mark.parametrize("size_bytes", [0, 1, 131_072, 131_073, 262_144, 1_000_000])
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 30])
def test_o_http_2_bytes_come_out_as_they_went_in(size_bytes: int, piece_bytes: int) -> None:
    plain = bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256)
    packed = zlib.compress(gzip.compress(plain))
    decoder = Decoder(["gzip", "deflate"], size_bytes + 10_000)
    pieces = [packed[start : start + piece_bytes] for start in range(0, len(packed), piece_bytes)]
    assert b"".join(part for piece in pieces for part in decoder.feed(piece)) == plain
    decoder.finish()


def test_o_http_2_what_zlib_holds_back_comes_out() -> None:
    """Where a step's piece is full just when all input is read, the rest is inside zlib."""
    for size_bytes in range(131_072, 131_200):
        plain = b"x" * size_bytes
        decoder = Decoder(["deflate"], size_bytes)
        assert b"".join(decoder.feed(raw_deflate(plain))) == plain
        decoder.finish()
