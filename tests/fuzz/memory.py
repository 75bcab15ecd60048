"""A gateway without the kernel: its own protocol, edge, pipeline and wire, with transports of memory on both sides.

A connection costs a fraction of what it does on sockets, so that a hundred thousand inputs are a minute.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import uvloop

from serving.api.protocol import Connection
from serving.app import Gateway, Server
from serving.fleet.store import EndpointState
from serving.settings import Settings
from tests.doubles.http_requests import MalformedRequest, ParsedRequest, RequestParser
from tests.doubles.running_gateway import _CountingDoor

ENGINE_PORT = 9
WHOLE = b'{"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"input_tokens":1,"output_tokens":1}}'
STREAMS = {
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed","sequence_number":1,"response":{}}\n\n',
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
}
OTHER_STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'


TASKS = ("generate", "embed", "score")


class MemoryTransport(asyncio.Transport):
    """What is written goes to `take`; the protocol's end is told on the loop's next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._take = take
        self._closing = False
        self.reading_paused = False
        self.said_eof = False

    def write(self, data: Any) -> None:
        if not self._closing and not self.said_eof:
            self._take(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.said_eof = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class MemoryEngine:
    """A strict engine at the other end of the gateway's connections."""

    def __init__(self) -> None:
        self.requests: list[ParsedRequest] = []
        self.malformed: list[str] = []

    def connect(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> MemoryTransport:
        parser = RequestParser()

        def take(data: bytes) -> None:
            try:
                parser.feed(data)
                while (request := parser.take()) is not None:
                    self.requests.append(request)
                    loop.call_soon(self._answer, transport, protocol, request)
            except MalformedRequest as error:
                self.malformed.append(f"{error}: {data!r}")
                transport.close()

        transport = MemoryTransport(loop, protocol, take)
        return transport

    def _answer(self, transport: MemoryTransport, protocol: asyncio.Protocol, request: ParsedRequest) -> None:
        if transport.is_closing():
            return
        if b'"stream"' in request.body and request.json.get("stream") is True and not request.path.endswith("count_tokens"):
            text = STREAMS.get(request.path, OTHER_STREAM)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            protocol.data_received(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text))
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(WHOLE)
            protocol.data_received(head + WHOLE)


class MemoryLoop(uvloop.Loop):  # type: ignore[misc, name-defined]
    """A loop whose every connection leads to the engine."""

    engine: MemoryEngine

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        protocol = factory()
        transport = self.engine.connect(self, protocol)
        protocol.connection_made(transport)
        return transport, protocol


class Client:
    """One connection to the gateway, and all that came back on it."""

    def __init__(self, gateway: MemoryGateway) -> None:
        self.received = bytearray()
        self.connection = Connection(gateway.server.config, gateway.server.server_state, {}, gateway.loop)
        self.transport = MemoryTransport(gateway.loop, self.connection, self.received.extend)
        self.connection.connection_made(self.transport)

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing() and not self.transport.said_eof

    @property
    def is_answering(self) -> bool:
        """A whole request is here whose answer is not out yet."""
        cycles = self.connection._cycles
        return bool(cycles) and not (cycles[0].more_body and not cycles[0].response_complete)

    @property
    def is_between_requests(self) -> bool:
        connection = self.connection
        heard = connection._in_head or connection._unheard_bytes or connection._upgrades
        return self.is_open and not connection._cycles and not heard

    async def send(self, data: bytes) -> None:
        for _ in range(MOST_TURNS):
            if not self.transport.reading_paused:
                break
            await asyncio.sleep(0)
        if self.is_open:
            self.connection.data_received(data)

    async def answered(self) -> None:
        """Wait until nothing more comes by itself."""
        for _ in range(MOST_TURNS):
            if not self.is_open or not self.is_answering:
                return
            await asyncio.sleep(0)
        raise AssertionError("a request is not answered")

    async def leave(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        for _ in range(3):
            await asyncio.sleep(0)


MOST_TURNS = 2000


class MemoryGateway:
    """A whole gateway on a loop of its own; `arrived` is what reached its application."""

    def __init__(self, **sections: Any) -> None:
        self.engine = MemoryEngine()
        self.loop = MemoryLoop()
        self.loop.engine = self.engine
        self.faults: deque[str] = deque()
        self.loop.set_exception_handler(lambda _, context: self.faults.append(repr(context)))
        endpoint = {"name": "e1", "url": f"http://127.0.0.1:{ENGINE_PORT}", "model": "tiny", "tasks": TASKS}
        self.app = Gateway(Settings.model_validate({"endpoints": [endpoint], **sections}))
        self.app.fleet.record("e1", EndpointState.READY, "in memory")
        self.arrived: list[tuple[str, str]] = []
        self.server = Server(self.app)
        self.server.config.app = _CountingDoor(self.app.application, self.arrived)
        self.server.config.load()

    def close(self) -> None:
        async def end() -> None:
            for pool in self.app.relay._pools.values():
                pool.close_idle()
            self.app.pipeline.publish()
            await asyncio.sleep(0)

        self.loop.run_until_complete(end())
        self.loop.close()
