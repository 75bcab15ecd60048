"""Objects of Kubernetes, kept in step: a full list again and again, which is the truth, and a watch in between as a hint.

One round is a list and a watch from that list on, which ends after `list_seconds` at the latest, however silent or broken it
is. So an event that got lost, a watch that stalls, one that is too old (410) or ends too early cost no more than one round. A
server that fails says nothing about objects, so what is known stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import orjson

from serving.fleet_settings import KubernetesSettings

log = logging.getLogger("serving.fleet")

Document = dict[str, Any]
T = TypeVar("T")
PAGE_OBJECTS = 250
MOST_PAGES = 100
"""Of one list: a server that continues for ever is broken."""
PAUSE_SECONDS = 0.25
"""Before the next round, when one ended early; doubled for each round without a watch that lasted, up to `list_seconds`."""
STALL_SECONDS = 1.0
"""How much longer than it was asked to a watch may take to end; its last bytes are those of a bookmark."""


class ApiFailed(Exception):
    """The API server did not give what was asked for; the message says why. `status` is its answer's, 0 where there is none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api(Protocol):
    """GETs from the API server. Raises: ApiFailed, also for every status but 200."""

    async def get(self, path: str, *, timeout_seconds: float) -> bytes: ...

    def lines(self, path: str, *, timeout_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of an answer as they come. `timeout_seconds` is until its head has come, not until its end."""
        ...


class WatchEnded(Exception):
    """The watch cannot tell more; a list can."""


class Mirror(Generic[T]):
    """What the objects at one path say, by name, as `read` understands them; those of which it says None are left out.

    It calls `changed` after each list and each event.
    """

    def __init__(
        self, path: str, query: Mapping[str, str], read: Callable[[Document], T | None], api: Api, settings: KubernetesSettings
    ) -> None:
        self._path, self._query, self._read = path, dict(query), read
        self._api = api
        self._settings = settings
        self.objects: dict[str, T] = {}
        self.listed = False
        """Whether there has been a whole list."""
        self.changed: Callable[[], None] = lambda: None

    @property
    def place(self) -> str:
        return f"{self._path}?{urlencode(self._query)}" if self._query else self._path

    async def read_list(self) -> str:
        """Take the full list. Returns the version from which on a watch tells what changed. Raises: ApiFailed."""
        objects: dict[str, T] = {}
        query = {**self._query, "limit": str(PAGE_OBJECTS)}
        for _ in range(MOST_PAGES):
            body = await self._api.get(f"{self._path}?{urlencode(query)}", timeout_seconds=self._settings.timeout_seconds)
            page = _document(body)
            metadata, items = page.get("metadata"), page.get("items")
            if not isinstance(metadata, dict) or not (isinstance(items, list) or (items is None and "items" in page)):
                raise ApiFailed("the answer is not a list")
            for item in items or ():
                self._note(objects, item)
            if not metadata.get("continue"):
                # Only a whole list takes the place of the last one.
                self.objects, self.listed = objects, True
                self.changed()
                return str(metadata.get("resourceVersion") or "")
            query["continue"] = str(metadata["continue"])
        raise ApiFailed(f"the list has more than {MOST_PAGES} pages")

    async def watch(self, version: str) -> None:
        """Take events until the watch ends. Raises: ApiFailed, WatchEnded, TimeoutError when it is silent for too long."""
        seconds = round(self._settings.list_seconds)
        asked = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        path = f"{self._path}?{urlencode({**self._query, **asked})}"
        async with asyncio.timeout(seconds + STALL_SECONDS):
            async with contextlib.aclosing(self._api.lines(path, timeout_seconds=self._settings.timeout_seconds)) as lines:
                async for line in lines:
                    self._take(_document(line))

    def _take(self, event: Document) -> None:
        kind, item = event.get("type"), event.get("object")
        if kind == "BOOKMARK":
            return
        if kind in ("ADDED", "MODIFIED"):
            self._note(self.objects, item)
        elif kind == "DELETED" and isinstance(item, dict) and (name := _name(item)):
            self.objects.pop(name, None)
        else:
            # Most often 410: the version is too old. Whatever it is, the next list knows.
            raise WatchEnded(_words(item) or f"an event of the type {kind!r:.40}")
        self.changed()

    def _note(self, objects: dict[str, T], item: Any) -> None:
        if not isinstance(item, dict) or not (name := _name(item)):
            return
        if (found := self._read(item)) is None:
            objects.pop(name, None)
        else:
            objects[name] = found


async def follow(
    mirror: Mirror[Any],
    what: str,
    list_seconds: float,
    *,
    failed: Callable[[], None] = lambda: None,
    extra: Mapping[str, str] | None = None,
) -> None:
    """Keep a mirror in step until cancelled. `what` and `extra` are for the log; `failed` is called for each list that failed."""
    failure, unwatched, pause_seconds = "", "", PAUSE_SECONDS
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            version = await mirror.read_list()
        except ApiFailed as error:
            failed()
            if str(error) != failure:
                failure = str(error)
                log.warning("%s: %s cannot be listed: %s", what, mirror.place, failure, extra=extra)
        else:
            if failure:
                log.info("%s: is listed again", what, extra=extra)
            failure = ""
            unwatched = await _watch(mirror, version, unwatched, what, extra)
        if loop.time() - began >= list_seconds:
            pause_seconds = PAUSE_SECONDS
            continue
        await asyncio.sleep(min(pause_seconds, list_seconds))
        pause_seconds = min(2 * pause_seconds, list_seconds)


async def _watch(mirror: Mirror[Any], version: str, forbidden: str, what: str, extra: Mapping[str, str] | None) -> str:
    """Watch until that ends. `forbidden` is why it was refused the last time, and what is returned why it was now.

    How else it ends is not worth a warning: the list that follows is the truth.
    """
    try:
        await mirror.watch(version)
    except (ApiFailed, WatchEnded, TimeoutError) as error:
        log.debug("%s: the watch ended: %s", what, str(error) or "it was silent for too long")
        if isinstance(error, ApiFailed) and error.status in (401, 403):
            if str(error) != forbidden:
                log.warning("%s: changes are seen late, since watching is refused: %s", what, error, extra=extra)
            return str(error)
    return ""


def _document(text: bytes) -> Document:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ApiFailed("the answer is not JSON") from None
    if not isinstance(document, dict):
        raise ApiFailed("the answer is not a JSON object")
    return document


def _name(item: Document) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _words(status: Any) -> str:
    message = status.get("message") if isinstance(status, dict) else None
    return message[:200] if isinstance(message, str) else ""
