"""A vLLM engine made of scripts: real sockets, vLLM 0.32's bytes, faults on demand, and a log of what really happened.

async with ScriptedEngine() as engine:
    engine.script(Script(close_after=3))        # for the next request; afterwards `engine.default` again
    ...                                         # ask engine.url
    assert engine.log.requests[0].outcome == "script_closed"
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from tests.doubles.engine_connection import EngineConnection
from tests.doubles.engine_log import EngineLog, Record
from tests.doubles.engine_metrics import EngineMetrics
from tests.doubles.engine_reply import Reply, canned_reply, error_reply, generated_reply, whole_reply
from tests.doubles.http_requests import ParsedRequest
from tests.doubles.prefix_cache import SimulatedPrefixCache
from tests.doubles.script import Script
from tests.doubles.vllm_answers import model_list, prompts_of
from tests.doubles.vllm_audio import read_form, speech_body
from tests.doubles.vllm_errors import VllmError, dump, phrase, read_body, room_tokens
from tests.doubles.vllm_pooling import WHOLE_SURFACES, Asked, WholeSurface, new_id
from tests.doubles.vllm_surfaces import SURFACES, counted

PROBE_HEADER = "x-serving-probe"
"""Requests with it are answered by `probes` and kept apart from the clients'."""
CONTROL_ROUTES = {
    "/health": ("GET",),
    "/ping": ("GET", "POST"),
    "/version": ("GET",),
    "/load": ("GET",),
    "/v1/models": ("GET",),
    "/metrics": ("GET",),
}


