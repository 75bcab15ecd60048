"""Requests to Kubernetes' API server, answered whole or line by line as they come, over the connections that engines get."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson

from serving.engines.exchange import Exchange, StaleConnection, WireError
from serving.engines.tls import ReloadedTls
from serving.engines.wire import Address, Connection, Pool
from serving.fleet.mirror import ApiFailed
from serving.fleet_settings import KubernetesSettings

ANSWER_BYTES = 16 * 1024 * 1024
"""Of one page of a list: 250 pods with all that controllers note on them are well below."""
LINE_BYTES = 4 * 1024 * 1024
"""Of one event, which holds one object; the API server's own limit is about 1.5 MB."""
ERROR_BYTES = 64 * 1024
WORDS = 300
"""Characters of the server's own words in a message."""
IDLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    body: bytes = b""
    content_type: str = ""


class ApiServer:
    """The API server of the settings, which must name it.

    The token is read for each request, since the kubelet renews it in place; the authority's file for each new connection.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        assert settings.api_url is not None
        self._token_file = settings.token_file
        tls = ReloadedTls(settings.ca, peer="the API server", fields="kubernetes.ca")
        self._pool = Pool(
            Address.parse(settings.api_url),
            connect_timeout_seconds=settings.timeout_seconds,
            idle_seconds=IDLE_SECONDS,
            tls=tls.context,
        )

    def close(self) -> None:
        self._pool.close_idle()

    async def get(self, path: str, *, timeout_seconds: float) -> bytes:
        """A whole answer. Raises: ApiFailed."""
        return await self._whole(_Asked("GET", path), timeout_seconds)

    async def send(
        self, method: str, path: str, document: object, *, content_type: str = "application/json", timeout_seconds: float
    ) -> bytes:
        """Write a JSON document (PATCH, PUT, POST, DELETE) and take the whole answer. Raises: ApiFailed.

        A write whose answer is lost may have happened; whoever writes looks again at what is there.
        """
        return await self._whole(_Asked(method, path, orjson.dumps(document), content_type), timeout_seconds)

    async def _whole(self, asked: _Asked, timeout_seconds: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_seconds):
                async with contextlib.aclosing(self._pieces(asked)) as pieces:
                    body = bytearray()
                    async for piece in pieces:
                        body += piece
                        if len(body) > ANSWER_BYTES:
                            raise ApiFailed(f"the answer is larger than {ANSWER_BYTES} bytes")
                    return bytes(body)
        except TimeoutError:
            raise ApiFailed("the API server did not answer in time") from None

    async def lines(self, path: str, *, timeout_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of an answer as they come, without empty ones. `timeout_seconds` is for its head. Raises: ApiFailed."""
        rest = b""
        async with contextlib.aclosing(self._pieces(_Asked("GET", path), head_seconds=timeout_seconds)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > LINE_BYTES:
                    raise ApiFailed(f"an event is larger than {LINE_BYTES} bytes")
                for line in lines:
                    if line.strip():
                        yield line
        if rest.strip():
            raise ApiFailed("the watch ended inside an event")

    async def _pieces(self, asked: _Asked, *, head_seconds: float | None = None) -> AsyncGenerator[bytes, None]:
        try:
            exchange = await self._head(asked, head_seconds)
            try:
                if exchange.status not in (200, 201):
                    raise await _refusal(exchange)
                complete = False
                while not complete:
                    piece, complete = await exchange.piece()
                    if piece:
                        yield piece
            finally:
                exchange.close()
        except WireError as error:
            # The wire calls whatever is at its other end an engine.
            raise ApiFailed(str(error).replace("engine", "API server")) from None

    async def _head(self, asked: _Asked, head_seconds: float | None) -> Exchange:
        """Send the request and wait for the answer's head; a kept connection that had ended is replaced by a new one."""
        try:
            async with asyncio.timeout(head_seconds):
                if asked.method != "GET":
                    # On a kept connection that ends nobody knows whether it was done.
                    return await self._ask(asked, await self._pool.connection(fresh=True))
                try:
                    return await self._ask(asked, await self._pool.connection())
                except StaleConnection:
                    return await self._ask(asked, await self._pool.connection(fresh=True))
        except TimeoutError:
            raise ApiFailed("the API server did not answer in time") from None

    async def _ask(self, asked: _Asked, connection: Connection) -> Exchange:
        exchange = Exchange(
            connection, deadline=math.inf, idle_timeout_seconds=math.inf, high_water_bytes=ANSWER_BYTES, ends=math.inf
        )
        try:
            connection.send(exchange, self._request(asked))
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _request(self, asked: _Asked) -> bytes:
        host = self._pool.address.host_header.decode()
        lines = [f"{asked.method} {asked.path} HTTP/1.1", f"host: {host}", "accept: application/json"]
        if asked.body:
            lines += [f"content-type: {asked.content_type}", f"content-length: {len(asked.body)}"]
        if self._token_file is not None:
            lines.append(f"authorization: Bearer {self._token()}")
        return "\r\n".join([*lines, "user-agent: serving-gateway", "", ""]).encode("ascii") + asked.body

    def _token(self) -> str:
        try:
            token = self._token_file.read_text(encoding="ascii").strip() if self._token_file is not None else ""
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ApiFailed(f"the token in {self._token_file} cannot be read: {reason}") from None
        if not token or not token.isprintable() or " " in token:
            raise ApiFailed(f"{self._token_file} holds no token")
        return token


async def _refusal(exchange: Exchange) -> ApiFailed:
    """What the server says in place of an answer, in its own words where it gives some."""
    body, complete = b"", False
    while not complete and len(body) < ERROR_BYTES:
        piece, complete = await exchange.piece()
        body += piece
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    words = f": {message[:WORDS]}" if isinstance(message, str) and message else ""
    return ApiFailed(f"the API server answered {exchange.status}{words}", exchange.status)
