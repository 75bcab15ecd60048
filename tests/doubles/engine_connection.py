"""One accepted connection of a scripted engine: reads requests, plays replies, sees the peer go."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, Literal

from tests.doubles.engine_log import Record, Write
from tests.doubles.engine_reply import Reply, chunk, head_bytes
from tests.doubles.http_requests import MalformedRequest, RequestParser
from tests.doubles.script import Ending, Script
from tests.doubles.vllm_surfaces import stream_error

if TYPE_CHECKING:
    from tests.doubles.scripted_engine import ScriptedEngine


class EngineConnection(asyncio.Protocol):
    """Like uvicorn: requests one after another, FIN from the peer ends the running one, idle connections are closed."""

    def __init__(self, engine: ScriptedEngine, number: int) -> None:
        self.engine = engine
        self.number = number
        self.closed = asyncio.Event()
        self._parser = RequestParser()
        self._record: Record | None = None
        self._malformed: str | None = None
        self.responding: asyncio.Task[None] | None = None
        """The request that is being answered."""
        self._idle: asyncio.TimerHandle | None = None
        self._ending = False
        """It is this side that ends the connection."""
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.engine.tls is None:  # uvloop's TLS never says that a buffer of no size has room again
            transport.set_write_buffer_limits(high=0)
        self.engine.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._stop_idling()
        if self._malformed is None:
            try:
                self._parser.feed(data)
            except MalformedRequest as error:
                self._malformed = str(error)
        self._advance()

    def eof_received(self) -> None:
        self._peer_left("fin")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._peer_left("rst")
        elif self.engine.tls is not None and not self._ending:
            self._peer_left("fin")  # an end without TLS's own farewell is no end of file to uvloop
        self._stop_idling()
        self._writable.set()
        self.engine.connections.discard(self)
        self.closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def stop(self, how: Literal["fin", "rst"]) -> None:
        """The engine's process ends."""
        responding = self.responding
        if responding is not None:
            responding.cancel()
        elif self._record is not None and not self._record.is_complete:
            self._record.settle("stopped")
        self._end(how)
        if responding is not None:
            await asyncio.wait({responding})
        await self.closed.wait()

    async def write(self, data: bytes, record: Record, script: Script) -> None:
        """Hand bytes to the socket and wait until the kernel has taken all of them."""
        record.writes.append(Write(time.monotonic(), len(data), data if script.log_bytes else b""))
        self._transport.write(data)
        await self._writable.wait()

    async def play(self, record: Record, script: Script, reply: Reply) -> bool:
        """Write a reply as its script says.

        Returns:
            whether the connection may take another request
        """
        if script.blackhole:
            await asyncio.Event().wait()
        head = reply.head
        if reply.head_is_early:
            await self.write(head, record, script)
            record.mark("head")
            head = b""
        index = -1
        for index, piece in enumerate(reply.pieces):
            if (ending := script.ends_at(index)) is not None:
                return await self._break_off(ending, record)
            if script.error_after is not None and index >= script.error_after:
                if not await self._write_error(head, record, script, reply):
                    return await self._break_off("fin", record)
                head = b""
                break
            await self._hold(record, script, index)
            if piece.delay_seconds:
                await asyncio.sleep(piece.delay_seconds)
            await self.write(head + piece.data, record, script)
            head = b""
            record.delivered_tokens += piece.tokens
            for mark in ("head", *piece.marks, f"event:{index + 1}"):
                record.mark(mark)
        if (ending := script.ends_at(index + 1)) is not None:
            return await self._break_off(ending, record)
        if head or reply.tail:
            await self.write(head + reply.tail, record, script)
        if script.ending != "keep":
            return await self._break_off(script.ending, record)
        if script.truncate_body_bytes is not None:
            return await self._break_off("fin", record)
        return reply.keeps_alive

    async def _hold(self, record: Record, script: Script, index: int) -> None:
        if script.gate is None:
            return
        if script.gate.holds:
            record.mark("held")
            record.mark(f"held:{index + 1}")
        await script.gate.passed()

    async def _write_error(self, head: bytes, record: Record, script: Script, reply: Reply) -> bool:
        """Say whether the stream could say it; otherwise its connection just ends."""
        said = stream_error(record.path, script.error_event)
        for data in said:
            await self.write(head + (chunk(data) if reply.is_chunked else data), record, script)
            head = b""
        record.mark("error")
        return bool(said)

    async def _break_off(self, ending: Ending, record: Record) -> bool:
        if ending == "stall":
            record.mark("stalled")
            await asyncio.Event().wait()
        record.settle("script_closed")
        self._end("rst" if ending == "rst" else "fin")
        return False

    def _end(self, how: Literal["fin", "rst"]) -> None:
        self._ending = True
        if how == "rst":
            if not self._transport.is_closing():
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def _advance(self) -> None:
        """Take up the next request if none is being answered."""
        if self.responding is not None or self._transport.is_closing():
            return
        if self._parser.head is not None and (self._record is None or self._record.is_complete):
            self._record = self.engine.open_record(self.number, self._parser.head)
            if (self._parser.head.header("expect") or "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            request = self._parser.take()
        except MalformedRequest as error:  # found in what follows a good request
            self._malformed, request = str(error), None
        if request is not None and self._record is not None:
            self.engine.log.complete(self._record)
            self.responding = asyncio.get_running_loop().create_task(self._respond(self._record))
            self.responding.add_done_callback(self._responded)
        elif self._malformed is not None:
            self._refuse_malformed(self._malformed)

    async def _respond(self, record: Record) -> None:
        keeps_alive = False
        try:
            keeps_alive = await self.engine.answer(record, self)
            record.settle("completed")
        except asyncio.CancelledError:
            record.settle("peer_closed" if record.peer_closed_by else "stopped")
            raise
        finally:
            self.responding = None
            if not keeps_alive or self.engine.is_stopping:
                self._transport.close()
        self._idle = asyncio.get_running_loop().call_later(self.engine.idle_close_seconds, self._transport.close)
        if self._parser.head is not None or self._malformed is not None:
            self._stop_idling()
            self._advance()

    def _responded(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self._record is not None:
            # A task that is cancelled before its first step runs none of its own clean-up.
            self._record.settle("peer_closed" if self._record.peer_closed_by else "stopped")
            self.responding = None
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._record is not None
            self._record.settle("stopped")  # nobody shall wait for it
            self.engine.failed(error)

    def _refuse_malformed(self, reason: str) -> None:
        self.engine.log.malformed.append((reason, self._parser.pending_bytes))
        if self._record is not None and not self._record.is_complete:
            self._record.settle("malformed")
        body = b"Invalid HTTP request received."
        headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))]
        self._transport.write(head_bytes(400, headers, Script(), closes=True) + body)
        self._transport.close()

    def _peer_left(self, by: Literal["fin", "rst"]) -> None:
        if self._parser.head is None and self._parser.pending_bytes:
            self.engine.log.unfinished_heads.append(self._parser.pending_bytes)
        if self._record is None:
            return
        self._record.peer_left(by)
        if self.responding is not None:
            self.responding.cancel()
        elif not self._record.is_complete:
            self._record.settle("peer_closed")

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
