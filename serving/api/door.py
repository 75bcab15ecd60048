"""What the connections of one listener share: limits, a count, and what becomes of one too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving.api.edge import Asgi, request_id
from serving.api.errors import whole_error
from serving.api.family import dialect_of
from serving.api.reply import Receive, Scope, Send
from serving.core.errors import Unavailable
from serving.settings import LimitSettings

SURPLUS_CONNECTIONS = 64
"""Connections beyond the limit that get an answer; those beyond them are closed without one."""
PROBES = frozenset(("/livez", "/readyz", "/health"))
"""Answered on surplus connections, too: a full gateway is alive."""


@dataclass(slots=True)
class Door:
    limits: LimitSettings
    on_refusal: Callable[[str], None]
    """Told why whenever a request or connection is refused before it is a request; a closed set of words."""
    write_timeout_seconds: float
    """A client that takes none of an answer's last bytes for this long is dropped."""
    on_gone: Callable[[RequestResponseCycle], None] = lambda _: None
    """Told of each request whose client's connection ends before its answer does."""
    open_connections: int = 0


class DoorConfig(uvicorn.Config):
    """uvicorn's configuration of a listener that has a door."""

    def __init__(self, app: Any, door: Door, **options: Any) -> None:
        super().__init__(app, **options)
        self.door = door


def full(app: Asgi) -> Asgi:
    """The application of connections beyond the limit."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        error = Unavailable("The gateway has too many connections.", code="too_many_connections", retry_after_seconds=1)
        headers = dict(scope["headers"])
        name = request_id(headers.get(b"x-request-id"))
        body, fields = whole_error(error, dialect_of(scope["path"], headers), name)
        fields.append((b"x-request-id", name.encode("ascii")))
        await send({"type": "http.response.start", "status": error.status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    return answer
