"""How fast an engine is taken to be: the roofline at a stated share of it, or what was measured, as priors for routing.

Routing starts with these numbers and learns better ones; each says where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving.catalog.evidence import PRODUCTION, Anchor, Assumed, Workload
from serving.catalog.memory import Load, device_memory, load_of
from serving.catalog.model import Catalog, Profile, Simulation
from serving.catalog.parallel import parallel_of
from serving.catalog.roofline import Roofline

PriorStatus = Literal["measured", "published", "assumed"]
"""measured: by `serving calibrate`. published: the roofline at the share that somebody's published run reached. assumed: at a
share that the profile states with a reason."""
UNKNOWN_SHARE = Assumed(
    share=0.2, source="no profile says otherwise; published runs of this catalog reach 0.13 to 0.6 of their bounds"
)


@dataclass(frozen=True, slots=True)
class Priors:
    """Of one engine. A step takes `step_seconds` + requests x `step_seconds_per_request`; each gets `tokens_per_step` of it."""

    status: PriorStatus
    source: str
    arithmetic: tuple[str, ...]
    prefill_tokens_per_second: float
    step_seconds: float
    step_seconds_per_request: float
    tokens_per_step: float
    kv_capacity_tokens: int
    accelerators: int
    dollars_per_accelerator_hour: float | None
    elastic: bool


def roofline_of(catalog: Catalog, profile: Profile, anchor: Anchor | None = None) -> Roofline:
    """The bounds of a profile's engine, with the acceptance of an anchor's run in place of the profile's where it is said."""
    target = catalog.targets[profile.target]
    speculation = profile.speculation
    acceptance = speculation.acceptance_tokens if speculation else 1.0
    drafts = speculation.draft_tokens if speculation else 0
    if anchor and anchor.acceptance_tokens:
        acceptance = anchor.acceptance_tokens
        drafts = drafts or round(acceptance + 0.5)
    load = load_of(catalog.models[profile.model], profile, target)
    return Roofline(load, target, parallel_of(profile), drafts, acceptance)


def anchor_bound(catalog: Catalog, profile: Profile, anchor: Anchor) -> tuple[float, int]:
    """Output tokens per second that the profile's engine cannot exceed on the anchor's workload, and at how many requests.

    Where the concurrency was not published it is the most that the engine takes. Raises: ConfigurationError: a peak is unknown.
    """
    roofline = roofline_of(catalog, profile, anchor)
    batch = anchor.concurrency or roofline.load.sequences
    return roofline.bound(batch, anchor.workload).output_tokens_per_second, batch


def share_of(catalog: Catalog, profile: Profile) -> tuple[float, str, PriorStatus]:
    """The share of the roofline that an engine of the profile is taken to reach, the reason, and its kind."""
    assumed = profile.assumed or UNKNOWN_SHARE
    if assumed.anchor is None:
        return assumed.share or 0.0, assumed.source or "", "assumed"
    anchor = next(entry for entry in profile.anchors if entry.name == assumed.anchor)
    bound, batch = anchor_bound(catalog, profile, anchor)
    reached = anchor.output_tokens_per_second(parallel_of(profile).accelerators)
    reason = (
        f"{anchor.publisher}, {anchor.date}, {anchor.engine}: {reached:,.0f} output tokens/s are {reached / bound:.0%} of the "
        f"{bound:,.0f} that bound this engine at {batch} requests"
    )
    return reached / bound, reason, "published"


