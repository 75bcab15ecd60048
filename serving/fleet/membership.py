"""What a discovery found becomes a pool's endpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from serving.fleet.probe import Probe
from serving.fleet.store import Endpoint, Fleet

log = logging.getLogger("serving.fleet")


def take(fleet: Fleet, probe: Probe, pool: str, endpoints: Sequence[Endpoint], changed: Callable[[], None]) -> None:
    """Let a pool have exactly these endpoints, and let them be probed. `changed` is called in any case."""
    if fleet.replace(pool, endpoints):
        names = ", ".join(endpoint.name for endpoint in endpoints) or "none"
        log.info("pool %s has the endpoints %s", pool, names, extra={"pool": pool, "endpoints": len(endpoints)})
        probe.follow()
    changed()
