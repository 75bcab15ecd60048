"""What a series is, as data."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
OverGateways = Literal["sum", "max", "each"]
"""How the series of several gateways become one: each counts its own part, each says the same, or it is about one process."""

TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
INTER_CHUNK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One name with all of its label values."""

    name: str
    """Of a counter without the `_total` that it has in the exposition."""
    kind: Kind
    documentation: str
    labels: tuple[str, ...] = ()
    over_gateways: OverGateways = "sum"
    bounds_seconds: tuple[float, ...] = ()
    """Upper ends of a histogram's buckets."""

    @property
    def exposed(self) -> str:
        """The name to ask Prometheus for; a histogram's has `_bucket`, `_sum` or `_count` behind it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def counter(name: str, documentation: str, *labels: str, over_gateways: OverGateways = "sum") -> Series:
    return Series(name, "counter", documentation, labels, over_gateways)


def gauge(name: str, documentation: str, *labels: str, over_gateways: OverGateways = "sum") -> Series:
    return Series(name, "gauge", documentation, labels, over_gateways)


def histogram(name: str, documentation: str, bounds_seconds: tuple[float, ...], *labels: str) -> Series:
    return Series(name, "histogram", documentation, labels, "sum", bounds_seconds)


def defined_in(module: ModuleType) -> tuple[Series, ...]:
    """All series of a module, in the order in which they are written there."""
    return tuple(value for value in vars(module).values() if isinstance(value, Series))
