"""The client of a replay: streams over kept connections, each event's time taken as its bytes are read.

It works in callbacks of the wire, without a task for each request, so that one core carries thousands of short streams a second.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from serving.core.clock import monotonic
from serving.core.context import Headers
from serving.core.errors import ConfigurationError
from serving.engines.exchange import Exchange, StaleConnection, Unreachable, WireError
from serving.engines.wire import Address, Connection, Pool

_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 3.0
"""Less than the five seconds after which vLLM and others close a kept connection."""
_ERROR_BYTES = 2000
_TEXT_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")


@dataclass(slots=True)
class Sample:
    """What was seen of one request; moments are monotonic seconds."""

    number: int
    intended: float
    """When it was to be sent: all its latencies count from here."""
    wanted_prompt_tokens: int
    wanted_cached_tokens: int
    wanted_output_tokens: int
    sent: float = math.nan
    ended: float = math.nan
    status: int = 0
    error: str | None = None
    """Why it counts as failed, from a small set of words; None while it runs and when it ended well."""
    detail: str = ""
    """What the engine said of it."""
    is_done: bool = False
    token_moments: array[float] = field(default_factory=lambda: array("d"))
    """Of each event with text."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    fingerprint: str | None = None
    simulated: str | None = None
    """The header by which simulated engines tell what they are."""

    @property
    def is_ok(self) -> bool:
        return self.is_done and self.error is None


