"""What a scripted engine does with one request: `Script`, and `Gate` to hold it at a point without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Ending = Literal["keep", "fin", "rst", "stall"]
Framing = Literal["natural", "length", "chunked", "close"]

VLLM_STREAM_ERROR: Mapping[str, Any] = {
    "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
}


class Gate:
    """Lets events through one by one when the test says so; a new gate lets `events` through and then holds."""

    def __init__(self, events: int = 0) -> None:
        self._passes = asyncio.Semaphore(events)
        self._open = False

    def open(self, events: int = 1) -> None:
        for _ in range(events):
            self._passes.release()

    def open_all(self) -> None:
        self._open = True
        self._passes.release()

    @property
    def holds(self) -> bool:
        return not self._open and self._passes.locked()

    async def passed(self) -> None:
        if self._open:
            return
        await self._passes.acquire()
        if self._open:  # several requests may wait at one gate: each wakes the next
            self._passes.release()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one request as the engine reports them; `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Script:
    """One request's answer. The defaults are a healthy vLLM.

    An *event* is one SSE event of a stream (the role chunk, each token, the usage chunk, `[DONE]`), one piece of `raw`,
    or the whole answer when it is not a stream. `close_after`, `rst_after`, `stall_after` and `error_after` count events.
    As in vLLM, a stream's head goes out when the request arrives, before the first event; `head_at_arrival=False` keeps
    it back, so that `rst_after=0` then resets without one byte.
    """

    ttft_seconds: float = 0.0
    itl_seconds: float = 0.0
    gate: Gate | None = None
    """Held before each event."""

    chunks: int | None = None
    """Content tokens of the answer; None: as many as the request's max_tokens."""
    text: tuple[str, ...] = ()
    """The tokens' text; sets `chunks` as well."""
    finish_reason: str | None = None
    usage: Usage | None = None
    """What the engine reports (and what a meter must find); None: counted from the prompt and the tokens sent."""
    head_at_arrival: bool = True

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Added to the answer's head; a name that is there already is replaced."""
    body: bytes | None = None
    """A canned body. Without it a status of 400 or more answers with an error in vLLM's shape."""
    raw: Iterable[tuple[float, bytes]] | None = None
    """(delay in seconds, bytes): written one by one as they are."""
    raw_is: Literal["response", "body"] = "response"
    """Whether `raw` holds the head and framing too, or is the body of an SSE answer."""
    framing: Framing = "natural"
    """natural: streams and raw bodies chunked, all else with Content-Length."""
    gzip: bool = False

    blackhole: bool = False
    """Take the request and never answer."""
    close_after: int | None = None
    """FIN after that many events."""
    rst_after: int | None = None
    """RST (SO_LINGER 0) after that many events."""
    stall_after: int | None = None
    """Silence after that many events, the connection open."""
    truncate_body_bytes: int | None = None
    """Announce the whole Content-Length, send that many bytes of the body, then FIN."""
    error_after: int | None = None
    """After that many events vLLM's in-stream error, `[DONE]`, and a regular end."""
    error_event: Mapping[str, Any] = field(default_factory=lambda: VLLM_STREAM_ERROR)
    ending: Ending = "keep"
    """What follows a complete answer; keep: the connection lives on as the request asked."""
    log_bytes: bool = True
    """False keeps only the sizes of the writes in the log, for very large answers."""

    @property
    def is_canned(self) -> bool:
        """Whether the answer does not depend on the request, which then is not checked either."""
        return self.status != 200 or self.body is not None or self.raw is not None or self.blackhole

    def ends_at(self, event: int) -> Ending | None:
        """How the script breaks off before the event with that index (from 0)."""
        if self.close_after is not None and event >= self.close_after:
            return "fin"
        if self.rst_after is not None and event >= self.rst_after:
            return "rst"
        if self.stall_after is not None and event >= self.stall_after:
            return "stall"
        return None
