"""The page `/ui`: its files, its figures as JSON, and the way of its playground into the gateway.

The playground's request takes the same way through the same application as any client's, with the key that the user typed, so
that the page opens nothing that the API does not. It has a route of its own at the operators' address, for pages of that address
alone: there is no CORS, and whatever another site's page sends is refused.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from serving.api.edge import Asgi, request_id
from serving.api.errors import whole_error
from serving.api.reply import Receive, Scope, Send
from serving.api.ui_state import State
from serving.core.context import Headers
from serving.core.errors import ConfigurationError, Forbidden, MethodNotAllowed, NotFound, RequestError
from serving.core.routes import CHAT_COMPLETIONS, OPENAI
from serving.settings import Settings

PAGE = "/ui"
STATE = "/ui/state"
CHAT = "/ui/chat"
FOLDER = Path(__file__).with_name("page")
FILES = {
    PAGE: ("page.html", b"text/html; charset=utf-8"),
    "/ui/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/ui/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/ui/playground.js": ("playground.js", b"text/javascript; charset=utf-8"),
    "/ui/words.js": ("words.js", b"text/javascript; charset=utf-8"),
    "/ui/icon.svg": ("icon.svg", b"image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from another host, nothing inline, in nobody's frame; and no text ever becomes markup."""
GUARDS: Headers = [
    (b"content-security-policy", POLICY.encode("ascii")),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
LOCALHOST = "localhost"


def why_no_playground(settings: Settings) -> str:
    """Why the page must not ask engines, in words for whoever reads it; empty where it may."""
    server = settings.server
    host = server.host if server.operator_port is None else server.operator_host
    try:
        settings.check_reach(host)
    except ConfigurationError:
        return (
            "The playground is closed: other machines can reach this address, and nobody is asked for a key. Set auth.api_key, "
            "auth.keys, auth.key_file or database.url, or auth.allow_anonymous: true."
        )
    return ""


def own_names(settings: Settings) -> frozenset[str] | None:
    """The hosts by which the page may be called, beside numbers; None where any will do: a key is wanted, or everybody may."""
    if not settings.is_open or settings.auth.allow_anonymous:
        return None
    return frozenset((LOCALHOST, settings.server.host.lower(), settings.server.operator_host.lower()))


class Files:
    """ASGI around an application: the page's files and figures; all else is the application's."""

    def __init__(self, app: Asgi, state: Callable[[], State]) -> None:
        self._app = app
        self._state = state
        self._files = {path: _file(FOLDER / name, kind) for path, (name, kind) in FILES.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path not in self._files and path not in (STATE, f"{PAGE}/"):
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _refuse(MethodNotAllowed(f"{path} takes GET only.", headers={"allow": "GET, HEAD"}), scope, send)
        elif path == STATE:
            headers = [*GUARDS, (b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            await _answer(200, headers, orjson.dumps(asdict(self._state())), scope, send)
        elif path not in self._files:
            await _answer(308, [(b"location", b"../ui")], b"", scope, send)
        else:
            headers, body = self._files[path]
            tag = dict(headers)[b"etag"]
            fresh = dict(scope["headers"]).get(b"if-none-match") == tag
            await _answer(304 if fresh else 200, headers, b"" if fresh else body, scope, send)


class Playground:
    """ASGI around an application: hands what the page's playground sends to the gateway's own, if it is this page's.

    `why_closed`: why there is no playground, as for a gateway that wants no key where others can reach this address.
    `own_names`: hosts by which this address may be called where no key is wanted, beside numbers; any other name may be one that
    somebody else has pointed here, whose page would then be of the same origin.
    """

    def __init__(self, app: Asgi, gateway: Callable[[], Asgi], *, why_closed: str, own_names: frozenset[str] | None) -> None:
        self._app = app
        self._gateway = gateway
        self._why_closed = why_closed
        self._own_names = own_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != CHAT:
            await self._app(scope, receive, send)
            return
        error = self._problem(scope)
        if error is None:
            path = CHAT_COMPLETIONS.path
            await self._gateway()({**scope, "path": path, "raw_path": path.encode("ascii")}, receive, send)
        else:
            name = request_id(dict(scope["headers"]).get(b"x-request-id")).encode("ascii")
            scope["request_id"] = name.decode("ascii")
            await _refuse(error, scope, send, [(b"x-request-id", name)])

    def _problem(self, scope: Scope) -> RequestError | None:
        if self._why_closed:
            return NotFound(self._why_closed)
        if scope["method"] != "POST":
            return MethodNotAllowed(f"{CHAT} takes POST only.", headers={"allow": "POST"})
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if not is_same_origin(headers):
            return Forbidden(f"{CHAT} is for the page {PAGE} of this address; programs use {CHAT_COMPLETIONS.path}.")
        host = _host(headers.get(b"host", b""))
        if self._own_names is not None and not _is_number(host) and host not in self._own_names:
            return Forbidden("No key is wanted here, so call this address by its number or as localhost, or set a key.")
        return None


def is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser sent this for a page of the very address that it asks. What says nothing of it is not."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    origin = headers.get(b"origin", b"").partition(b"://")[2]
    return origin != b"" and origin.lower() == headers.get(b"host", b"").lower()


def _host(authority: bytes) -> str:
    """The host of a Host header, without its port, in lower case; a number of version 6 keeps its brackets."""
    text = authority.decode("latin-1").lower()
    try:
        port = urlsplit(f"//{text}").port
    except ValueError:
        return text
    return text if port is None else text.rpartition(":")[0]


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _file(path: Path, kind: bytes) -> tuple[Headers, bytes]:
    body = path.read_bytes()
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii")
    return [*GUARDS, (b"content-type", kind), (b"cache-control", b"no-cache"), (b"etag", tag)], body


async def _refuse(error: RequestError, scope: Scope, send: Send, more: Headers | None = None) -> None:
    body, headers = whole_error(error, OPENAI, scope.get("request_id", ""))
    await send({"type": "http.response.start", "status": error.status, "headers": [*headers, *(more or ())]})
    await send({"type": "http.response.body", "body": body})


async def _answer(status: int, headers: Headers, body: bytes, scope: Scope, send: Send) -> None:
    length = [] if status == 304 else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
