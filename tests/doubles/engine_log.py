"""The ground truth of a scripted engine: what came in, what went out, when, and how each request ended."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.doubles.http_requests import ParsedRequest
from tests.doubles.script import Script, Usage

Outcome = Literal["completed", "peer_closed", "script_closed", "stopped", "malformed"]


@dataclass(frozen=True)
class Write:
    """One write to the peer. `data` is empty when the script keeps sizes only."""

    at_seconds: float
    size_bytes: int
    data: bytes


@dataclass(eq=False)
class Record:
    """One request. Times are `time.monotonic()`."""

    number: int
    connection: int
    request: ParsedRequest
    is_control: bool
    """A route of the engine itself (health, models, metrics …), not work for the model."""
    arrived_seconds: float = field(default_factory=time.monotonic)
    is_complete: bool = False
    script: Script | None = None
    writes: list[Write] = field(default_factory=list)
    usage: Usage | None = None
    """The tokens the engine reports for this request (in the answer's `usage`, if that is sent)."""
    delivered_tokens: int = 0
    """Content tokens written so far."""
    outcome: Outcome | None = None
    peer_closed_seconds: float | None = None
    peer_closed_by: Literal["fin", "rst"] | None = None
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    marks: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.request.headers

    def header(self, name: str) -> str | None:
        return self.request.header(name)

    @property
    def body(self) -> bytes:
        return bytes(self.request.body)

    @property
    def json(self) -> Any:
        return self.request.json

    @property
    def raw(self) -> bytes:
        """Every byte of the request as received."""
        return self.request.raw_head + bytes(self.request.raw_body)

    @property
    def written(self) -> bytes:
        """Every byte of the answer that was handed to the socket."""
        return b"".join(write.data for write in self.writes)

    def mark(self, name: str) -> None:
        self.marks[name].set()

    async def reached(self, name: str) -> Record:
        """Wait for a point: arrived, head, held (at its gate), held:K (before event K),
        event:K, first_token, token:K, last_token, usage, error, stalled, done."""
        await self.marks[name].wait()
        return self

    def settle(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.done.set()
            self.mark("done")

    def peer_left(self, by: Literal["fin", "rst"]) -> None:
        if self.peer_closed_by is None:
            self.peer_closed_seconds = time.monotonic()
            self.peer_closed_by = by
            self.peer_closed.set()


class EngineLog:
    """All requests of one engine in the order their heads arrived."""

    def __init__(self) -> None:
        self.requests: list[Record] = []
        self.control_requests: list[Record] = []
        self.malformed: list[tuple[str, bytes]] = []
        """Why bytes were no request, and the bytes that were left."""
        self.unfinished_heads: list[bytes] = []
        """What was received on connections that closed inside a request's head."""
        self._arrivals: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._complete: list[Record] = []

    def open(self, connection: int, request: ParsedRequest, is_control: bool) -> Record:
        kept = self.control_requests if is_control else self.requests
        record = Record(len(kept) + 1, connection, request, is_control)
        kept.append(record)
        return record

    def complete(self, record: Record) -> None:
        """The request's last byte is here."""
        record.is_complete = True
        record.mark("arrived")
        if not record.is_control:
            self._complete.append(record)
            self._arrivals[len(self._complete)].set()

    def forget(self) -> None:
        """Drop what is known of requests that have ended, in runs of very many; nobody may be waiting for one by its number."""
        self.requests = [record for record in self.requests if record.outcome is None]
        self.control_requests.clear()
        self._arrivals.clear()
        self._complete.clear()

    async def request_arrived(self, number: int) -> Record:
        """The `number`-th request (from 1) whose body is complete."""
        await self._arrivals[number].wait()
        return self._complete[number - 1]
