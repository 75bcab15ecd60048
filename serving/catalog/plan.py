"""What a model needs on a target and what it can give: memory, parallelism, bounds, dollars, watts. Deterministic, no hardware.

A plan is of one engine; `engines_per_node` says how many a node runs. Nothing in it was measured unless its label says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from serving.catalog.evidence import PRODUCTION, Anchor, Speculation, Workload
from serving.catalog.fit import feature_problem, problems_but_memory
from serving.catalog.memory import DeviceMemory, Load, device_memory, load_of
from serving.catalog.model import Catalog, Model, Profile, Simulation, Target
from serving.catalog.parallel import Parallel, accelerators, parallel_of
from serving.catalog.roofline import Bound, Roofline
from serving.catalog.speed import UNKNOWN_SHARE, fitting_workload, share_of
from serving.catalog.vocabulary import check
from serving.core.errors import ConfigurationError

ThroughputKind = Literal["given", "measured", "published", "assumed"]
PLANNED_CONTEXT_TOKENS = 32_768
PLANNED_SEQUENCES = 64
NODE_CHOICES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user gives in place of the catalog's defaults."""

    workload: Workload = PRODUCTION
    concurrency: int | None = None
    """Requests at once on one engine; None: as many as its limits and its KV cache allow."""
    dollars_per_accelerator_hour: float | None = None
    output_tokens_per_second: float | None = None
    """Of one engine, as somebody measured it."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second of one engine, and how that is known."""

    output_tokens_per_second: float
    kind: ThroughputKind
    label: str


@dataclass(frozen=True, slots=True)
class Spread:
    """One way to divide a model, for a whole group of nodes."""

    parallel: Parallel
    nodes_per_engine: int
    engines_per_node: int
    """1 where an engine spans nodes."""
    device: DeviceMemory
    requests: int
    """Of the workload, that the KV cache of one engine holds."""
    batch: int
    bound: Bound | None
    """At `batch` requests on each engine; None where a rate of the target is not known."""

    @property
    def fits(self) -> bool:
        return not self.device.missing_bytes

    @property
    def output_tokens_per_accelerator_second(self) -> float:
        """The bound for each accelerator, by which ways of dividing are compared."""
        return self.bound.output_tokens_per_second / self.parallel.accelerators if self.bound else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one engine on one target."""

    profile: Profile | None
    """None where no profile says how to run it: then limits and speculation are the planner's own."""
    target: Target
    load: Load
    workload: Workload
    used: Spread
    best: Spread | None
    """Of those on one node the way with the highest bound for each accelerator, else the fewest nodes; None: nothing fits."""
    bound_problem: str | None
    problems: tuple[str, ...]
    """What keeps it from running at all, in the words of `serving lint`."""
    remedies: tuple[str, ...]
    """What would make it fit."""
    throughput: Throughput | None
    dollars_per_accelerator_hour: float | None
    price_source: str
    notes: tuple[str, ...] = ()
    """Where the plan is not of what the user wished, and of what instead."""

    @property
    def runs(self) -> bool:
        return not self.problems and self.used.fits

    @property
    def dollars_per_hour(self) -> float | None:
        """Of one engine."""
        price = self.dollars_per_accelerator_hour
        return None if price is None else price * self.used.parallel.accelerators

    @property
    def dollars_per_million_output_tokens(self) -> float | None:
        if self.throughput is None or self.dollars_per_hour is None:
            return None
        return self.dollars_per_hour / (self.throughput.output_tokens_per_second * 3600) * 1e6

    @property
    def watts(self) -> int | None:
        """Of one engine with its share of the node where that is published, else of its accelerators alone."""
        each = self.target.node_power_watts_per_accelerator or self.target.power_watts
        return None if each is None else each * self.used.parallel.accelerators

    @property
    def joules_per_output_token(self) -> float | None:
        """Watts per output token a second, which is the same."""
        if self.throughput is None or self.watts is None:
            return None
        return self.watts / self.throughput.output_tokens_per_second