@dataclass(frozen=True)
class Reply:
    """A whole answer to a question that is no load."""

    status: int
    headers: Headers
    body: bytes

    def json(self) -> dict[str, Any]:
        """The object that the body holds; empty when it is not one."""
        try:
            document = orjson.loads(self.body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class Stream(Exchange):
    """One request of the load."""

    def __init__(self, connection: Connection, sample: Sample, on_end: Callable[[Sample, WireError | None], None]) -> None:
        super().__init__(connection, deadline=math.inf, idle_timeout_seconds=math.inf, high_water_bytes=2**62)
        self.sample = sample
        self._on_end: Callable[[Sample, WireError | None], None] | None = on_end
        self._rest = b""
        self._is_complete = False

    # Called by the wire

    def start(self, status: int, headers: Headers) -> None:
        self.status = self.sample.status = status
        for name, value in headers:
            if name == b"x-serving-simulated":
                self.sample.simulated = value.decode("latin-1")

    def feed(self, data: bytes, framed: bytes | None = None) -> None:
        now = monotonic()
        if self.status != 200:
            self._rest = (self._rest + data)[:_ERROR_BYTES]
            return
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._rest = events.pop()
        for event in events:
            self._take(event, now)

    def finish(self) -> None:
        sample = self.sample
        if self.status != 200:
            sample.error, sample.detail = f"status {self.status}", self._rest.decode(errors="replace")
        elif sample.error is None and not self._is_complete:
            sample.error = "cut"
            sample.detail = "the stream ended without [DONE]"
        super().finish()
        self._end(None)

    def fail(self, error: WireError) -> None:
        if self._error is None and not self._ended:
            super().fail(error)
            self._end(error)

    def give_up(self, error: str) -> None:
        """End it from our side; the engine sees a closed connection."""
        if self._on_end is not None:
            self.sample.error = error
            self.close()

    def _end(self, error: WireError | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        sample = self.sample
        if error is not None and sample.error is None:
            sample.error, sample.detail = "connection", str(error)
        sample.ended = monotonic()
        sample.is_done = True
        on_end(sample, error)

    def _take(self, event: bytes, now: float) -> None:
        if not event.startswith(b"data:"):
            at = event.find(b"\ndata:")
            if at < 0:
                return  # a comment
            event = event[at + 1 :]
        payload = event[5:].strip()
        if payload == b"[DONE]":
            self._is_complete = True
            return
        try:
            self._take_document(orjson.loads(payload), now)
        except ValueError:
            self._refuse("not JSON", payload)
        except (AttributeError, LookupError, TypeError):
            # Of another shape than the API's; without this one engine's mistake would end the whole run.
            self._refuse("not a chunk", payload)

    def _refuse(self, error: str, payload: bytes) -> None:
        self.sample.error, self.sample.detail = error, payload[:200].decode(errors="replace")

    def _take_document(self, document: dict[str, Any], now: float) -> None:
        if choices := document.get("choices"):
            self._take_choice(choices[0], now)
        if usage := document.get("usage"):
            self._take_usage(usage)
        if document.get("error"):
            self.sample.error, self.sample.detail = "error in stream", orjson.dumps(document["error"])[:200].decode()
        if fingerprint := document.get("system_fingerprint"):
            self.sample.fingerprint = str(fingerprint)

    def _take_choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta")
        finish_reason = choice.get("finish_reason")
        if delta is None:
            has_text = bool(choice.get("text"))
        else:
            # A token may have no text of its own yet; an opening event with the role is no token.
            has_text = any(map(delta.get, _TEXT_FIELDS)) or ("content" in delta and "role" not in delta and not finish_reason)
        if has_text:
            self.sample.token_moments.append(now)
        if finish_reason:
            self.sample.finish_reason = finish_reason

    def _take_usage(self, usage: dict[str, Any]) -> None:
        sample = self.sample
        sample.prompt_tokens = _count(usage.get("prompt_tokens"))
        sample.output_tokens = _count(usage.get("completion_tokens"))
        if (details := usage.get("prompt_tokens_details")) is not None:
            sample.cached_tokens = _count(details.get("cached_tokens"))


def _count(value: Any) -> int | None:
    """Raises: TypeError for what is no count."""
    if value is None or (type(value) is int and value >= 0):
        return value
    raise TypeError(f"{value!r} is no number of tokens")


class Client:
    """Everything said to one address."""

    def __init__(self, url: str, api_key: str | None, *, timeout_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"--url: must be like http://127.0.0.1:8000 or https://host/v1, not {url!r}")
        if parts.username or parts.query or parts.fragment:
            raise ConfigurationError("--url: must have no user, query or fragment; a key goes into OPENAI_API_KEY")
        self.address = Address.parse(url)
        self.root = parts.path.rstrip("/").removesuffix("/v1")
        self.timeout_seconds = timeout_seconds
        key = "" if api_key is None else f"authorization: Bearer {api_key}\r\n"
        self._lines = b"host: %b\r\n%bcontent-type: application/json\r\n" % (self.address.host_header, key.encode("latin-1"))
        self.pool = Pool(self.address, connect_timeout_seconds=_CONNECT_SECONDS, idle_seconds=_IDLE_SECONDS, tls=_tls)
        self._load_head = self._head("POST", "/v1/chat/completions")
        self.open: set[Stream] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        scheme = "https" if self.address.is_tls else "http"
        return f"{scheme}://{self.address.host_header.decode()}{self.root}"

    def _head(self, method: str, path: str) -> bytes:
        return f"{method} {self.root}{path} HTTP/1.1\r\n".encode("ascii") + self._lines

    async def ask(self, method: str, path: str, document: Any = None) -> Reply:
        """A question beside the load. Raises: ConfigurationError when there is no answer."""
        body = b"" if document is None else orjson.dumps(document)
        request = b"%bcontent-length: %d\r\n\r\n%b" % (self._head(method, path), len(body), body)
        for is_last in (False, True):
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    return await self._whole(request, fresh=is_last)
            except StaleConnection:
                continue
            except WireError as error:
                raise ConfigurationError(f"{self.url}: {error}") from None
            except TimeoutError:
                raise ConfigurationError(f"{self.url}{path}: no answer in {self.timeout_seconds:g} s") from None
        raise ConfigurationError(f"{self.url}{path}: the connection was closed without an answer")

    async def _whole(self, request: bytes, *, fresh: bool) -> Reply:
        connection = await self.pool.connection(fresh=fresh)
        exchange = Exchange(connection, deadline=math.inf, idle_timeout_seconds=math.inf, high_water_bytes=2**62)
        try:
            connection.send(exchange, request)
            status = await exchange.head()
            parts, ended = [], False
            while not ended:
                part, ended = await exchange.piece()
                parts.append(part)
        finally:
            exchange.close()
        return Reply(status, exchange.headers, b"".join(parts))

    def send(self, body: bytes, sample: Sample, on_end: Callable[[Sample], None]) -> None:
        """Send one request of the load now; `on_end` is called once, whatever becomes of it."""
        sample.sent = monotonic()
        connection = self.pool.take()
        if connection is None:
            self._send_anew(body, sample, on_end)
        else:
            self._send_on(connection, body, sample, on_end)

    def _send_anew(self, body: bytes, sample: Sample, on_end: Callable[[Sample], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(body, sample, on_end))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, body: bytes, sample: Sample, on_end: Callable[[Sample], None]) -> None:
        try:
            connection = await self.pool.connection(fresh=True)
        except Unreachable as error:
            sample.error, sample.detail = "connection", str(error)
            sample.ended, sample.is_done = monotonic(), True
            on_end(sample)
        else:
            self._send_on(connection, body, sample, on_end)

    def _send_on(self, connection: Connection, body: bytes, sample: Sample, on_end: Callable[[Sample], None]) -> None:
        def ended(sample: Sample, error: WireError | None) -> None:
            timer.cancel()
            self.open.discard(stream)
            if isinstance(error, StaleConnection) and not sample.status:
                # Nobody has read it; the time that this took stays in its latency.
                sample.error, sample.detail, sample.is_done = None, "", False
                self._send_anew(body, sample, on_end)
            else:
                on_end(sample)

        stream = Stream(connection, sample, ended)
        timer = connection.loop.call_later(self.timeout_seconds, stream.give_up, "timeout")
        self.open.add(stream)
        connection.send(stream, b"%bcontent-length: %d\r\n\r\n%b" % (self._load_head, len(body), body))

    def give_up_all(self, error: str) -> None:
        """End all that runs."""
        for stream in list(self.open):
            stream.give_up(error)

    async def close(self) -> None:
        self.give_up_all("left")
        for task in list(self._connecting):
            task.cancel()
        if self._connecting:
            await asyncio.wait(set(self._connecting))
        for connection in list(self.pool.open):
            connection.abandon()


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
