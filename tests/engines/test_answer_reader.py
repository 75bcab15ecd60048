"""The short way of reading answers comes to the same as the full parser, however the bytes are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.engines import wire
from serving.engines.answer_reader import read_chunks, read_head
from serving.engines.exchange import Exchange, WireError
from serving.engines.wire import Address, Connection, Pool
from tests.doubles.cutting import cut

HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\nContent-Type: text/plain\r\n"


def test_a_head_with_a_length_is_read() -> None:
    assert read_head(HEAD + b"Content-Length: 2\r\n\r\nOK") == (
        [(b"date", b"today"), (b"content-type", b"text/plain"), (b"content-length", b"2")],
        len(HEAD) + 21,
        2,
    )


def test_a_chunked_head_is_read_without_its_framing() -> None:
    data = HEAD + b"transfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"
    assert read_head(data) == ([(b"date", b"today"), (b"content-type", b"text/plain")], len(data), -1)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
        HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\n",
        HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n",
        HEAD + b"content-length: +1\r\n\r\n",
        HEAD + b"content-length: 1\r\nconnection: close\r\n\r\n",
        HEAD + b"content-length: 1\r\n folded\r\n\r\n",
        HEAD + b"content-length : 1\r\n\r\n",
        HEAD + b"upgrade: h2c\r\ncontent-length: 1\r\n\r\n",
        HEAD + b"content-length: 1\n\r\n\r\n",
    ],
)
def test_any_other_head_is_left_to_the_parser(head: bytes) -> None:
    assert read_head(head) is None


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"2\r\nOK\r\n", ([b"OK"], 7, False)),
        (b"2\r\nOK\r\n0a\r\n0123456789\r\n", ([b"OK", b"0123456789"], 23, False)),
        (b"2\r\nOK\r\n0\r\n\r\n", ([b"OK"], 7, True)),
        (b"0\r\n\r\n", ([], 0, True)),
        (b"2\r\nOK\r\n0\r\n\r\nmore", ([b"OK"], 7, False)),
        (b"2\r\nOK\r\n0\r\nx: y\r\n\r\n", ([b"OK"], 7, False)),
        (b"2\r\nOK\r\n3\r\nab", ([b"OK"], 7, False)),
        (b"2;x=y\r\nOK\r\n", ([], 0, False)),
        (b"0x2\r\nOK\r\n", ([], 0, False)),
        (b"-2\r\nOK\r\n", ([], 0, False)),
        (b"2 \r\nOK\r\n", ([], 0, False)),
        (b"2\r\nOKxx", ([], 0, False)),
        (b"000000002\r\nOK\r\n", ([], 0, False)),
    ],
)
def test_whole_plain_chunks_are_read(data: bytes, found: tuple[list[bytes], int, bool]) -> None:
    assert read_chunks(data) == found


# Against the full parser


class Silent:
    """A transport that takes everything and remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FullParserOnly(Connection):
    """The connection without its short ways."""

    def _take_head(self, exchange: Exchange, data: bytes) -> None:
        self._parser, self._headers = httptools.HttpResponseParser(self), []
        self._parse(data)


async def read(kind: type[Connection], pieces: list[bytes]) -> tuple[Any, ...]:
    """What becomes of an answer that comes in these pieces, then ends with the connection."""
    loop = asyncio.get_running_loop()
    pool = Pool(Address.parse("http://engine:1"), connect_timeout_seconds=1.0, idle_seconds=60.0)
    connection, transport = kind(loop, pool), Silent()
    connection.connection_made(transport)  # type: ignore[arg-type]
    exchange = Exchange(connection, deadline=1e9, idle_timeout_seconds=60.0, high_water_bytes=1 << 30)
    connection.send(exchange, b"")
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    kept = not transport.closed and connection.exchange is None
    connection.connection_lost(None)
    body, complete, failure = b"", False, None
    try:
        status = await exchange.head()
        while not complete:
            piece, complete = await exchange.piece()
            body += piece
    except WireError as error:
        failure = type(error)
        status = exchange.status
    headers = sorted(exchange.headers) if status else []
    return status, headers, body, complete, failure, kept


def chunks(*contents: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(content), content) for content in contents)


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ANSWERS = st.sampled_from(
    [
        HEAD + b"content-length: 12\r\n\r\nHello world!",
        HEAD + b"content-length: 0\r\n\r\n",
        HEAD + b"content-length: 2\r\n\r\nOK and more",
        HEAD + b"content-length: 2\r\nconnection: close\r\n\r\nOK",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nOK",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nNO",
        CHUNKED + chunks(b"data: one\n\n", b"data: two\n\n") + b"0\r\n\r\n",
        CHUNKED + chunks(b"a" * 300, b"b", b"c" * 17) + b"0\r\n\r\n",
        CHUNKED + b"5;name=value\r\nHello\r\n" + chunks(b"again") + b"0\r\n\r\n",
        CHUNKED + chunks(b"trailed") + b"0\r\nx-trailer: 1\r\n\r\n",
        CHUNKED + chunks(b"first") + b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        CHUNKED + chunks(b"first") + b"xyz\r\nbad\r\n",
        CHUNKED + chunks(b"cut off"),
        CHUNKED + b"5\r\nHelloXX0\r\n\r\n",
        HEAD + b"\r\nuntil the end",
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + chunks(b"abc") + b"0\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
    ]
)


@given(ANSWERS, st.lists(st.integers(0, 400), max_size=6))
@example(CHUNKED + chunks(b"data: one\n\n", b"data: two\n\n") + b"0\r\n\r\n", [len(CHUNKED), len(CHUNKED) + 16])
def test_the_short_way_comes_to_the_same(answer: bytes, places: list[int]) -> None:
    pieces = cut(answer, places)

    async def both() -> None:
        assert await read(Connection, pieces) == await read(FullParserOnly, pieces)

    asyncio.run(both())


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_what_is_framed_carries_what_is_fed(contents: list[bytes], places: list[int]) -> None:
    """The bytes that may be passed on as they are hold the same content as the piece."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = Pool(Address.parse("http://engine:1"), connect_timeout_seconds=1.0, idle_seconds=60.0)
        connection = Connection(loop, pool)
        connection.connection_made(Silent())  # type: ignore[arg-type]
        exchange = Exchange(connection, deadline=1e9, idle_timeout_seconds=60.0, high_water_bytes=1 << 30)
        connection.send(exchange, b"")
        connection.data_received(CHUNKED)
        fed = bytearray()

        def sink(data: bytes, framed: bytes | None) -> bool:
            fed.extend(data)
            if framed is not None:
                found, counted, ended = read_chunks(framed)
                assert (b"".join(found), counted, ended) == (data, len(framed), False)
            return True

        exchange.sink = sink
        for piece in cut(chunks(*contents) + b"0\r\n\r\n", places):
            connection.data_received(piece)
        assert bytes(fed) == b"".join(contents)
        assert connection.exchange is None

    asyncio.run(run())


def test_sizes_that_are_remembered_are_bounded() -> None:
    for size in range(1, 10_000):
        read_chunks(b"%x\r\n" % size)
    assert len(wire.SIZES) <= 4096
