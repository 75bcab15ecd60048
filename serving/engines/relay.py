"""Sends a request to one engine and brings back its answer, with every failure named."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection
from dataclasses import dataclass

import orjson

from serving.core.clock import monotonic
from serving.core.context import Headers, RequestContext
from serving.engines.exchange import AnswerTimedOut, BrokenAnswer, Exchange, RequestTimedOut, WireError
from serving.engines.rest import first_part, send_rest
from serving.engines.tls import EngineTls
from serving.engines.wire import Address, Connection, Pool
from serving.settings import RelaySettings

SWEEP_SECONDS = 0.25
PROBE_BODY_BYTES = 4 * 1024 * 1024
"""A list of models with all their adapters is well below this."""
SECRET_HEADER = b"x-serving-engine-secret"
PASSED_HEADERS = frozenset((b"content-type", b"content-length", b"content-encoding", b"cache-control"))
"""What an engine's header may tell a client; the rest is between the gateway and its engines."""


_STREAM, _JSON = b"text/event-stream", b"application/json"
_ERRORS = (b'{"error":', b'{"type":"error"', b'{"object":"error"')
"""How an error object begins, and no answer: some engines send one with status 200."""
_LINE_BEGINS = b"dei:r\r\n"
"""First bytes of the lines of an event stream: data, event, id, a comment, retry, and line ends."""


