"""Finds the engines of a pool in Kubernetes: a full list again and again, which is the truth, and a watch in between as a hint.

One round is a list and a watch from that list on, which ends after `list_seconds` at the latest, however silent or broken it
is. So an event that got lost, a watch that stalls, one that is too old (410) or ends too early cost no more than one round. A
server that fails says nothing about engines, so what is known stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import orjson

from serving.fleet.kubernetes_objects import Document, Sighting, members, sightings_in_pod, sightings_in_slice
from serving.fleet.membership import take
from serving.fleet.probe import Probe
from serving.fleet.store import Fleet
from serving.fleet_settings import KubernetesPoolSettings, KubernetesSettings
from serving.settings import PoolSettings

log = logging.getLogger("serving.fleet")

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


class Follower:
    """What Kubernetes says about one pool, kept in step. It calls `changed` after each list and each event."""

    def __init__(self, pool: PoolSettings, namespace: str, api: Api, settings: KubernetesSettings) -> None:
        assert pool.kubernetes is not None
        self.pool = pool
        self._source = pool.kubernetes
        self._path, self._query = _resource(self._source, namespace)
        self._api = api
        self._settings = settings
        self._objects: dict[str, list[Sighting]] = {}
        """By the object's name."""
        self.changed: Callable[[], None] = lambda: None

    @property
    def place(self) -> str:
        return f"{self._path}?{urlencode(self._query)}"

    @property
    def sightings(self) -> list[Sighting]:
        return [sighting for found in self._objects.values() for sighting in found]

    async def read_list(self) -> str:
        """Take the full list. Returns the version from which on a watch tells what changed. Raises: ApiFailed."""
        objects: dict[str, list[Sighting]] = {}
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
                self._objects = objects
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
            self._note(self._objects, item)
        elif kind == "DELETED" and isinstance(item, dict) and (name := _name(item)):
            self._objects.pop(name, None)
        else:
            # Most often 410: the version is too old. Whatever it is, the next list knows.
            raise WatchEnded(_words(item) or f"an event of the type {kind!r:.40}")
        self.changed()

    def _note(self, objects: dict[str, list[Sighting]], item: Any) -> None:
        if not isinstance(item, dict) or not (name := _name(item)):
            return
        port = self._source.port
        if self._source.service is not None:
            objects[name] = sightings_in_slice(item, port)
        elif port is not None:
            objects[name] = sightings_in_pod(item, port)


class KubernetesDiscovery:
    """One task for each pool. `changed` is called after each change, `failed` with the pool after each list that failed."""

    def __init__(
        self,
        followers: Sequence[Follower],
        fleet: Fleet,
        probe: Probe,
        settings: KubernetesSettings,
        *,
        changed: Callable[[], None] = lambda: None,
        failed: Callable[[str], None] = lambda pool: None,
    ) -> None:
        self._followers = followers
        self._fleet = fleet
        self._probe = probe
        self._list_seconds = settings.list_seconds
        self._changed = changed
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []
        for follower in followers:
            follower.changed = partial(self._take, follower)

    async def __aenter__(self) -> KubernetesDiscovery:
        self._tasks = [asyncio.create_task(self._follow(each), name=f"kubernetes-{each.pool.name}") for each in self._followers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, follower: Follower) -> None:
        pool, failure, unwatched, pause_seconds = follower.pool.name, "", "", PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                version = await follower.read_list()
            except ApiFailed as error:
                self._failed(pool)
                if str(error) != failure:
                    failure = str(error)
                    log.warning("pool %s: %s cannot be listed: %s", pool, follower.place, failure, extra={"pool": pool})
            else:
                if failure:
                    log.info("pool %s: is listed again", pool, extra={"pool": pool})
                failure = ""
                unwatched = await self._watch(follower, version, unwatched)
            if loop.time() - began >= self._list_seconds:
                pause_seconds = PAUSE_SECONDS
                continue
            await asyncio.sleep(min(pause_seconds, self._list_seconds))
            pause_seconds = min(2 * pause_seconds, self._list_seconds)

    async def _watch(self, follower: Follower, version: str, forbidden: str) -> str:
        """Watch until that ends. `forbidden` is why it was refused the last time, and what is returned why it was now.

        How else it ends is not worth a warning: the list that follows is the truth.
        """
        pool = follower.pool.name
        try:
            await follower.watch(version)
        except (ApiFailed, WatchEnded, TimeoutError) as error:
            log.debug("pool %s: the watch ended: %s", pool, str(error) or "it was silent for too long")
            if isinstance(error, ApiFailed) and error.status in (401, 403):
                if str(error) != forbidden:
                    log.warning(
                        "pool %s: changes are seen late, since watching is refused: %s", pool, error, extra={"pool": pool}
                    )
                return str(error)
        return ""

    def _take(self, follower: Follower) -> None:
        pool = follower.pool
        endpoints, withheld = members(pool, follower.sightings)
        self._fleet.withhold(pool.name, withheld)
        take(self._fleet, self._probe, pool.name, endpoints, self._changed)


def _resource(source: KubernetesPoolSettings, namespace: str) -> tuple[str, dict[str, str]]:
    """The path of what a pool is read from, and the query that selects it."""
    where = quote(namespace, safe="")
    if source.service is not None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{where}/endpointslices"
        return path, {"labelSelector": f"kubernetes.io/service-name={source.service}"}
    return f"/api/v1/namespaces/{where}/pods", {"labelSelector": source.selector or ""}


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
