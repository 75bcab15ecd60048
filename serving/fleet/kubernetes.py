"""Finds the engines of a pool in Kubernetes, in its EndpointSlices or its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import quote

from serving.core.tasks import end_all
from serving.fleet.kubernetes_objects import Document, Sighting, members, sightings_in_pod, sightings_in_slice
from serving.fleet.membership import take
from serving.fleet.mirror import Api, Mirror, follow
from serving.fleet.probe import Probe
from serving.fleet.store import Fleet
from serving.fleet_settings import KubernetesPoolSettings, KubernetesSettings
from serving.settings import PoolSettings


class Follower(Mirror[list[Sighting]]):
    """What Kubernetes says about one pool, kept in step."""

    def __init__(self, pool: PoolSettings, namespace: str, api: Api, settings: KubernetesSettings) -> None:
        assert pool.kubernetes is not None
        self.pool = pool
        self._source = pool.kubernetes
        path, query = _resource(self._source, namespace)
        super().__init__(path, query, self._sightings, api, settings)

    @property
    def sightings(self) -> list[Sighting]:
        return [sighting for found in self.objects.values() for sighting in found]

    def _sightings(self, item: Document) -> list[Sighting] | None:
        port = self._source.port
        if self._source.service is not None:
            return sightings_in_slice(item, port)
        return sightings_in_pod(item, port) if port is not None else None


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
        await end_all(self._tasks)

    async def _follow(self, follower: Follower) -> None:
        pool = follower.pool.name
        failed = partial(self._failed, pool)
        await follow(follower, f"pool {pool}", self._list_seconds, failed=failed, extra={"pool": pool})

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
