"""An id for each request that the gateway answers by itself, as the hot path gives one to those for engines."""

from __future__ import annotations

import logging

from serving.api.edge import Asgi, request_id
from serving.api.reply import Message, Receive, Scope, Send

log = logging.getLogger("serving.api")


class Named:
    """ASGI around an application: each of its answers carries `x-request-id`, the client's own where it is valid.

    A fault is logged under that id; the application has answered it already.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own_id = request_id(dict(scope["headers"]).get(b"x-request-id"))
        name = (b"x-request-id", own_id.encode("ascii"))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), name]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception:
            log.exception("request failed", extra={"request_id": own_id})