class ScriptedEngine:
    """One engine on one loopback port; any number of them live in one process.

    Everything public may be changed while it runs: `default` and `choose` (scripts for requests), `routes` (scripts for
    the engine's own routes, as `engine.routes["/health"] = Script(status=503)`), `probes` (for a gateway's token requests; None:
    healthy), `models`, `metric_overrides`, `blackhole`.
    """

    def __init__(
        self,
        *models: str,
        default: Script | None = None,
        max_model_len: int = 4096,
        block_tokens: int = 128,
        prefix_caching: bool = True,
        prompt_tokens_details: bool = True,
        max_running: int | None = None,
        idle_close_seconds: float = 5.0,
        version: str = "0.32.0",
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        tasks: tuple[str, ...] = ("generate",),
    ) -> None:
        self.host = host
        self.models = list(models or ("tiny",))
        self.default = default or Script()
        self.choose: Callable[[ParsedRequest], Script | None] | None = None
        self.routes: dict[str, Script] = {}
        self.probes: Script | None = None
        self.metric_overrides: dict[str, float] = {}
        self.blackhole = False
        self.max_model_len = max_model_len
        self.max_running = max_running
        self.idle_close_seconds = idle_close_seconds
        self.prompt_tokens_details = prompt_tokens_details
        self.version = version
        self.tls = tls
        self.tasks = tasks
        """As vLLM: a route of another task is not there."""
        self.log = EngineLog()
        self.metrics = EngineMetrics()
        self.prefix_cache = SimulatedPrefixCache(block_tokens) if prefix_caching else None
        self.connections: set[EngineConnection] = set()
        self.accepted_connections = 0
        self.port = port
        self.is_stopping = False
        self._queue: deque[Script] = deque()
        self._slot_freed = asyncio.Event()
        self._failures: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None

    @property
    def model(self) -> str:
        return self.models[0]

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"

    def script(self, *scripts: Script) -> None:
        """Queue scripts for the next requests, one each."""
        self._queue.extend(scripts)

    async def request_arrived(self, number: int = 1) -> Record:
        return await self.log.request_arrived(number)

    async def reached(self, point: str, number: int = 1) -> Record:
        """Wait until the `number`-th request has come to a point (see `Record.reached`)."""
        return await (await self.request_arrived(number)).reached(point)

    async def start(self) -> None:
        """Listen: on a free port the first time, on the same one again after `stop` or `refuse`."""
        listener = self._placeholder or self._bind()
        self._placeholder = None
        self.is_stopping = False
        self._started_seconds = int(time.time())
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=listener, backlog=2048, ssl=self.tls)

    def refuse(self) -> None:
        """Close the port: new connections are refused until `start`; open ones live on. The port stays ours."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._placeholder is None:
            self._placeholder = self._bind()

    async def stop(self, *, drain_seconds: float = 0.0, how: Literal["fin", "rst"] = "fin") -> None:
        """End as vLLM does on SIGTERM: take no more, let requests finish for `drain_seconds`, cut the rest.

        `how="rst"` is a process that dies. The prefix cache and the counters go with it; the log stays.
        """
        self.refuse()
        self.is_stopping = True
        idle = [connection for connection in self.connections if connection.responding is None]
        await asyncio.gather(*(connection.stop(how) for connection in idle))
        running = [connection.responding for connection in self.connections if connection.responding is not None]
        if running and drain_seconds:
            await asyncio.wait(running, timeout=drain_seconds)
        await asyncio.gather(*(connection.stop(how) for connection in list(self.connections)))
        self.metrics = EngineMetrics()
        if self.prefix_cache is not None:
            self.prefix_cache.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        if self._failures and error is None:
            raise self._failures[0]

    def open_record(self, connection: int, request: ParsedRequest) -> Record:
        is_probe = request.header(PROBE_HEADER) is not None
        return self.log.open(connection, request, is_control=is_probe or request.path in CONTROL_ROUTES)

    async def answer(self, record: Record, connection: EngineConnection) -> bool:
        """Answer one request; says whether the connection lives on."""
        request = record.request
        script = self._script_for(record)
        record.script = script
        record.usage = script.usage
        try:
            if record.is_control and record.path in CONTROL_ROUTES:
                return await connection.play(record, script, self._control_reply(request, script))
            if script.is_canned:
                reply = canned_reply(request, script)
                if script.status != 200:
                    return await connection.play(record, script, reply)
                return await self._run(record, script, connection, lambda: reply)
            return await self._generate(record, script, connection)
        except VllmError as error:
            return await connection.play(record, script, error_reply(request, script, error))

    def _script_for(self, record: Record) -> Script:
        if self.blackhole:
            return Script(blackhole=True)
        if record.header(PROBE_HEADER) is not None:
            return self.probes or Script()
        if record.is_control:
            return self.routes.get(record.path, Script())
        if self._queue:
            return self._queue.popleft()
        chosen = self.choose(record.request) if self.choose is not None else None
        return chosen or self.default

    async def _generate(self, record: Record, script: Script, connection: EngineConnection) -> bool:
        request = record.request
        whole = WHOLE_SURFACES.get(request.path)
        if whole is not None and request.method == "POST" and whole.task in (None, *self.tasks):
            return await self._run(record, script, connection, lambda: self._whole(record, whole, script))
        surface = SURFACES.get(request.path)
        if surface is not None and surface.task not in self.tasks:
            surface = None
        if surface is None or request.method != "POST":
            allowed = () if surface is None else ("POST",)
            return await connection.play(record, script, _no_route(request, script, allowed))
        content_type, content = request.header("content-type"), bytes(request.body)
        given = speech_body(read_form(content_type, content)) if surface.form else read_body(content_type, content)
        body = surface.read(given, self.models, self.max_model_len)
        prompts = prompts_of(body, surface.is_chat)
        room = min(room_tokens(len(prompt), self.max_model_len) for prompt in prompts)
        if not surface.generates:
            reply = whole_reply(request, script, 200, counted(sum(map(len, prompts))), delay_seconds=script.ttft_seconds)
            return await connection.play(record, script, reply)

        def begin() -> Reply:
            cached_tokens = created_tokens = 0
            if self.prefix_cache is not None:
                looked_up = [self.prefix_cache.take(prompt, body.get("cache_salt") or "") for prompt in prompts]
                cached_tokens, created_tokens = (sum(counts) for counts in zip(*looked_up, strict=True))
            answer = surface.answer(
                body,
                script,
                is_chat=surface.is_chat,
                model=body.get("model") or self.model,
                request_id=request.header("x-request-id") or body.get("request_id"),
                fingerprint=f"vllm-{self.version}-0a1b2c3d",
                prompt_tokens=sum(map(len, prompts)),
                room_tokens=room,
                cached_tokens=cached_tokens,
                created_cache_tokens=created_tokens,
                with_details=self.prompt_tokens_details,
            )
            streams = bool(body.get("stream"))
            record.usage = answer.usage if streams or answer.whole_tells_tokens else None
            return generated_reply(request, script, answer, streams=streams)

        return await self._run(record, script, connection, begin)

    def _whole(self, record: Record, surface: WholeSurface, script: Script) -> Reply:
        request = record.request
        body = read_body(request.header("content-type"), bytes(request.body))
        asked = Asked(body, self.models, self.max_model_len, request.header("x-request-id") or new_id(), script.usage)
        made = surface.answer(asked)
        record.usage = made.usage
        if made.content_type != "application/json":
            # vLLM streams these without a length.
            script = replace(script, framing="chunked")
        return whole_reply(
            request,
            script,
            200,
            made.body,
            content_type=made.content_type,
            delay_seconds=script.ttft_seconds,
            more_headers=made.headers,
        )

    async def _run(self, record: Record, script: Script, connection: EngineConnection, begin: Callable[[], Reply]) -> bool:
        """Wait for a slot, answer, and give the slot back however it ends."""
        metrics = self.metrics
        metrics.waiting += 1
        try:
            while self.max_running is not None and metrics.running >= self.max_running:
                self._slot_freed.clear()
                await self._slot_freed.wait()
        finally:
            metrics.waiting -= 1
        metrics.running += 1
        finished = "abort"
        try:
            reply = begin()
            if record.usage is not None:
                metrics.prompt_tokens += record.usage.prompt_tokens
                metrics.cached_tokens += record.usage.cached_tokens
            keeps_alive = await connection.play(record, script, reply)
            finished = "length"
            return keeps_alive
        finally:
            metrics.running -= 1
            metrics.generation_tokens += record.delivered_tokens
            metrics.finished[finished] += 1
            self._slot_freed.set()

    def _control_reply(self, request: ParsedRequest, script: Script) -> Reply:
        if script.is_canned:
            return canned_reply(request, script)
        if request.method not in CONTROL_ROUTES[request.path]:
            return _no_route(request, script, CONTROL_ROUTES[request.path])
        content_type: str | None = "application/json"
        match request.path:
            case "/version":
                body = dump({"version": self.version})
            case "/load":
                body = dump({"server_load": self.metrics.running})
            case "/v1/models":
                served = dict.fromkeys(self.models, self._started_seconds)
                body = model_list(served, f"/models/{self.model}", self.max_model_len)
            case "/metrics":
                body = self.metrics.text(self.model, self.metric_overrides)
                content_type = "text/plain; version=1.0.0; charset=utf-8"
            case _:
                body, content_type = b"", None
        return whole_reply(request, script, 200, body, content_type=content_type, delay_seconds=script.ttft_seconds)

    def _accept(self) -> EngineConnection:
        self.accepted_connections += 1
        return EngineConnection(self, self.accepted_connections)

    def failed(self, error: BaseException) -> None:
        """A fault of the double itself: raised when the engine is left, so that no test passes over it."""
        self._failures.append(error)

    def _bind(self) -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((self.host, self.port))
        self.port = bound.getsockname()[1]
        return bound


def _no_route(request: ParsedRequest, script: Script, allowed: tuple[str, ...]) -> Reply:
    status = 405 if allowed else 404
    more = (("allow", ", ".join(allowed)),) if allowed else ()
    return whole_reply(request, script, status, dump({"detail": phrase(status)}), more_headers=more)
