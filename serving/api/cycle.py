"""uvicorn's request cycle for a request that was read without its parser, and how a cycle is found and told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_log = logging.getLogger("uvicorn.error")

PLAIN_SCOPE: Any = {"type": "http", "http_version": "1.1", "method": "POST"}
"""All that anybody asks of the scope of a request whose head went straight to the edge."""


class Cycle(RequestResponseCycle):
    """The same for whoever uses it, but made with less: defaults stand in the class, and there is an event only once it is
    waited for."""

    logger = access_logger = _log
    access_log = False
    disconnected = False
    keep_alive = True
    waiting_for_100_continue = False
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    _event: asyncio.Event | None = None

    def __init__(
        self,
        scope: Any,
        transport: Any,
        flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
        on_response: Callable[..., None],
        body: bytes,
        *,
        more_body: bool,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self.on_response = on_response
        self.whole_body = b"" if more_body else body
        """The body, when it was there from the start."""
        self.body = bytearray(body) if more_body else bytearray()
        self.more_body = more_body

    # `receive` takes what is there first, so that an event which is made late begins set.

    @property
    def message_event(self) -> asyncio.Event:
        if self._event is None:
            self._event = asyncio.Event()
            self._event.set()
        return self._event

    @message_event.setter
    def message_event(self, event: asyncio.Event) -> None:
        self._event = event

    async def receive(self) -> Any:
        if self.whole_body:
            self.body, self.whole_body = bytearray(self.whole_body), b""
        return await super().receive()


def wake(cycle: RequestResponseCycle) -> None:
    """Tell whoever waits for a cycle's next message that there is one."""
    if not isinstance(cycle, Cycle):
        cycle.message_event.set()
    elif cycle._event is not None:
        cycle._event.set()


def cycle_of(message_channel: Any) -> RequestResponseCycle | None:
    """uvicorn's request cycle behind a `receive` or `send` of its own; None for any other server, or where something wraps it."""
    cycle = getattr(message_channel, "__self__", None)
    return cycle if isinstance(cycle, RequestResponseCycle) else None
