"""Of several controllers one leads at a time: the one that holds a Lease of Kubernetes and renews it.

Clocks of machines are not compared: a Lease that has not changed for its whole time, by the own clock, may be taken. A leader
that cannot renew stops before that time is over, so that two never write at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from urllib.parse import quote

from serving.fleet.mirror import ApiFailed, Document
from serving.gatekeeper.cluster import CONFLICT, Cluster
from serving.gatekeeper.settings import LeaseSettings

log = logging.getLogger("serving.gate")


class Leadership:
    """Runs something while this process leads."""

    def __init__(self, cluster: Cluster, name: str, identity: str, settings: LeaseSettings) -> None:
        self._cluster = cluster
        self._name, self._identity, self._settings = name, identity, settings
        self._path = f"{cluster.leases}/{quote(name, safe='')}"
        self._seen: tuple[object, object] = (None, None)
        self._seen_at = 0.0
        self.leads = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Lead whenever that is possible, until cancelled.

        `lead` is cancelled when the Lease is lost; if it raises, so does this.
        """
        while True:
            if await self._take():
                await self._lead(lead)
            await asyncio.sleep(self._settings.period_seconds)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        log.info("%s leads", self._identity)
        self.leads = True
        work = asyncio.ensure_future(lead())
        try:
            await self._keep(work)
            if work.done():
                work.result()
        finally:
            self.leads = False
            work.cancel()
            await asyncio.wait({work})  # a cancellation of this task goes on its way
            await self._give_up()

    async def _keep(self, work: asyncio.Future[None]) -> None:
        """Renew until that is no longer possible or the work has ended."""
        loop, settings = asyncio.get_running_loop(), self._settings
        until = loop.time() + settings.renew_within_seconds
        while not work.done():
            await asyncio.wait({work}, timeout=min(settings.period_seconds, max(0.0, until - loop.time())))
            began = loop.time()
            try:
                async with asyncio.timeout_at(until):
                    kept = await self._write()
            except (ApiFailed, TimeoutError) as error:
                kept = None
                log.warning("the Lease %s is not renewed: %s", self._name, error or "the API server did not answer in time")
            if kept:
                until = began + settings.renew_within_seconds
            elif kept is False or loop.time() >= until:
                log.warning("%s leads no more", self._identity)
                return

    async def _take(self) -> bool:
        try:
            return await self._write() is True
        except ApiFailed as error:
            log.warning("the Lease %s cannot be asked for: %s", self._name, error)
            return False

    async def _write(self) -> bool:
        """Take or renew the Lease. False: it is another one's. Raises: ApiFailed."""
        lease = await self._cluster.find(self._path)
        try:
            if lease is None:
                await self._cluster.create(self._cluster.leases, self._document({}, 0))
                return True
            spec = lease.get("spec") or {}
            if not self._is_free(spec):
                return False
            is_mine = spec.get("holderIdentity") == self._identity
            transitions = int(spec.get("leaseTransitions") or 0) + (not is_mine)
            document = self._document(spec if is_mine else {}, transitions)
            document["metadata"]["resourceVersion"] = lease["metadata"].get("resourceVersion")
            await self._cluster.replace(self._path, document)
        except ApiFailed as error:
            if error.status == CONFLICT:
                return False
            raise
        return True

    def _is_free(self, spec: Document) -> bool:
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return True
        now, seen = asyncio.get_running_loop().time(), (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        seconds = spec.get("leaseDurationSeconds")
        return now - self._seen_at >= (seconds if isinstance(seconds, int) else self._settings.seconds)

    def _document(self, before: Document, transitions: int) -> Document:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._settings.seconds)),
                "acquireTime": before.get("acquireTime") or now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    async def _give_up(self) -> None:
        """Let the next one begin at once, if it is still ours and the server can be told."""
        with contextlib.suppress(ApiFailed, TimeoutError):
            async with asyncio.timeout(self._settings.period_seconds):
                lease = await self._cluster.find(self._path)
                if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    lease["spec"]["holderIdentity"] = ""
                    await self._cluster.replace(self._path, lease)
