"""Two profiles side by side: nodes, prices, what was published of both, and what a claim comes to at which prices."""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.evidence import Anchor, Claim, Comparison
from serving.catalog.fit import gigabytes
from serving.catalog.memory import loaded_bytes
from serving.catalog.model import Catalog, Profile
from serving.catalog.parallel import parallel_of
from serving.catalog.plan import Plan, Wishes, plan_profile


@dataclass(frozen=True, slots=True)
class Versus:
    """This profile against a baseline. Ratios are this one's over the baseline's."""

    baseline: str
    nodes: tuple[int, int]
    """Of one engine, this one's and the baseline's."""
    memory: tuple[str, str]
    """Why it takes so many nodes, as arithmetic."""
    dollars_per_hour: tuple[float | None, float | None]
    """Of one engine."""
    anchors: tuple[str, str] | None
    """What is compared, in words."""
    throughput_ratio: float | None
    """Of output tokens a second and accelerator, as published."""
    catalog_price_ratio: float | None
    """Price of the baseline's accelerator over this one's."""
    per_dollar_at_catalog_prices: float | None
    claim: Claim | None
    per_dollar_as_claimed: float | None
    note: str | None
    price_given: bool = False
    """Whether the profile's own price is the user's; the baseline's is the catalog's."""


def comparisons_of(catalog: Catalog, profile: Profile, wishes: Wishes | None = None) -> list[Versus]:
    """What the profile's file compares it with; baselines that the catalog lacks are left to `serving lint`."""
    return [
        _versus(catalog, profile, catalog.profiles[entry.baseline], entry, wishes)
        for entry in profile.comparisons
        if entry.baseline in catalog.profiles
    ]


def _versus(catalog: Catalog, profile: Profile, baseline: Profile, entry: Comparison, wishes: Wishes | None) -> Versus:
    mine, theirs = plan_profile(catalog, profile, wishes), plan_profile(catalog, baseline)
    own, other = _anchor(profile, entry.anchor), _anchor(baseline, entry.baseline_anchor)
    ratio = own.output_tokens_per_second(1) / other.output_tokens_per_second(1) if own and other else None
    prices = mine.dollars_per_accelerator_hour, theirs.dollars_per_accelerator_hour
    price_ratio = prices[1] / prices[0] if prices[0] and prices[1] else None
    claim = entry.claim
    return Versus(
        baseline=baseline.name,
        nodes=(profile.nodes_per_engine, baseline.nodes_per_engine),
        memory=(node_arithmetic(mine), node_arithmetic(theirs)),
        dollars_per_hour=(mine.dollars_per_hour, theirs.dollars_per_hour),
        anchors=(_told(profile, own), _told(baseline, other)) if own and other else None,
        throughput_ratio=ratio,
        catalog_price_ratio=price_ratio,
        per_dollar_at_catalog_prices=ratio * price_ratio if ratio and price_ratio else None,
        claim=claim,
        per_dollar_as_claimed=ratio * claim.price_ratio if ratio and claim else None,
        note=entry.note,
        price_given=wishes is not None and wishes.dollars_per_accelerator_hour is not None,
    )


def node_arithmetic(plan: Plan) -> str:
    """The weights of a plan against what one node of its target may use."""
    target, load = plan.target, plan.load
    weights = gigabytes(loaded_bytes(load.checkpoint))
    if target.memory_bytes is None:
        return f"{weights} of weights; the memory of a node is the machine's own"
    usable = target.accelerators_per_node * target.memory_bytes * load.share
    room = f"{target.accelerators_per_node} × {gigabytes(target.memory_bytes)} × {load.share:g} = {gigabytes(usable)}"
    nodes = plan.used.nodes_per_engine
    verdict = "one node holds them" if nodes == 1 else f"{nodes} nodes are needed"
    return f"{weights} of weights, a node of {target.name} may use {room}: {verdict}"


def _anchor(profile: Profile, name: str | None) -> Anchor | None:
    return next((anchor for anchor in profile.anchors if anchor.name == name), None)


def _told(profile: Profile, anchor: Anchor) -> str:
    count = parallel_of(profile).accelerators
    workload = anchor.workload
    told = f"{anchor.output_tokens_per_second(count):,.0f} output tokens/s on {count} accelerators"
    if anchor.unit == "total tokens/s":
        told += (
            f" ({anchor.value:,.1f} of all tokens for {anchor.accelerators}, {workload.prompt_tokens}/{workload.output_tokens})"
        )
    return f"{told}, {anchor.publisher}, {anchor.date}, {anchor.engine}"
