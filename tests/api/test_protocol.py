"""The short way into the server comes to the same as the parser, for whatever bytes and however they are cut."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from serving.api.door import Door, DoorConfig
from serving.api.protocol import Connection
from serving.settings import LimitSettings
from tests.doubles.cutting import cut
from tests.flow.test_smuggling import VECTORS, post

LIMITS = LimitSettings(header_count=12, header_bytes=2000)
BODY = b'{"model": "m", "messages": []}'
LENGTH = b"Content-Length: %d" % len(BODY)


class ParserOnly(Connection):
    """The connection without its short way."""

    def _take(self, data: bytes) -> bool:
        return False


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close
    write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def served(kind: type[Connection], pieces: list[bytes]) -> tuple[Any, ...]:
    """The requests that the application saw, what the client got, and whether the connection is still open."""
    seen: list[tuple[Any, ...]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                seen.append((scope["method"], scope["path"], "left"))
                return
            body += message["body"]
            more = message["more_body"]
        seen.append((scope["method"], scope["path"], scope["headers"], scope["query_string"], scope["http_version"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"OK"})

    refused: list[str] = []
    config = DoorConfig(app, Door(LIMITS, refused.append, 60.0), lifespan="off", ws="none", http=Connection, log_config=None)
    config.load()
    state = ServerState()
    connection, wire = kind(config, state, {}), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
            for _ in range(8):
                await asyncio.sleep(0)
    open_ = not wire.closed
    connection.connection_lost(None)
    while state.tasks:
        await asyncio.sleep(0)
    return seen, bytes(wire.written), open_, refused


ORDINARY = post(LENGTH, body=BODY)
REQUESTS = st.one_of(
    st.just(ORDINARY),
    st.just(post(LENGTH, b"Authorization: Bearer sk-a", b"X-Request-Id: one", b"Connection: keep-alive", body=BODY)),
    st.sampled_from(
        [
            post(LENGTH, b"Authorization: Bearer a", b"Authorization: Bearer b", body=BODY),
            post(LENGTH, b"Expect: 100-continue", body=BODY),
            post(LENGTH, b"Connection: close", body=BODY),
            post(LENGTH, b"Upgrade: h2c", b"Connection: Upgrade", body=BODY),
            post(LENGTH, b"X: a ", body=BODY),
            post(LENGTH, b"X:", body=BODY),
            post(LENGTH, *(b"X-%d: a" % number for number in range(12)), body=BODY),
            post(LENGTH, b"X: " + b"a" * 2000, body=BODY),
            post(b"Content-Length: 0", body=b""),
            post(LENGTH, body=BODY, line=b"POST /v1/chat/completions?x=1 HTTP/1.1"),
            post(LENGTH, body=BODY, line=b"POST /v1/chat/completions HTTP/1.0"),
            post(LENGTH, body=BODY, host=b""),
            b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n",
        ]
    ),
    st.sampled_from(sorted(VECTORS.values())),
)
BYTES = st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"\t", b"a", b"\xff", b"Content-Length: 1\r\n", b"0"])


@settings(max_examples=400)
@given(st.lists(REQUESTS, min_size=1, max_size=3), st.lists(st.integers(0, 3000), max_size=5))
@example([ORDINARY, ORDINARY], [len(ORDINARY)])
def test_the_short_way_comes_to_the_same(requests: list[bytes], places: list[int]) -> None:
    pieces = cut(b"".join(requests), places)

    async def both() -> None:
        assert await served(Connection, pieces) == await served(ParserOnly, pieces)

    asyncio.run(both())


@settings(max_examples=400)
@given(st.integers(0, len(ORDINARY)), st.integers(0, 3), BYTES, st.lists(st.integers(0, 3000), max_size=3))
def test_so_it_does_for_a_request_with_a_fault_put_in(place: int, gone: int, put: bytes, places: list[int]) -> None:
    request = ORDINARY[:place] + put + ORDINARY[place + gone :]
    pieces = cut(request + ORDINARY, places)

    async def both() -> None:
        assert await served(Connection, pieces) == await served(ParserOnly, pieces)

    asyncio.run(both())
