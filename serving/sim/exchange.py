"""One request and its answer over ASGI, with what vLLM's middlewares add and count, and the faults that hit it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.core.clock import monotonic
from serving.sim.connection import Connection
from serving.sim.errors import EngineError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
GARBAGE = b"\x00\xff\xfe<<<" + bytes(range(128, 160))


class Gone(Exception):
    """The client left, or the connection was broken on purpose: nothing more can be said."""


class Exchange:
    """Reads the request, writes the answer."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, marks: list[tuple[bytes, bytes]]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.connection: Connection = scope["state"]["connection"]
        self.began_seconds = monotonic()
        self.status = 0
        self.sent_bytes = 0
        self.events = 0
        self.reset_after_events: int | None = None
        self._receive = receive
        self._send = send
        self._marks = marks

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def request_bytes(self) -> int:
        return int(self.header("content-length") or 0)

    async def body(self) -> bytes:
        """Raises: Gone."""
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    async def client_left(self) -> None:
        """Returns when the client has gone; to be asked after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def whole(
        self, status: int, body: bytes = b"", content_type: str | None = JSON, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """An answer in one piece."""
        if self.reset_after_events is not None:
            self._reset()
        headers = [(name.encode(), value.encode("latin-1")) for name, value in more]
        headers.append((b"content-length", str(len(body)).encode()))
        if content_type is not None:
            headers.append((b"content-type", content_type.encode()))
        await self._start(status, headers)
        await self._part(body, more_body=False)

    async def error(self, error: EngineError) -> None:
        await self.whole(error.status, error.body_on(self.path))

    async def begin_events(self) -> None:
        """The head of a stream; it says nothing yet of how it will end."""
        await self._start(200, [(b"content-type", EVENTS.encode())])

    async def event(self, data: bytes) -> None:
        if self.reset_after_events is not None and self.events >= self.reset_after_events:
            self._reset()
        self.events += 1
        await self._part(data, more_body=True)

    async def end_events(self) -> None:
        await self._part(b"", more_body=False)

    def break_off(self) -> None:
        """Close the connection in the middle. Raises: Gone."""
        self.connection.cut()
        raise Gone

    def _reset(self) -> None:
        self.connection.reset()
        raise Gone

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers += [(b"vary", b"Origin"), *self._marks]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _part(self, data: bytes, *, more_body: bool) -> None:
        self.sent_bytes += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": more_body})