def plan_profile(catalog: Catalog, profile: Profile, wishes: Wishes | None = None) -> Plan:
    """The plan of a profile as it stands.

    Raises:
        ConfigurationError: its parallelism is more than its nodes have, or an argument is none of its vLLM.
    """
    wishes = wishes or Wishes()
    model, target = catalog.models[profile.model], catalog.targets[profile.target]
    wrong = check(catalog, profile)
    if wrong:
        raise ConfigurationError("\n".join(f"profile {profile.name}: {problem}" for problem in wrong))
    accelerators(profile, target)
    load = load_of(model, profile, target)
    problems = tuple(problems_but_memory(catalog, profile))
    return _plan(catalog, profile, target, load, parallel_of(profile), profile.nodes_per_engine, problems, wishes)


def plan_model(catalog: Catalog, model: Model, target: Target, wishes: Wishes | None = None) -> Plan:
    """The plan of a model on a target for which no profile exists: a checkpoint with real kernels that fits, divided best.

    Raises:
        ConfigurationError: what the user wishes contradicts itself.
    """
    wishes = wishes or Wishes()
    real = target.real_formats()
    load = _planned_load(model, target, wishes)
    checkpoint = load.checkpoint
    problem = feature_problem(model.shape, target)
    if problem is None and checkpoint.format not in real:
        entry = target.formats[checkpoint.format]
        why = f" ({entry.why})" if entry.why else ""
        problem = f"checkpoint: {checkpoint.format} is {entry.support} on {target.name}{why}; it needs {' or '.join(real)}"
    problems = (problem,) if problem else ()
    first = next((spread for spread in _spreads(load, target, None, wishes) if spread.fits), None)
    parallel = first.parallel if first else Parallel(tensor=target.accelerators_per_node)
    plan = _plan(catalog, None, target, load, parallel, first.nodes_per_engine if first else 1, problems, wishes)
    best = plan.best
    if best is None or best.parallel == parallel:
        return plan
    return _plan(catalog, None, target, load, best.parallel, best.nodes_per_engine, problems, wishes)


def _planned_load(model: Model, target: Target, wishes: Wishes) -> Load:
    """With the smallest checkpoint that a node holds, those of native formats first; else with the first of that order."""
    rank = {"native": 0, "weight-only": 1, "emulated": 2, "refused": 3}
    in_order = sorted(
        model.checkpoints.values(), key=lambda entry: (rank[target.formats[entry.format].support], entry.weights_bytes)
    )
    loads = [
        Load(
            model=model,
            checkpoint=checkpoint,
            kv_format=target.kv_formats[-1],
            max_model_len=min(model.max_context_tokens, PLANNED_CONTEXT_TOKENS),
            sequences=PLANNED_SEQUENCES,
            block_tokens=target.kv_block_tokens,
        )
        for checkpoint in in_order
    ]
    real = [load for load in loads if load.checkpoint.format in target.real_formats()]
    for load in real:
        if any(way.fits and way.nodes_per_engine == 1 for way in _spreads(load, target, None, wishes)):
            return load
    return (real or loads)[0]


def _plan(
    catalog: Catalog,
    profile: Profile | None,
    target: Target,
    load: Load,
    parallel: Parallel,
    nodes: int,
    problems: tuple[str, ...],
    wishes: Wishes,
) -> Plan:
    speculation = profile.speculation if profile else None
    used = _spread(load, target, parallel, nodes, speculation, wishes)
    ways = _spreads(load, target, speculation, wishes)
    if profile and used.parallel not in [way.parallel for way in ways]:
        ways.append(used)
    fitting = [way for way in ways if way.fits]
    on_a_node = [way for way in fitting if way.nodes_per_engine == 1] or fitting[:1]
    best = max(on_a_node, key=lambda way: (way.output_tokens_per_accelerator_second, -way.parallel.accelerators), default=None)
    bound_problem = None
    try:
        _roofline(load, target, parallel, speculation).bound(used.batch, used_workload(load, wishes))
    except ConfigurationError as error:
        bound_problem = str(error)
    price = target.price
    return Plan(
        profile=profile,
        target=target,
        load=load,
        workload=used_workload(load, wishes),
        used=used,
        best=None if problems else best,
        bound_problem=bound_problem,
        problems=problems,
        remedies=() if used.fits or problems else _remedies(load, target, ways),
        throughput=_throughput(catalog, profile, used, used_workload(load, wishes), wishes)
        if used.fits and not problems
        else None,
        dollars_per_accelerator_hour=wishes.dollars_per_accelerator_hour
        or (price.dollars_per_accelerator_hour if price else None),
        price_source="given"
        if wishes.dollars_per_accelerator_hour
        else f"{price.date}, {price.source}"
        if price
        else "not known",
        notes=() if problems or not used.fits else tuple(_notes(load, used, wishes)),
    )


