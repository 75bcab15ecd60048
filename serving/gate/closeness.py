"""How near the candidate's distributions must be: to its own weights, beside a stored honest run, and to the original."""

from __future__ import annotations

import math
from collections.abc import Iterator

from serving.catalog.gate_rules import Band, MatchedRules
from serving.gate.compare import Distance
from serving.gate.distance import PassagePair
from serving.gate.evidence import Evidence, decide, measured, number
from serving.gate.explain import looks_like
from serving.gate.statistics import Estimate, paired_t, standard_error, weighted_mean
from serving.gate.verdict import Finding

ENGINE, MODEL = "engine", "model"
ENGINE_FINDINGS = ("matched.kl", "stored_run.kl_ratio")
"""One of them answers whether the engine is right."""
MODEL_FINDINGS = ("model.kl",)
LONG_FACTOR = 2.0
"""Times the limits of the mean KL."""


def closeness(evidence: Evidence) -> Iterator[Finding]:
    yield from _matched(evidence)
    yield from _stored_run(evidence)
    yield from _same_engine(evidence)
    yield from _model(evidence)


def kl_band(rules: MatchedRules, floor_kl: float | None) -> Band:
    """The larger of what is asked for in nats and in floors; without a floor only what no noise explains fails."""
    if floor_kl is None:
        return widened(rules.kl, rules.uncalibrated_factor)
    return Band(
        passes=max(rules.kl.passes, rules.kl_floors.passes * floor_kl),
        fails=max(rules.kl.fails, rules.kl_floors.fails * floor_kl),
    )


def widened(band: Band, factor: float) -> Band:
    return Band(passes=band.passes, fails=band.fails * factor)


