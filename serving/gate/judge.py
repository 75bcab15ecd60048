"""From evidence to a verdict: all findings, what decides among them, and what this run could and could not see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from serving import __version__
from serving.catalog.gate_rules import GateRules
from serving.core.errors import ConfigurationError
from serving.gate.behaviour import behaviour
from serving.gate.closeness import ENGINE_FINDINGS, MODEL_FINDINGS, closeness, kl_band
from serving.gate.collect import stamp
from serving.gate.compare import require_comparable
from serving.gate.digest import Configuration
from serving.gate.evidence import Evidence, number
from serving.gate.passages import corpus_digest
from serving.gate.soundness import soundness
from serving.gate.twin import self_test
from serving.gate.verdict import Finding, Outcome, Verdict

UNKNOWN = "unknown"
_ANSWERS = {"engine": ENGINE_FINDINGS, "model": MODEL_FINDINGS}
_QUESTIONS = {"engine": "does it compute what its checkpoint says", "model": "is the checkpoint good enough"}


def judge(evidence: Evidence) -> Verdict:
    """Raises: ConfigurationError where the references do not fit the candidate or the rules."""
    for _, collected in evidence.references():
        require_comparable(collected, evidence.candidate)
    if not any(evidence.references()):
        raise ConfigurationError("give --matched, --reference, or --honest with --reference: something to compare with")
    if evidence.honest is not None and evidence.reference is None and not evidence.is_same_engine:
        raise ConfigurationError(
            "--honest: needs --reference, from which both are measured; or --same-engine, if the honest run's engine has "
            "the candidate's version, flags and hardware"
        )
    evidence.format_rules  # noqa: B018 (an unknown format is an error before any figure)
    findings = (
        *soundness(evidence),
        *closeness(evidence),
        *behaviour(evidence),
        *_open_questions(evidence),
        *self_test(evidence),
    )
    calibrated = evidence.floor is not None
    outcome, reason = _conclude(findings, calibrated, evidence)
    configuration = evidence.candidate.configuration or unknown_configuration(evidence)
    return Verdict(
        outcome=outcome,
        reason=reason,
        digest=configuration.digest,
        configuration=configuration,
        calibrated=calibrated,
        findings=findings,
        sees=tuple(_sees(evidence, findings)),
        blind=tuple(_blind(evidence, findings, configuration)),
        created=stamp(),
        gate_version=__version__,
        rules=f"{evidence.rules.name}@{rules_digest(evidence.rules)[:12]}",
        corpus=corpus_digest(),
        cost=evidence.candidate.cost,
    )


def unknown_configuration(evidence: Evidence) -> Configuration:
    """Of an engine of which nobody said what it is."""
    version = evidence.candidate.engine.version
    return Configuration(
        image=f"vllm {version}" if version else UNKNOWN, checkpoint=UNKNOWN, argv=(), target=evidence.target or UNKNOWN
    )


def rules_digest(rules: GateRules) -> str:
    return hashlib.sha256(rules.model_dump_json().encode()).hexdigest()


def _open_questions(evidence: Evidence) -> list[Finding]:
    """Questions that the rules want answered and no reference answers."""
    found = []
    has_stored_run = evidence.honest is not None and (evidence.reference is not None or evidence.is_same_engine)
    weights_only = not (evidence.is_quantized and evidence.format_rules.quantizes_activations)
    asked = {"engine": has_stored_run or (evidence.own is not None and weights_only), "model": evidence.reference is not None}
    ways = {
        "engine": "--matched (its own weights, dequantized)" if weights_only else "--honest and --reference",
        "model": "--reference (the original)",
    }
    for question in evidence.rules.questions:
        if not asked[question]:
            said = f"not asked: {_QUESTIONS[question]}; give {ways[question]}{_named(evidence.rules)}"
            found.append(Finding(name=f"question.{question}", outcome="not_decided", said=said))
    return found


def _named(rules: GateRules) -> str:
    """What the rules say of the references."""
    return "".join(f"; --{role}: {words}" for role, words in sorted(rules.references.items()))


def _conclude(findings: Sequence[Finding], calibrated: bool, evidence: Evidence) -> tuple[Outcome, str]:
    """A fail is a fail whatever else passed; then whatever is open; a pass needs a floor."""
    failed = [finding for finding in findings if finding.outcome == "fail"]
    if failed:
        return "fail", _told(failed)
    undecided = [finding for finding in findings if finding.outcome == "not_decided"]
    if undecided:
        return "not_decided", _told(undecided)
    if not calibrated:
        return "not_decided", (
            f"nothing is wrong, but no floor was ever measured for {evidence.rules.name} on {evidence.target}: uncalibrated, "
            "so it needs `serving gate floor`, or a person's approval"
        )
    return "pass", f"all {len(findings)} tests passed"


def _told(findings: Sequence[Finding]) -> str:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{findings[0].name}: {findings[0].said}{more}"


def _sees(evidence: Evidence, findings: Sequence[Finding]) -> list[str]:
    names = {finding.name for finding in findings}
    found = []
    floor = evidence.floor
    if "matched.kl" in names and floor is not None:
        band = kl_band(evidence.rules.matched, floor.matched_kl)
        found.append(
            f"weights and prefill kernels: whatever moves the mean KL above {number(band.fails)}, on a floor of "
            f"{number(floor.matched_kl)} measured on {evidence.target}"
        )
    elif "matched.kl" in names:
        band = kl_band(evidence.rules.matched, None)
        found.append(f"weights and prefill kernels: only what moves the mean KL above {number(band.fails)}, for want of a floor")
    if "repeat.kl" in names:
        found.append("anything that makes it another engine than the stored honest run")
    if "stored_run.kl_ratio" in names:
        rules = evidence.rules.stored_run
        found.append(
            f"weights and activations: what makes the distance to the reference {rules.kl_ratio.fails:g} times the honest run's, "
            f"or adds {rules.kl_difference:g} nats on most passages"
        )
    if "decode" in names:
        found.append("the decode path, as far as it differs from prefill, in contexts of some 40 tokens")
    if evidence.candidate.renderings:
        found.append("the chat template, with and without system message, turns and tools")
    if any(name.startswith("tasks") for name in names):
        found.append("answers: arithmetic, knowledge, forms, retrieval, tools and drift, from losses of about 5 points on")
    if any(passage.kind == "long" for passage in evidence.candidate.passages):
        found.append("long context, cached prefixes included, by the next tokens behind it")
    return found


def _blind(evidence: Evidence, findings: Sequence[Finding], configuration: Configuration) -> list[str]:
    names = {finding.name for finding in findings}
    found = list(evidence.candidate.not_seen)
    if "matched.kl" in names:
        found.append("faults in less than about 1 % of one matrix, as a lost last group of columns: they lie below the floor")
    elif "repeat.kl" not in names:
        found.append("one wrong scale in one matrix: it drowns in honest quantization loss without a matched reference")
    if evidence.is_quantized and evidence.reference is None:
        found.append("whether the model is good enough: no --reference was given")
    elif evidence.is_quantized and evidence.format_rules.model is None:
        found.append(f"whether the model is good enough: no limit was laid down for {evidence.format} in {evidence.rules.name}")
    if evidence.candidate.acceptance is None and evidence.plain is None:
        found.append("speculative decoding: the engine counts no drafts, and no second address without it was given")
    found.append("load: large batches, preemption, and requests that disturb each other")
    if not configuration.is_known or not configuration.argv:
        found.append(
            "which configuration this was: the verdict is tied to no image, checkpoint and flags that anyone could check"
        )
    if evidence.candidate.cost.peak_engine_bytes is None:
        found.append(f"the engine's peak memory: {evidence.candidate.cost.peak_engine_said}")
    return found