def _notes(load: Load, used: Spread, wishes: Wishes) -> Iterator[str]:
    wanted, taken = wishes.workload, used_workload(load, wishes)
    if taken != wanted:
        yield (
            f"requests of {wanted.prompt_tokens:,} and {wanted.output_tokens:,} tokens are longer than "
            f"the {load.max_model_len:,} that the engine takes; planned with {taken.prompt_tokens:,} and {taken.output_tokens:,}"
        )
    if wishes.concurrency is not None and wishes.concurrency > used.batch:
        yield (
            f"of {wishes.concurrency:,} requests at once {used.batch:,} run and the others wait: {used.requests:,} fit, "
            f"and the engine takes {load.sequences:,}"
        )


def used_workload(load: Load, wishes: Wishes) -> Workload:
    """What the user wishes, or less where the engine takes no requests of that length."""
    return fitting_workload(load.max_model_len, wishes.workload)


def _roofline(load: Load, target: Target, parallel: Parallel, speculation: Speculation | None) -> Roofline:
    if speculation is None:
        return Roofline(load, target, parallel)
    return Roofline(load, target, parallel, speculation.draft_tokens, speculation.acceptance_tokens)


def _spread(
    load: Load, target: Target, parallel: Parallel, nodes: int, speculation: Speculation | None, wishes: Wishes
) -> Spread:
    workload = used_workload(load, wishes)
    device = device_memory(load, target, parallel)
    requests = device.requests(load, parallel, workload)
    batch = max(1, min(wishes.concurrency or load.sequences, load.sequences, requests))
    try:
        bound = _roofline(load, target, parallel, speculation).bound(batch, workload)
    except ConfigurationError:
        bound = None
    engines = max(1, target.accelerators_per_node * nodes // parallel.accelerators) if nodes == 1 else 1
    return Spread(parallel, nodes, engines, device, requests, batch, bound)


def _spreads(load: Load, target: Target, speculation: Speculation | None, wishes: Wishes) -> list[Spread]:
    """One accelerator, two, four … a node, and then whole nodes behind one another."""
    each = target.accelerators_per_node
    heads = load.shape.attention.heads
    sizes = [size for size in (2**power for power in range(each.bit_length())) if size <= each and heads % size == 0]
    ways = [(Parallel(tensor=size), 1) for size in sizes]
    ways += [(Parallel(tensor=sizes[-1], pipeline=nodes), nodes) for nodes in NODE_CHOICES[1:] if nodes <= load.shape.layers]
    return [_spread(load, target, parallel, nodes, speculation, wishes) for parallel, nodes in ways]


def _remedies(load: Load, target: Target, ways: list[Spread]) -> tuple[str, ...]:
    """Ways to divide, other formats and shorter contexts that fit, cheapest change first."""
    remedies = []
    way = next((way for way in ways if way.fits), None)
    if way is not None:
        where = f"{way.nodes_per_engine} nodes" if way.nodes_per_engine > 1 else "a node"
        remedies.append(f"{way.parallel} on {way.parallel.accelerators} accelerators of {where}")
    largest = next(way for way in reversed(ways) if way.nodes_per_engine == 1)
    device = largest.device
    for name, other in load.model.checkpoints.items():
        smaller = other.format in target.real_formats() and other.weights_bytes < load.checkpoint.weights_bytes
        if smaller and not device_memory(replace(load, checkpoint=other), target, largest.parallel).missing_bytes:
            remedies.append(f"the checkpoint {name} ({other.weights_bytes / 1e9:,.0f} GB) with {largest.parallel} on a node")
    tokens = int(device.kv_tokens)
    if 0 < tokens < load.max_model_len:
        remedies.append(f"max-model-len of {tokens:,} or less with {largest.parallel} on a node")
    return tuple(remedies) or (f"nothing that was looked at, up to {NODE_CHOICES[-1]} nodes; a target with more memory",)


def _throughput(catalog: Catalog, profile: Profile | None, used: Spread, workload: Workload, wishes: Wishes) -> Throughput | None:
    """The user's own figure, else a published one of this workload, else from measured rates, else a share of the bound."""
    if wishes.output_tokens_per_second is not None:
        most = used.bound.output_tokens_per_second if used.bound else math.inf
        if wishes.output_tokens_per_second > most:
            told = f"{workload.prompt_tokens:,}/{workload.output_tokens:,}/{workload.cached_share:.0%}"
            raise ConfigurationError(
                f"--throughput: the hardware allows at most {most:,.0f} output tokens/s of one engine with {used.batch} requests "
                f"of {told}, "
                f"not {wishes.output_tokens_per_second:,g}; give --concurrency, --prompt-tokens, --output-tokens and --cached "
                "as they were measured"
            )
        return Throughput(wishes.output_tokens_per_second, "given", "given by you")
    anchor = published_anchor(profile, wishes.workload, wishes.concurrency)
    if profile and anchor:
        reproduced = "reproduced here" if anchor.reproduced else "not reproduced"
        label = f"published by {anchor.publisher}, on {anchor.date}, with {anchor.engine}; {reproduced}"
        return Throughput(anchor.output_tokens_per_second(used.parallel.accelerators), "published", label)
    if profile and profile.simulation:
        return _from_rates(profile.simulation, used.batch, workload)
    return _assumed(catalog, profile, used.bound) if used.bound else None


def _assumed(catalog: Catalog, profile: Profile | None, bound: Bound) -> Throughput:
    share, reason, overhead = UNKNOWN_SHARE.share or 0.0, UNKNOWN_SHARE.source or "", 0.0
    if profile:
        share, reason, _ = share_of(catalog, profile)
        overhead = profile.assumed.step_overhead_seconds if profile.assumed else 0.0
    decode = bound.decode
    step_seconds = (decode.step_seconds / share + overhead) / (decode.batch * decode.acceptance_tokens)
    prompt_seconds = bound.new_tokens_per_output_token * bound.prefill.seconds_per_token / share
    more = f" and {overhead * 1e3:g} ms a step" if overhead else ""
    return Throughput(1 / (step_seconds + prompt_seconds), "assumed", f"assumed, {share:.2%} of the bound{more}: {reason}")


def _from_rates(simulation: Simulation, batch: int, workload: Workload) -> Throughput:
    """What the measured rates of steps and prompts come to on a workload that nobody ran."""
    context = workload.decode_context_tokens
    each = simulation.step_seconds_per_sequence + simulation.step_seconds_per_context_token * context
    step_seconds = (simulation.step_seconds + batch * each) / (batch * simulation.tokens_per_step)
    pairs = simulation.prefill_seconds_per_token_pair * workload.prefill_context_tokens
    prompt_seconds = workload.new_tokens / workload.output_tokens * (1 / simulation.prefill_tokens_per_second + pairs)
    return Throughput(
        1 / (step_seconds + prompt_seconds), "measured", f"computed from measured rates of this profile: {simulation.source}"
    )


def published_anchor(profile: Profile | None, workload: Workload, concurrency: int | None = None) -> Anchor | None:
    """The first figure that was published for this very workload, and for this concurrency where one is wanted."""
    for anchor in profile.anchors if profile else ():
        if anchor.workload == workload and concurrency in (None, anchor.concurrency):
            return anchor
    return None
