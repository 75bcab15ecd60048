"""What it does when it generates: the decode path, checkable answers, the customer's own checks, speculative decoding."""

from __future__ import annotations

import math
from collections.abc import Iterator

from serving.catalog.gate_rules import Band, TaskRules
from serving.gate.closeness import widened
from serving.gate.collected import DecodeRun
from serving.gate.compare import Tasks, compare_tasks
from serving.gate.evidence import Evidence, measured, number
from serving.gate.statistics import Estimate, weighted_mean
from serving.gate.verdict import Finding, Outcome

SAME_RANK = 0.9
"""Share of the generated tokens that the prefill path must find the likeliest, too; below it the two paths are two models."""


def behaviour(evidence: Evidence) -> Iterator[Finding]:
    yield from _decode(evidence)
    yield from _tasks(evidence)
    yield from _model_tasks(evidence)
    yield from _speculation(evidence)
    yield from _customer(evidence)


def _decode(evidence: Evidence) -> Iterator[Finding]:
    runs = [run for run in evidence.candidate.decode_runs if run.ids]
    if not runs:
        return
    found = weighted_mean([math.fsum(_distances(run)) for run in runs], [len(run.ids) for run in runs])
    rules, floor = evidence.rules.decode, evidence.floor
    if floor is None:
        band = widened(rules.difference, evidence.rules.matched.uncalibrated_factor)
    else:
        least = max(floor.decode_difference, _honest_difference(evidence))
        band = Band(
            passes=max(rules.difference.passes, rules.difference_floors.passes * least),
            fails=max(rules.difference.fails, rules.difference_floors.fails * least),
        )
    tokens = sum(len(run.ids) for run in runs)
    first = sum(run.first_ranks for run in runs) / tokens
    said = (
        f"{tokens} generated tokens: their log probabilities while generating and as a prompt are {number(found.value)} nats "
        f"apart on average, and {first:.1%} are the likeliest on both paths"
    )
    yield measured("decode", found, band, said, "fail" if first < SAME_RANK else None)


def _honest_difference(evidence: Evidence) -> float:
    """Where activations are rounded the paths of an honest engine are farther apart than the floor of an unquantized one."""
    if evidence.honest is None or not evidence.format_rules.quantizes_activations:
        return 0.0
    distances = [distance for run in evidence.honest.decode_runs for distance in _distances(run)]
    return math.fsum(distances) / len(distances) if distances else 0.0


def _distances(run: DecodeRun) -> list[float]:
    return [abs(a - b) for a, b in zip(run.decoded, run.prefilled, strict=True)]


def _tasks(evidence: Evidence) -> Iterator[Finding]:
    base = evidence.base
    if base is None or (base is evidence.reference and evidence.is_quantized):
        return  # held against the original by `_model_tasks`, with other limits
    found = compare_tasks(base.answers, evidence.candidate.answers)
    if found is None or not found.items:
        return
    yield judge_tasks("tasks", found, evidence.rules.tasks)
    if found.formed_items:
        yield _forms(found, evidence.rules.tasks)


def judge_tasks(name: str, found: Tasks, rules: TaskRules, lost_points: float | None = None) -> Finding:
    """A loss must be both large and unlikely to be chance."""
    limit = rules.lost_points if lost_points is None else lost_points
    lost = found.lost_points
    outcome: Outcome = "pass"
    if lost > limit:
        outcome = "fail" if found.p < rules.p else "not_decided" if found.p < rules.p_review else "pass"
    said = (
        f"{found.candidate_share:.1%} of {found.items} items against {found.reference_share:.1%}: {found.lost} lost, "
        f"{found.won} won, p {found.p:.2g}"
    )
    return Finding(name=name, outcome=outcome, said=said, value=lost, pass_limit=limit, fail_limit=limit)


def _forms(found: Tasks, rules: TaskRules) -> Finding:
    lost = found.reference_formed - found.candidate_formed
    # One item of a hundred is no change of form; so few items cannot tell three points.
    fails = lost > rules.lost_format and lost * found.formed_items > 2
    said = (
        f"{found.candidate_formed:.1%} of {found.formed_items} answers have the form that was asked for, "
        f"against {found.reference_formed:.1%}"
    )
    return Finding(name="tasks.form", outcome="fail" if fails else "pass", said=said, value=lost, fail_limit=rules.lost_format)


def _model_tasks(evidence: Evidence) -> Iterator[Finding]:
    rules = evidence.format_rules.model
    if evidence.reference is None or not evidence.is_quantized or rules is None:
        return
    found = compare_tasks(evidence.reference.answers, evidence.candidate.answers)
    if found is None or not found.items:
        return
    finding = judge_tasks("model.tasks", found, evidence.rules.tasks, rules.lost_points.passes)
    if finding.outcome == "fail" and found.lost_points <= rules.lost_points.fails:
        finding = finding.model_copy(update={"outcome": "not_decided"})
    yield finding.model_copy(update={"fail_limit": rules.lost_points.fails})


def _speculation(evidence: Evidence) -> Iterator[Finding]:
    candidate = evidence.candidate
    if evidence.plain is not None:
        found = compare_tasks(evidence.plain.answers, candidate.answers)
        if found is not None and found.items:
            finding = judge_tasks("speculation.tasks", found, evidence.rules.tasks)
            same = _same_texts(evidence)
            yield finding.model_copy(update={"said": f"with against without speculative decoding: {finding.said}; {same}"})
    acceptance, expected = candidate.acceptance, evidence.expected_acceptance
    if acceptance is None or not acceptance.drafts:
        return
    said = f"{acceptance.tokens_per_step:.2f} tokens a step over {acceptance.drafts} drafts"
    if expected is None or expected <= 1:
        yield Finding(name="speculation.acceptance", outcome="pass", said=f"{said}; nothing to hold it against")
        return
    lost = max(0.0, 1 - (acceptance.tokens_per_step - 1) / (expected - 1))
    band = evidence.rules.speculation.lost_acceptance
    yield measured(
        "speculation.acceptance",
        Estimate(lost, lost, lost),
        band,
        f"{said}, {expected:.2f} are expected: {lost:.0%} of it is missing",
    )


def _same_texts(evidence: Evidence) -> str:
    plain = {(answer.family, answer.name): answer.text for answer in (evidence.plain.answers if evidence.plain else ())}
    both = [(plain[key], answer.text) for answer in evidence.candidate.answers if (key := (answer.family, answer.name)) in plain]
    return f"{sum(a == b for a, b in both)} of {len(both)} texts are the same"


def _customer(evidence: Evidence) -> Iterator[Finding]:
    answers = evidence.candidate.customer
    if not answers:
        return
    share = sum(answer.passed for answer in answers) / len(answers)
    base = evidence.base
    theirs = {answer.name: answer.passed for answer in base.customer} if base else {}
    known = [name for answer in answers if not answer.passed and theirs.get(name := answer.name) is False]
    said = f"{share:.1%} of your {len(answers)} checks hold; {evidence.customer_share:.0%} must"
    if known:
        said += f"; {len(known)} of the others fail with the reference, too"
    wrong = [f"{answer.name}: {answer.said}" for answer in answers if not answer.passed][:3]
    if wrong:
        said += f": {'; '.join(wrong)}"
    outcome: Outcome = "pass" if share >= evidence.customer_share else "fail"
    yield Finding(name="customer", outcome=outcome, said=said, value=share, pass_limit=evidence.customer_share)