def fitting_workload(max_model_len: int, wanted: Workload = PRODUCTION) -> Workload:
    """What is wanted, or the same made shorter for an engine that does not take requests of its length."""
    if max_model_len >= wanted.request_tokens:
        return wanted
    output_tokens = max(1, min(max_model_len - 1, max_model_len * wanted.output_tokens // wanted.request_tokens))
    prompt_tokens = max(1, max_model_len - output_tokens)
    return Workload(prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_share=wanted.cached_share)


def full_batch(roofline: Roofline, workload: Workload) -> int:
    """As many requests of a workload as the engine takes and its KV cache holds; at least one."""
    device = device_memory(roofline.load, roofline.target, roofline.parallel)
    return max(1, min(roofline.load.sequences, device.requests(roofline.load, roofline.parallel, workload)))


def priors_of(catalog: Catalog, profile: Profile) -> Priors:
    """What routing starts from.

    Raises:
        ConfigurationError: the profile has no measured speed, and the target's file lacks a rate that the roofline needs.
    """
    if profile.simulation is not None:
        return _measured(catalog, profile, profile.simulation)
    roofline = roofline_of(catalog, profile)
    workload = fitting_workload(roofline.load.max_model_len)
    share, reason, status = share_of(catalog, profile)
    overhead = profile.assumed.step_overhead_seconds if profile.assumed else 0.0
    prefill = roofline.prefill(workload.prefill_context_tokens).tokens_per_second
    full = full_batch(roofline, workload)
    base, slope = _line(roofline, workload, full)
    return Priors(
        status=status,
        source=reason,
        arithmetic=(
            f"prefill: {prefill:,.0f} tokens/s by the roofline × {share:.3f}",
            f"step: ({base * 1e3:.3f} ms + {slope * 1e3:.4f} ms × requests) by the roofline "
            f"from 1 to {full} requests ÷ {share:.3f}" + (f" + {overhead * 1e3:g} ms" if overhead else ""),
        ),
        prefill_tokens_per_second=_rounded(prefill * share),
        step_seconds=_rounded(base / share + overhead),
        step_seconds_per_request=_rounded(slope / share),
        tokens_per_step=roofline.acceptance_tokens,
        kv_capacity_tokens=_capacity(roofline.load, roofline),
        accelerators=roofline.parallel.accelerators,
        dollars_per_accelerator_hour=_price(catalog, profile),
        elastic=profile.elastic,
    )


def _measured(catalog: Catalog, profile: Profile, simulation: Simulation) -> Priors:
    load = load_of(catalog.models[profile.model], profile, catalog.targets[profile.target])
    context = fitting_workload(load.max_model_len).decode_context_tokens
    slope = simulation.step_seconds_per_sequence + simulation.step_seconds_per_context_token * context
    return Priors(
        status="measured",
        source=simulation.source,
        arithmetic=(
            "prefill and step: the profile's field simulation",
            f"step for a request: {simulation.step_seconds_per_sequence:g} s + {context:,} tokens of context × "
            f"{simulation.step_seconds_per_context_token:g} s",
        ),
        prefill_tokens_per_second=simulation.prefill_tokens_per_second,
        step_seconds=simulation.step_seconds,
        step_seconds_per_request=_rounded(slope),
        tokens_per_step=simulation.tokens_per_step,
        kv_capacity_tokens=simulation.kv_capacity_tokens,
        accelerators=parallel_of(profile).accelerators,
        dollars_per_accelerator_hour=_price(catalog, profile),
        elastic=profile.elastic,
    )


def _line(roofline: Roofline, workload: Workload, full: int) -> tuple[float, float]:
    """Seconds of a step as a line over its requests: least squares at 1, 2, 4 … and `full`; never a negative part."""
    batches = sorted({min(2**power, full) for power in range(full.bit_length() + 1)})
    seconds = [roofline.decode(batch, workload.decode_context_tokens).step_seconds for batch in batches]
    if len(batches) == 1:
        return seconds[0], 0.0
    mean_batch, mean_seconds = sum(batches) / len(batches), sum(seconds) / len(seconds)
    spread = sum((batch - mean_batch) ** 2 for batch in batches)
    slope = sum((batch - mean_batch) * (each - mean_seconds) for batch, each in zip(batches, seconds, strict=True)) / spread
    return max(0.0, mean_seconds - slope * mean_batch), max(0.0, slope)


def _capacity(load: Load, roofline: Roofline) -> int:
    return device_memory(load, roofline.target, roofline.parallel).kv_tokens


def _price(catalog: Catalog, profile: Profile) -> float | None:
    price = catalog.targets[profile.target].price
    return price.dollars_per_accelerator_hour if price else None


def _rounded(value: float) -> float:
    """To four digits: no prior is known better, and files stay readable."""
    return float(f"{value:.4g}")
