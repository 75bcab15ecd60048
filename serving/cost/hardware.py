"""What one endpoint runs on, from the settings, the pool's first, and from the catalog."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.core.errors import ConfigurationError
from serving.machine_settings import TargetSettings
from serving.routing_settings import PoolRoutingSettings
from serving.settings import Settings

if TYPE_CHECKING:
    # Loaded only where the catalog has a target: its records take long to make.
    from serving.catalog.hardware import Target

log = logging.getLogger("serving.cost")

SECONDS_PER_HOUR = 3600.0
_NOTHING_SAID = PoolRoutingSettings()
_UNKNOWN = TargetSettings()


@dataclass(frozen=True, slots=True)
class Hardware:
    """None is unknown, which is not 0."""

    accelerators: int = 1
    dollars_per_accelerator_hour: float | None = None
    watts_per_accelerator: float | None = None
    accelerators_per_node: int | None = None

    @property
    def dollars_per_hour(self) -> float | None:
        """Of the whole endpoint."""
        price = self.dollars_per_accelerator_hour
        return None if price is None else price * self.accelerators

    @property
    def dollars_per_second(self) -> float | None:
        dollars = self.dollars_per_hour
        return None if dollars is None else dollars / SECONDS_PER_HOUR


class Machines:
    """The hardware of every pool and target of the settings."""

    def __init__(self, settings: Settings, catalog: Mapping[str, TargetSettings]) -> None:
        """`catalog` has the figures of targets that the settings do not give.

        Raises:
            ConfigurationError: a pool is elastic, so that using it costs something, and nobody knows what
        """
        for name in settings.targets.keys() - targets_of(settings):
            log.warning(
                "targets.%s: nothing runs on it; endpoints and pools run on %s", name, ", ".join(sorted(targets_of(settings)))
            )
        self._pools = settings.routing.pools
        self._targets = {
            name: _over(settings.targets.get(name, _UNKNOWN), catalog.get(name, _UNKNOWN)) for name in targets_of(settings)
        }
        self._known: dict[tuple[str, str], Hardware] = {}
        for pool, target in {(e.pool, e.target) for e in settings.endpoints} | {(p.name, p.target) for p in settings.pools}:
            if pool in self._pools and self._pools[pool].elastic and self.of(pool, target).dollars_per_hour is None:
                raise ConfigurationError(
                    f"routing.pools.{pool}: is elastic and has no price: give it dollars_per_hour, the price of what one "
                    f"endpoint runs on, or give targets.{target}.dollars_per_accelerator_hour"
                )

    def of(self, pool: str, target: str) -> Hardware:
        """What an endpoint of that pool and target runs on."""
        known = self._known.get((pool, target))
        if known is None:
            known = self._known[pool, target] = self._made(pool, target)
        return known

    def _made(self, pool: str, target: str) -> Hardware:
        own, facts = self._pools.get(pool, _NOTHING_SAID), self._targets.get(target, _UNKNOWN)
        accelerators = own.accelerators
        price = facts.dollars_per_accelerator_hour if own.dollars_per_hour is None else own.dollars_per_hour / accelerators
        return Hardware(accelerators, price, facts.power_watts, facts.accelerators_per_node)


def targets_of(settings: Settings) -> set[str]:
    """The names of all targets that endpoints and pools have."""
    return {e.target for e in settings.endpoints} | {p.target for p in settings.pools}


def catalog_targets(root: Path, names: Iterable[str]) -> dict[str, TargetSettings]:
    """What the catalog below `root` says of these targets. One that it does not have is passed over: it may be the user's own.

    Raises: ConfigurationError, for a file that cannot be read.
    """
    found = {name: root / "targets" / f"{name}.yaml" for name in names}
    found = {name: path for name, path in found.items() if path.is_file()}
    if not found:
        return {}
    from serving.catalog.hardware import Target
    from serving.catalog.load import read_record

    return {name: _facts(read_record(path, Target)) for name, path in found.items()}


def _facts(target: Target) -> TargetSettings:
    price = None if target.price is None else target.price.dollars_per_accelerator_hour
    return TargetSettings(
        dollars_per_accelerator_hour=price,
        accelerators_per_node=target.accelerators_per_node,
        power_watts=target.power_watts,
    )


def _over(given: TargetSettings, catalog: TargetSettings) -> TargetSettings:
    return catalog.model_copy(update=given.model_dump(exclude_none=True))