def _matched(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.from_own
    if found is None:
        return
    if evidence.is_quantized and evidence.format_rules.quantizes_activations:
        yield Finding(
            name="matched",
            outcome="not_decided",
            said=(
                f"{evidence.format} quantizes activations, which is chaotic over many layers: KL {number(found.kl.value)} to its "
                "own dequantized weights means nothing; give --honest and --reference"
            ),
            value=found.kl.value,
        )
        return
    floor = evidence.floor
    yield from _near(evidence, found, "matched", floor.matched_kl if floor else None)


def _near(evidence: Evidence, found: Distance, name: str, floor_kl: float | None) -> Iterator[Finding]:
    rules = evidence.rules.matched
    band = kl_band(rules, floor_kl)
    floor = f"a floor of {number(floor_kl)}" if floor_kl is not None else "no measured floor"
    said = (
        f"mean KL {number(found.kl.value)} nats (95 %: {number(found.kl.low)} to {number(found.kl.high)}) over {found.tokens} "
        f"tokens, with {floor}; passes to {number(band.passes)}, fails above {number(band.fails)}"
    )
    outcome = decide(found.kl, band)
    yield measured(f"{name}.kl", found.kl, band, f"{said}: {looks_like(found, name)}" if outcome == "fail" else said, outcome)
    factor = 1.0 if floor_kl is not None else rules.uncalibrated_factor
    scale = max(1.0, (floor_kl or 0.0) * rules.kl_floors.passes / rules.kl.passes) if rules.kl.passes else 1.0
    worst, wide = found.worst, rules.worst_passage_kl
    worst_band = Band(passes=wide.passes * scale, fails=wide.fails * scale * factor)
    yield measured(
        f"{name}.worst_passage",
        _point(worst.mean_kl),
        worst_band,
        f"the worst passage, {worst.name}, has KL {number(worst.mean_kl)}; fails above {number(worst_band.fails)}",
    )
    if found.long is not None:
        # Some dozens of positions, so with more room than all of them together.
        far = Band(passes=band.passes * LONG_FACTOR, fails=band.fails * LONG_FACTOR)
        low, high = number(found.long.low), number(found.long.high)
        said = f"behind long contexts the mean KL is {number(found.long.value)} ({low} to {high})"
        yield measured(f"{name}.long", found.long, far, said)
    beyond = 3 * found.log_perplexity_error
    yield measured(
        f"{name}.perplexity",
        _point(max(0.0, abs(found.log_perplexity.value) - beyond)),
        widened(rules.log_perplexity, factor),
        f"perplexity ratio {number(found.perplexity_ratio)} (its logarithm ± {number(found.log_perplexity_error)})",
    )
    yield measured(
        f"{name}.top1",
        _point(found.lost_top1),
        widened(rules.lost_top1, factor),
        f"where the reference is sure ({found.sure_tokens} tokens) {1 - found.lost_top1:.2%} have the same first token",
    )


def _point(value: float) -> Estimate:
    return Estimate(value, value, value)


def _stored_run(evidence: Evidence) -> Iterator[Finding]:
    """Paired per passage: candidate and honest run each against the common reference."""
    candidate, honest = evidence.from_reference, evidence.honest_from_reference
    if candidate is None or honest is None or not evidence.is_quantized:
        return
    if honest.is_identical:
        yield Finding(
            name="stored_run", outcome="not_decided", said="the honest run has the reference's very numbers: it is not quantized"
        )
        return
    theirs = {pair.name: pair for pair in honest.pairs}
    both = [(pair, theirs[pair.name]) for pair in candidate.pairs if pair.name in theirs]
    differences = [mine.mean_kl - other.mean_kl for mine, other in both]
    counts = [len(mine.positions) for mine, _ in both]
    change = weighted_mean([mine.kl_sum - other.kl_sum for mine, other in both], counts)
    rules, base = evidence.rules.stored_run, honest.kl.value
    ratio = Estimate(1 + change.value / base, 1 + change.low / base, 1 + change.high / base)
    t = paired_t(differences)
    outcome = decide(ratio, rules.kl_ratio)
    is_significant = t > rules.t and change.value > rules.kl_difference
    if is_significant:
        outcome = "fail"
    yield measured(
        "stored_run.kl_ratio",
        ratio,
        rules.kl_ratio,
        f"KL to the reference is {number(candidate.kl.value)}, the honest run's {number(base)}: {ratio.value:.3f} times as far "
        f"(95 %: {ratio.low:.3f} to {ratio.high:.3f}); paired over {len(both)} passages {change.value:+.4f} nats, t {t:.1f}",
        outcome,
    )
    losses = [_nll(mine) - _nll(other) for mine, other in both]
    worse, beyond = math.fsum(losses) / sum(counts), 3 * standard_error(losses, counts)
    yield measured(
        "stored_run.perplexity",
        _point(max(0.0, abs(worse) - beyond)),
        evidence.rules.matched.log_perplexity,
        f"perplexity ratio {number(candidate.perplexity_ratio)}, the honest run's {number(honest.perplexity_ratio)}; its "
        f"logarithm differs by {worse:+.4f} ± {beyond / 3:.4f}, paired",
    )


def _nll(pair: PassagePair) -> float:
    """Nats that a passage costs beyond what it costs the reference."""
    return math.fsum(position.nll_difference or 0.0 for position in pair.positions)


def _same_engine(evidence: Evidence) -> Iterator[Finding]:
    """Same version, flags and hardware as the honest run's: then all that may differ is the noise of one engine."""
    found = evidence.from_honest
    if found is None or not evidence.is_same_engine:
        return
    yield from _near(evidence, found, "repeat", evidence.floor.repeat_kl if evidence.floor else None)


def _model(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.from_reference
    if found is None or not evidence.is_quantized:
        return
    rules = evidence.format_rules.model
    figures = (
        f"KL {number(found.kl.value)} to the original, perplexity ratio {number(found.perplexity_ratio)}, "
        f"{1 - found.lost_top1:.2%} of the sure tokens kept"
    )
    if rules is None:
        # Where nobody asks, the figures stand in the report, and the verdict says that they were not judged.
        if MODEL in evidence.rules.questions:
            said = f"{figures}; no limit was laid down for {evidence.format} in {evidence.rules.name}"
            yield Finding(name="model", outcome="not_decided", said=said)
        return
    yield measured("model.kl", found.kl, rules.kl, f"{figures}; limits: {rules.reason}")
    log_ratio = Estimate(found.perplexity_ratio, *(_exp(end) for end in (found.log_perplexity.low, found.log_perplexity.high)))
    yield measured(
        "model.perplexity", log_ratio, rules.perplexity_ratio, f"perplexity ratio {log_ratio.low:.4f} to {log_ratio.high:.4f}"
    )


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
