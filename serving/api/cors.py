"""Cross-origin calls from browsers, for the origins that the operator names. Without any, this stands in nobody's way."""

from __future__ import annotations

import re
from collections.abc import Collection

from serving.api.edge import Asgi
from serving.api.reply import Message, Receive, Scope, Send
from serving.api.routes import FLEET, METRICS
from serving.api.ui import PAGE
from serving.core.context import Headers

METHODS = b"GET, HEAD, POST, OPTIONS"
REQUEST_HEADERS = b"Authorization, Content-Type"
_KINDS, _WORDS = (b"Requests", b"Tokens"), (b"Limit", b"Remaining", b"Reset")
_LIMIT_HEADERS = (
    *(b"X-RateLimit-%s-%s" % (word, kind) for kind in _KINDS for word in _WORDS),
    *(b"Anthropic-RateLimit-%s-%s" % (kind, word) for kind in _KINDS for word in _WORDS),
)
EXPOSED_HEADERS = b", ".join((b"X-Request-Id, X-Serving-Dropped-Fields, X-Served-Model, Retry-After", *_LIMIT_HEADERS))
PREFLIGHT_SECONDS = b"7200"
"""How long a browser may remember a preflight; browsers cap it at about this themselves."""
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_-]+(?:[ \t]*,[ \t]*[A-Za-z0-9_-]+)*")
_MAX_HEADER_NAMES_BYTES = 2048
_OPERATORS = (METRICS, FLEET, PAGE)
"""What only operators look at, at whatever address it is."""


class Cors:
    """ASGI around the whole application: answers preflights, and marks every answer to a page that may read it.

    What is for operators is no part of the API: it stays closed to other origins, also where it has no address of its own.
    Credentials mode is never allowed: keys travel in a header that the page sets, so no browser sends one by itself.
    """

    def __init__(self, app: Asgi, origins: Collection[str]) -> None:
        self._app = app
        self._any = "*" in origins
        self._origins = {origin.encode("latin-1") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_for_operators(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        marks = self._marks(headers.get(b"origin"))
        if len(marks) > 1 and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _preflight(headers.get(b"access-control-request-headers", b""), marks, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *marks]
            await send(message)

        await self._app(scope, receive, marked)

    def _marks(self, origin: bytes | None) -> Headers:
        """What every answer carries; for a foreign origin only that caches must tell origins apart."""
        vary = (b"vary", b"Origin")
        if origin is None or not (self._any or origin.lower() in self._origins):
            return [vary]
        return [vary, (b"access-control-allow-origin", b"*" if self._any else origin), _EXPOSE]


def _is_for_operators(path: str) -> bool:
    return path in _OPERATORS or path.startswith(f"{PAGE}/")


_EXPOSE = (b"access-control-expose-headers", EXPOSED_HEADERS)


async def _preflight(asked: bytes, marks: Headers, send: Send) -> None:
    """No key is asked for: browsers send none with a preflight."""
    allowed = REQUEST_HEADERS
    if len(asked) <= _MAX_HEADER_NAMES_BYTES and _HEADER_NAMES.fullmatch(asked):
        allowed += b", " + asked
    headers = [
        *marks,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", PREFLIGHT_SECONDS),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
