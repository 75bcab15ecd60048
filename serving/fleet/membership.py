"""What a discovery found becomes a pool's endpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from serving.fleet.probe import Probe
from serving.fleet.store import Endpoint, Fleet
from serving.settings import PoolSettings

log = logging.getLogger("serving.fleet")

UID_DIGITS = 8
"""Of a pod's uid, in the name of its endpoint."""


def take(fleet: Fleet, probe: Probe, pool: str, endpoints: Sequence[Endpoint], changed: Callable[[], None]) -> None:
    """Let a pool have exactly these endpoints, and let them be probed. `changed` is called in any case."""
    if fleet.replace(pool, endpoints):
        names = ", ".join(endpoint.name for endpoint in endpoints) or "none"
        log.info("pool %s has the endpoints %s", pool, names, extra={"pool": pool, "endpoints": len(endpoints)})
        probe.follow()
    changed()


def found_at(pool: PoolSettings, address: str, port: int | None, *, pod: str = "", uid: str = "") -> Endpoint:
    """The engine of a pool at an IP address; a pod's uid is part of the name, so that what is kept by name is that pod's."""
    host = f"[{address}]" if ":" in address else address
    words = [pool.name, address.replace(":", "-"), *([uid[:UID_DIGITS]] if uid else [])]
    return Endpoint(
        name="-".join(words),
        url=f"http://{host}:{port}",
        model=pool.model,
        pool=pool.name,
        target=pool.target,
        tasks=pool.tasks,
        pod=pod,
        uid=uid,
        slots=pool.slots,
    )
