"""A client on plain sockets: exact bytes and times, every cut visible, and an end by FIN or RST at any point."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from tests.doubles.settling import HANG_SECONDS

End = Literal["complete", "fin", "rst", "truncated", "malformed"]
"""How a body ended: as its framing says, by FIN where that is its framing, by a reset, cut short, or framed wrongly."""


RECEIVE_SECONDS = HANG_SECONDS
"""A peer that is silent for longer fails the test here, where it can be seen."""


class HangUp(Exception):
    """The peer closed or reset the connection before the answer's head was complete."""


@dataclass
class RawResponse:
    """An answer as it came. `pieces` are the body's parts (chunks, or reads of an unchunked body) with their times."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    raw_head: bytes
    head_seconds: float
    raw_body: bytearray = field(default_factory=bytearray)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    end: End | None = None

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return ", ".join(values) if values else None

    @property
    def events(self) -> list[bytes]:
        """The complete SSE events of the body, each without its blank line."""
        return self.body.split(b"\n\n")[:-1]

    @property
    def data(self) -> list[Any]:
        """The JSON values of the events; `[DONE]` is left out."""
        payloads = [event.removeprefix(b"data: ") for event in self.events if event.startswith(b"data: ")]
        return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1] == b"data: [DONE]"


def request_bytes(
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    host: str = "engine.test",
) -> bytes:
    """A plain HTTP/1.1 request; `body` is bytes, or a value to be sent as JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"Host": host}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    fields |= dict(headers or {})
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


class RawClient:
    """One connection.

    async with RawClient(url) as client:
        response = await client.ask("/v1/models")
    """

    def __init__(self, url: str, *, receive_buffer_bytes: int | None = None, receive_seconds: float = RECEIVE_SECONDS) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._receive_buffer_bytes = receive_buffer_bytes
        self._receive_seconds = receive_seconds
        self._buffer = bytearray()
        self._end: Literal["fin", "rst"] | None = None
        self._socket: socket.socket | None = None

    async def connect(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if self._receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        except OSError:
            self.hang_up()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()

    @property
    def end(self) -> Literal["fin", "rst"] | None:
        """How the peer ended the connection, as far as it was read."""
        return self._end

    @property
    def unread(self) -> bytes:
        """Bytes received beyond the last response."""
        return bytes(self._buffer)

    async def send(self, data: bytes) -> None:
        assert self._socket is not None
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def hang_up(self, how: Literal["fin", "rst"] = "fin") -> None:
        """Close now. No other task may be reading (cancel it and await it before)."""
        if self._socket is None:
            return
        if how == "rst":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        self._socket = None

    def half_close(self) -> None:
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_WR)

    async def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
    ) -> RawResponse:
        """Send one request and read the whole answer."""
        await self.send(request_bytes(path, body, method=method, headers=headers))
        return await self.read(method=method or "")

    async def read(self, *, method: str = "") -> RawResponse:
        response = await self.read_head()
        async for _ in self.read_body(response, method=method):
            pass
        return response

    async def read_head(self) -> RawResponse:
        """The final answer's head; interim ones (1xx) are passed over.

        Raises:
            HangUp: the connection ended first
        """
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                if not await self._receive():
                    raise HangUp(f"{self._end} after {bytes(self._buffer)!r}")
            raw = bytes(self._buffer[: end + 4])
            del self._buffer[: end + 4]
            first, *lines = raw[:-4].decode("latin-1").split("\r\n")
            status, _, reason = first.removeprefix("HTTP/1.1 ").partition(" ")
            if not status.startswith("1"):
                break
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        return RawResponse(int(status), reason, headers, raw, time.monotonic())

    async def read_body(self, response: RawResponse, *, method: str = "") -> AsyncIterator[bytes]:
        """The body's pieces as they come; afterwards `response.end` says how it ended. Leave the loop to stop reading."""
        if method == "HEAD" or response.status in (204, 304):
            response.end = "complete"
        elif response.all("transfer-encoding") == ["chunked"]:
            async for piece in self._read_chunks(response):
                yield piece
        elif response.header("content-length") is not None:
            async for piece in self._read_length(response, int(response.header("content-length") or 0)):
                yield piece
        else:
            async for piece in self._read_length(response, None):
                yield piece

    async def _read_length(self, response: RawResponse, length_bytes: int | None) -> AsyncIterator[bytes]:
        while length_bytes is None or len(response.raw_body) < length_bytes:
            if not self._buffer and not await self._receive():
                response.end = "rst" if self._end == "rst" else "truncated" if length_bytes is not None else "fin"
                return
            rest = None if length_bytes is None else length_bytes - len(response.raw_body)
            piece = self._take(len(self._buffer) if rest is None else min(rest, len(self._buffer)), response)
            response.pieces.append((time.monotonic(), piece))
            yield piece
        response.end = "complete"

    async def _read_chunks(self, response: RawResponse) -> AsyncIterator[bytes]:
        while True:
            line = await self._line(response)
            if line is None:
                return
            digits = line.partition(b";")[0]
            if not digits or not set(digits) <= set(b"0123456789abcdefABCDEF"):
                response.end = "malformed"
                return
            size = int(digits, 16)
            if size == 0:
                break
            while len(self._buffer) < size + 2:
                if not await self._receive():
                    response.end = "rst" if self._end == "rst" else "truncated"
                    if self._buffer:  # a chunk cut short is shown, too
                        response.pieces.append((time.monotonic(), self._take(min(size, len(self._buffer)), response)))
                    return
            piece = self._take(size, response)
            if self._take(2, response) != b"\r\n":
                response.end = "malformed"
                return
            response.pieces.append((time.monotonic(), piece))
            yield piece
        while (line := await self._line(response)) != b"":
            if line is None:
                return
        response.end = "complete"

    async def _line(self, response: RawResponse) -> bytes | None:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self._receive():
                response.end = "rst" if self._end == "rst" else "truncated"
                return None
        return self._take(end + 2, response)[:-2]

    def _take(self, size: int, response: RawResponse) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        response.raw_body += piece
        return piece

    async def _receive(self) -> bool:
        if self._end is not None:
            return False
        assert self._socket is not None
        try:
            async with asyncio.timeout(self._receive_seconds):
                data = await asyncio.get_running_loop().sock_recv(self._socket, 256 * 1024)
        except ConnectionResetError:
            self._end = "rst"
            return False
        if not data:
            self._end = "fin"
        self._buffer += data
        return bool(data)

    async def closed_by_peer(self) -> Literal["fin", "rst"]:
        """Read until the peer ends the connection; what came is in `unread`."""
        while await self._receive():
            pass
        assert self._end is not None
        return self._end


async def ask(
    url: str, path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
) -> RawResponse:
    """One request on a connection of its own."""
    async with RawClient(url) as client:
        return await client.ask(path, body, method=method, headers=headers)
