"""Finds the engines of a pool behind a DNS name, again and again: each of its addresses is an endpoint.

A headless Service of Kubernetes is such a name, with the addresses of its ready pods. What the whole list says is taken; there
are no events to miss. A name server that fails says nothing about engines, so the last list stays. Where all addresses are new,
the engines that were there serve until one of the new ones does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.core.tasks import end_all
from serving.fleet.membership import found_at, take
from serving.fleet.probe import Probe
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.settings import DiscoverySettings, PoolSettings

log = logging.getLogger("serving.fleet")

NO_ADDRESS = frozenset((socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)))
"""Answers that say that a name has no address: a Service without ready pods looks like that."""


class LookupFailed(Exception):
    """Nobody could say which addresses there are; the message says why."""


class Resolve(Protocol):
    """The addresses of a name, none when it has none. Raises: LookupFailed."""

    async def __call__(self, host: str) -> list[str]: ...


async def resolve(host: str) -> list[str]:
    """Ask as the system does: hosts file, search domains and name servers of resolv.conf."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except socket.gaierror as error:
        if error.errno in NO_ADDRESS:
            return []
        raise LookupFailed(error.strerror or "the look-up failed") from None
    except (OSError, UnicodeError) as error:
        raise LookupFailed(str(error)) from None
    return sorted({str(address[0]) for *_, address in found})


class Discovery:
    """One task for each pool that has a host.

    `changed` is called after each look-up that succeeded, `failed` with the pool after each other.
    """

    def __init__(
        self,
        pools: Sequence[PoolSettings],
        fleet: Fleet,
        probe: Probe,
        settings: DiscoverySettings,
        *,
        resolve: Resolve = resolve,
        changed: Callable[[], None] = lambda: None,
        failed: Callable[[str], None] = lambda pool: None,
    ) -> None:
        self._pools = [pool for pool in pools if pool.host is not None]
        self._fleet = fleet
        self._probe = probe
        self._settings = settings
        self._resolve = resolve
        self._changed = changed
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Discovery:
        self._tasks = [asyncio.create_task(self._follow(pool), name=f"discovery-{pool.name}") for pool in self._pools]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_all(self._tasks)

    async def _follow(self, pool: PoolSettings) -> None:
        host, failure = pool.host or "", ""
        while True:
            try:
                async with asyncio.timeout(self._settings.timeout_seconds):
                    addresses = await self._resolve(host)
            except (LookupFailed, TimeoutError) as error:
                self._failed(pool.name)
                reason = str(error) or "no answer in time"
                if reason != failure:
                    log.warning("pool %s: %s cannot be looked up: %s", pool.name, host, reason, extra={"pool": pool.name})
                failure = reason
            else:
                failure = ""
                self._take(pool, addresses)
            await asyncio.sleep(self._settings.period_seconds)

    def _take(self, pool: PoolSettings, addresses: Sequence[str]) -> None:
        found = [found_at(pool, address, pool.port) for address in addresses]
        take(self._fleet, self._probe, pool.name, [*found, *self._still_needed(pool, found)], self._changed)

    def _still_needed(self, pool: PoolSettings, found: Sequence[Endpoint]) -> list[Endpoint]:
        """Those that have lost their address in the name and answer, until one of those that have one does.

        A name server that has just begun knows no names, and engines that take the place of all others have yet to load.
        """
        statuses = self._fleet.snapshot.statuses.values()
        answering = [s.endpoint for s in statuses if s.endpoint.pool == pool.name and s.state is EndpointState.READY]
        return [] if any(endpoint in answering for endpoint in found) else answering
