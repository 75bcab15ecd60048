"""Dollars, from a price that somebody gave, never made up; and the share of the roofline, where the catalog knows enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from serving.catalog.evidence import Workload
from serving.catalog.load import load_catalog, nearest
from serving.catalog.model import Profile, Target
from serving.catalog.roofline import Roofline as Bounds
from serving.catalog.speed import roofline_of
from serving.core.errors import ConfigurationError
from serving.replay.report import Estimate, Money, Options, Roofline

N = TypeVar("N", Target, Profile)

UNKNOWN = "no price was given (--price-per-hour, or --target with a price in the catalog)"


@dataclass(frozen=True)
class Price:
    """Of all nodes together; None where nobody said."""

    dollars_per_hour: float | None
    source: str


@dataclass(frozen=True)
class Hardware:
    """What the catalog says of the engine; None where the command line does not say what it is."""

    target: Target | None = None
    profile: Profile | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True)
class Seen:
    """What a stage made: all engines together."""

    output_per_second: float | None
    running: float
    """The mean number of requests that were getting tokens."""
    workload: Workload | None
    """The mean request; None where none ended well."""


def find_hardware(options: Options, catalog_root: Path) -> Hardware:
    """Raises: ConfigurationError for names that the catalog does not have, or that contradict each other."""
    if options.target is None and options.engine_profile is None:
        return Hardware()
    catalog = load_catalog(catalog_root)
    profile = None
    if options.engine_profile is not None:
        profile = _named(catalog.profiles, options.engine_profile, "--engine-profile")
        if options.target is not None and options.target != profile.target:
            raise ConfigurationError(
                f"--target: is {options.target}, but the profile {profile.name} runs on {profile.target}; leave one of them out"
            )
    target_name = options.target if profile is None else profile.target
    target = None if target_name is None else _named(catalog.targets, target_name, "--target")
    return Hardware(target, profile, None if profile is None else roofline_of(catalog, profile))


def _named(shelf: Mapping[str, N], name: str, option: str) -> N:
    if name not in shelf:
        known = ", ".join(sorted(shelf))
        raise ConfigurationError(f"{option}: {name!r} is not in the catalog{nearest(name, shelf)}; there are: {known}")
    return shelf[name]


def find_price(options: Options, hardware: Hardware) -> Price:
    """The command line's price goes before the catalog's."""
    nodes = f"{options.nodes} node{'s' if options.nodes != 1 else ''}"
    if options.price_dollars_per_hour is not None:
        given = options.price_dollars_per_hour
        return Price(given * options.nodes, f"{nodes} at {given:g} $/h, as given")
    target = hardware.target
    price = None if target is None else target.dollars_per_node_hour
    if target is not None and price is not None:
        return Price(price * options.nodes, f"{nodes} of {target.name} at {price:g} $/h, by the catalog")
    return Price(None, UNKNOWN)


def money(price: Price, output_per_second: Estimate, prompt_per_second: Estimate) -> Money:
    """A price spread over the tokens of the window, idle time included."""
    return Money(
        dollars_per_hour=price.dollars_per_hour,
        source=price.source,
        per_million_output_tokens=_per_million(price, output_per_second),
        per_million_tokens=_per_million(price, _sum(output_per_second, prompt_per_second)),
    )


def _per_million(price: Price, per_second: Estimate) -> Estimate:
    def dollars(rate: float | None) -> float | None:
        if price.dollars_per_hour is None or not rate:
            return None
        return float(f"{price.dollars_per_hour / 3600 / rate * 1e6:.7g}")

    return Estimate(value=dollars(per_second.value), low=dollars(per_second.high), high=dollars(per_second.low))


def _sum(first: Estimate, second: Estimate) -> Estimate:
    """The intervals are added end by end, which is wider than right when the two do not move together."""

    def both(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    return Estimate(value=both(first.value, second.value), low=both(first.low, second.low), high=both(first.high, second.high))


def roofline(hardware: Hardware, nodes: int, seen: Seen) -> Roofline:
    """The share of what the catalog's roofline allows engines that fill the nodes, at as many requests as ran and such requests.

    A bound from above: what runs between accelerators, launches and sampling are not in it.
    """
    target, profile, bounds = hardware.target, hardware.profile, hardware.bounds
    if profile is None or target is None or bounds is None:
        return Roofline(share=None, said="not known: --engine-profile says which profile of the catalog the engine runs")
    if not seen.output_per_second or seen.running <= 0 or seen.workload is None:
        return Roofline(share=None, said="not known: no tokens were made")
    engines = max(1, nodes * target.accelerators_per_node // bounds.parallel.accelerators)
    try:
        allowed = engines * _bound(bounds, max(1.0, seen.running / engines), seen.workload)
    except ConfigurationError as error:
        return Roofline(share=None, said=f"not known: {error}")
    said = (
        f"{allowed:,.0f} output tokens/s are the most that {engines} engine{'s' if engines != 1 else ''} of {profile.name} on "
        f"{nodes} node{'s' if nodes != 1 else ''} can make of such requests with {seen.running:,.1f} running at once"
    )
    return Roofline(share=float(f"{seen.output_per_second / allowed:.4g}"), said=said)


def _bound(bounds: Bounds, batch: float, workload: Workload) -> float:
    """Of one engine in output tokens/s, between the whole numbers of requests around `batch`."""
    lower = math.floor(batch)
    at_lower, at_upper = (bounds.bound(whole, workload).output_tokens_per_second for whole in (lower, lower + 1))
    return at_lower + (batch - lower) * (at_upper - at_lower)