class EngineRefused(Exception):
    """The engine answered with an error status, or with an error event before anything else.

    `message` and `param` are the engine's own words where it gave an OpenAI-like error object.
    """

    def __init__(self, status: int, message: str, param: str | None, retry_after_seconds: int | None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class SecretRefused(WireError):
    """The engine's guard wants another secret than this gateway sends."""


@dataclass(slots=True)
class Answer:
    """An answer whose first bytes are here: nothing of it has gone to the client yet."""

    exchange: Exchange
    status: int
    headers: Headers
    first: bytes
    complete: bool
    is_stream: bool
    told: bytes = b""
    """The usage, where a header told it."""


class Relay:
    """The way to all engines: a pool of connections for each address, and one sweep for all deadlines."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._tls = EngineTls(settings)
        self._pools: dict[str, Pool] = {}
        self._exchanges: set[Exchange] = set()
        self._sweeper: asyncio.Task[None] | None = None
        secret = settings.sent_secret()
        self._secret_line = b"" if secret is None else b"%s: %s\r\n" % (SECRET_HEADER, secret.encode("ascii"))

    async def __aenter__(self) -> Relay:
        self._sweeper = asyncio.create_task(self._sweep(), name="relay-sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        for exchange in list(self._exchanges):
            self.close(exchange)
        for pool in self._pools.values():
            pool.close_idle()

    @property
    def open_exchanges(self) -> int:
        return len(self._exchanges)

    @property
    def open_connections(self) -> int:
        """Connections to engines, idle ones included."""
        return sum(pool.open_connections for pool in self._pools.values())

    async def ask(self, url: str, ctx: RequestContext, *, fresh: bool = False) -> Answer:
        """Send the request of `ctx` to the engine at `url` and wait for the first byte of its answer's body.

        `fresh` takes a new connection instead of a kept one. Raises: WireError, EngineRefused. Whoever gets an answer must
        hand its exchange to `close`.
        """
        pool = self._pool(url)
        connection = (None if fresh else pool.take()) or await pool.connection(fresh=True)
        settings = self._settings
        exchange = self._open(
            connection, settings.first_byte_timeout_seconds, ends=ctx.ends or ctx.arrived + settings.request_timeout_seconds
        )
        try:
            connection.send(exchange, _request(pool.address, ctx, self._secret_line), more=ctx.rest is not None)
            if ctx.rest is not None:
                await send_rest(exchange, ctx.rest, self._settings.first_byte_timeout_seconds)
            status = await exchange.head()
            if status != 200:
                body, _ = await _read_bounded(exchange, self._settings.error_body_bytes)
                raise _refusal(status, exchange.headers, body)
            first, complete = exchange.at_hand() or await exchange.piece()
            is_stream = is_json = False
            headers: Headers = []
            for name, value in exchange.headers:
                if name in PASSED_HEADERS:
                    headers.append((name, value))
                    if name == b"content-type":
                        is_stream, is_json = value.startswith(_STREAM), value.startswith(_JSON)
                        if not is_stream and not is_json:
                            kind = value.lower()
                            is_stream, is_json = kind.startswith(_STREAM), kind.startswith(_JSON)
                            headers[-1] = (name, kind if is_stream else value)
            if is_stream or ctx.reasoning_field:
                # Its length may change on the way: by an event that is ours, one that says that it broke off, or a field's name.
                headers = [(name, value) for name, value in headers if name != b"content-length"]
            if is_stream and first.startswith(ctx.route.dialect.error):
                raise _refusal(500, [], first.partition(b"data: ")[2].partition(b"\n")[0], in_stream=True)
            given_up = ctx.route.dialect.given_up
            if given_up is not None and given_up in first:
                raise BrokenAnswer("the engine gave the request up")
            if is_stream:
                if first[:1] not in _LINE_BEGINS:
                    raise BrokenAnswer("the engine's stream holds no events")
            elif is_json:
                if first[:1] != b"{" or (complete and first[-1:] != b"}"):
                    _check_json(first, complete)
                elif first.startswith(_ERRORS):
                    raise _refusal(500, [], first, in_stream=True)
            elif not ctx.route.form and ctx.route.usage_header is None:
                # A proxy's page, most likely. Only of sound and of embeddings there are answers of other kinds.
                raise BrokenAnswer("the engine's answer is neither JSON nor a stream")
            told = b""
            if ctx.route.usage_header is not None:
                told = next((value for name, value in exchange.headers if name == ctx.route.usage_header), b"")
                if told and not ctx.hides_usage:
                    headers.append((ctx.route.usage_header, told))
            return Answer(exchange, status, headers, first, complete, is_stream, told)
        except BaseException:
            self.close(exchange)
            raise

    async def get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        """GET a small answer from an engine, for probes. Raises: WireError."""
        return await self._small(url, b"GET", path, b"", b"", timeout_seconds)

    async def post(
        self, url: str, path: str, body: bytes, *, content_type: bytes, header: tuple[bytes, bytes], timeout_seconds: float
    ) -> tuple[int, bytes]:
        """POST a small body with one header of its own and take a small answer, for probes. Raises: WireError."""
        fields = b"content-type: %s\r\ncontent-length: %d\r\n%s: %s\r\n" % (content_type, len(body), *header)
        return await self._small(url, b"POST", path, fields, body, timeout_seconds)

    async def _small(
        self, url: str, method: bytes, path: str, fields: bytes, body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        pool = self._pool(url)
        request = b"%s %s HTTP/1.1\r\nhost: %s\r\n%s%sconnection: close\r\n\r\n%s" % (
            method,
            path.encode(),
            pool.address.host_header,
            self._secret_line,
            fields,
            body,
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                connection = await pool.connection(fresh=True)
                exchange = self._open(connection, timeout_seconds)
                try:
                    connection.send(exchange, request)
                    status = await exchange.head()
                    answer, complete = await _read_bounded(exchange, PROBE_BODY_BYTES)
                    if not complete:
                        raise BrokenAnswer(f"the answer to {path} is larger than {PROBE_BODY_BYTES} bytes")
                    if status == 401 and b'"engine_secret"' in answer:
                        what = "another secret than" if self._secret_line else "a secret; give it as"
                        raise SecretRefused(f"the engine's guard wants {what} relay.engine_secret (SERVING_RELAY__ENGINE_SECRET)")
                    return status, answer
                finally:
                    self.close(exchange)
        except TimeoutError:
            raise AnswerTimedOut("the engine did not answer in time") from None

    def close(self, exchange: Exchange) -> None:
        """Give an exchange back; its connection is closed unless the answer is complete."""
        self._exchanges.discard(exchange)
        exchange.close()

    def retain(self, urls: Collection[str]) -> None:
        """Forget addresses that are not among `urls`, once no connection leads there."""
        for url in [url for url, pool in self._pools.items() if url not in urls and not pool.open_connections]:
            del self._pools[url]

    def _pool(self, url: str) -> Pool:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = Pool(
                Address.parse(url),
                connect_timeout_seconds=self._settings.connect_timeout_seconds,
                idle_seconds=self._settings.idle_connection_seconds,
                tls=self._tls.context,
            )
        return pool

    def _open(self, connection: Connection, first_byte_timeout_seconds: float, *, ends: float = math.inf) -> Exchange:
        exchange = Exchange(
            connection,
            deadline=connection.loop.time() + first_byte_timeout_seconds,
            idle_timeout_seconds=self._settings.idle_timeout_seconds,
            high_water_bytes=self._settings.buffer_bytes,
            ends=ends,
        )
        self._exchanges.add(exchange)
        return exchange

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._look()

    def _look(self) -> None:
        """One sweep; in a frame of its own, so that the last exchange is not held until the next one."""
        now, loop_now = monotonic(), asyncio.get_running_loop().time()
        for exchange in list(self._exchanges):
            if exchange.ends < now:
                exchange.fail(RequestTimedOut("the request's time is used up"))
                # Also where it is the client that is slow: nothing more is read for it.
                exchange.close()
            elif exchange.overdue(loop_now):
                exchange.fail(AnswerTimedOut("the engine was silent for too long"))
        for pool in self._pools.values():
            pool.close_idle(self._settings.idle_connection_seconds)


def _check_json(first: bytes, complete: bool) -> None:
    """Look closely at an answer that does not begin and end like an object. Raises: BrokenAnswer."""
    try:
        if complete:
            if orjson.loads(first) is None:
                raise ValueError
        elif not first.lstrip(b" \t\r\n").startswith((b"{", b"[", b'"')):
            raise ValueError
    except ValueError:
        raise BrokenAnswer("the engine's answer is not JSON") from None


async def _read_bounded(exchange: Exchange, limit_bytes: int) -> tuple[bytes, bool]:
    """A body, or its beginning of about `limit_bytes`, and whether it is whole."""
    body = b""
    complete = False
    while not complete and len(body) < limit_bytes:
        piece, complete = await exchange.piece()
        body += piece
    return body, complete


def _request(address: Address, ctx: RequestContext, secret_line: bytes) -> bytes:
    """The whole request as the engine gets it. The client's own headers stay behind: none of them is an engine's business."""
    trace = secret_line
    if ctx.traceparent:
        trace += b"traceparent: %s\r\n" % ctx.traceparent.encode("ascii")
        if ctx.tracestate:
            trace += b"tracestate: %s\r\n" % ctx.tracestate.encode("ascii")
    if ctx.rest is not None:
        return first_part(ctx, address, trace)
    return b"POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: %s\r\nx-request-id: %s\r\n%scontent-length: %d\r\n\r\n%s" % (
        ctx.route.path_bytes,
        address.host_header,
        ctx.content_type,
        ctx.request_id.encode("ascii"),
        trace,
        len(ctx.body),
        ctx.body,
    )


def _refusal(status: int, headers: Headers, body: bytes, *, in_stream: bool = False) -> EngineRefused:
    message, param, code = "", None, None
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    error = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, dict):
        message = error["message"] if isinstance(error.get("message"), str) else ""
        param = error["param"] if isinstance(error.get("param"), str) else None
        code = error.get("code")
    elif isinstance(error, str):
        message = error
    if in_stream and isinstance(code, int) and 400 <= code <= 599:
        status = code
    retry_after = next((value for name, value in headers if name == b"retry-after"), b"")
    seconds = int(retry_after) if retry_after.isdigit() and len(retry_after) < 6 else None
    return EngineRefused(status, message, param, seconds)
