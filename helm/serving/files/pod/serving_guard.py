"""A guard in front of all of an engine's routes: `--middleware serving_guard.Guard`, with this file's folder on PYTHONPATH.

vLLM's own `--api-key` looks at four path prefixes only and leaves routes such as /invocations, /tokenize and /scale_elastic_ep
open. This guard wants a secret in the header `x-serving-engine-secret` on every route but `GET /health` and `GET /metrics`.
The secret comes by environment: SERVING_ENGINE_SECRET_FILE names a file with one secret a line, any of which is taken (so that
a secret can be exchanged while gateways still send the one before), or SERVING_ENGINE_SECRET holds it.

Standard library only, nothing of this package, Python 3.10 and later: it is also mounted into vLLM's own image as a plain file.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-serving-engine-secret"
OPEN_PATHS = frozenset(("/health", "/metrics"))
OPEN_METHODS = frozenset(("GET", "HEAD"))
CLOSE_CODE = 4401
REFUSAL = (
    b'{"error":{"message":"This engine answers its gateways only: the header x-serving-engine-secret is missing or wrong.",'
    b'"type":"authentication_error","param":null,"code":"engine_secret"}}'
)


class NoSecret(Exception):
    """The guard has no secret to ask for, so the engine must not start."""


def secrets_from(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The secrets that are taken. Raises: NoSecret, with what would be right; a secret itself is never in the message."""
    path, value = environ.get("SERVING_ENGINE_SECRET_FILE"), environ.get("SERVING_ENGINE_SECRET")
    if path is not None and value is not None:
        raise NoSecret("SERVING_ENGINE_SECRET_FILE and SERVING_ENGINE_SECRET are both set: the guard wants one of them")
    if path is not None:
        source = f"SERVING_ENGINE_SECRET_FILE: {path}"
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise NoSecret(f"{source} cannot be read: {error.strerror}") from None
    elif value is not None:
        source, text = "SERVING_ENGINE_SECRET", os.fsencode(value)
    else:
        raise NoSecret("the guard has no secret: set SERVING_ENGINE_SECRET_FILE or SERVING_ENGINE_SECRET, or start without it")
    secrets = tuple(line for line in map(bytes.strip, text.splitlines()) if line)
    if not secrets:
        raise NoSecret(f"{source} holds no secret: an engine that anybody may ask is started without the guard")
    if not all(0x21 <= byte <= 0x7E for secret in secrets for byte in secret):
        raise NoSecret(f"{source}: a secret must be printable ASCII without spaces, since it travels in a header")
    return secrets


# Read at import, which vLLM does while it builds its server: a server would take an error inside the middleware for a missing
# lifespan protocol and go on.
SECRETS = secrets_from(os.environ)


class Guard:
    """ASGI middleware. The secret's header goes no further than here, so that nothing behind can log it."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = scope.get("headers", ())
        given = [value for name, value in headers if name.lower() == HEADER]
        if _is_open(scope) or _is_known(given):
            await self._app({**scope, "headers": [pair for pair in headers if pair[0].lower() != HEADER]}, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": CLOSE_CODE, "reason": "engine_secret"})
        else:
            length = b"%d" % len(REFUSAL)
            head = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 401, "headers": head})
            await send({"type": "http.response.body", "body": REFUSAL})


def _is_open(scope: Scope) -> bool:
    """Whether the request goes to one of the open routes and cannot be taken for another one by anything behind.

    Routers cut `root_path` off the path, and sub-applications may look at `raw_path`; both must agree with the path.
    """
    path = scope.get("path")
    root_path = scope.get("root_path") or ""
    return (
        scope["type"] == "http"
        and scope.get("method") in OPEN_METHODS
        and path in OPEN_PATHS
        and not (root_path and path.startswith(root_path))
        and scope.get("raw_path") in (None, path.encode("ascii"))
    )


def _is_known(given: list[bytes]) -> bool:
    """One header and no second one; every secret is compared, so that the time tells nothing."""
    if len(given) != 1:
        return False
    known = False
    for secret in SECRETS:
        known |= hmac.compare_digest(given[0], secret)
    return known
