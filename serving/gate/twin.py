"""The gate's own test: a broken twin of the candidate, which it must fail. Else its word on the candidate means nothing.

The twin has the candidate's distributions with noise on every logit, as much as one wrong matrix of a few hundred makes, or
just more than the limits allow. It needs no engine.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

from serving.gate.closeness import ENGINE_FINDINGS, closeness, kl_band
from serving.gate.collected import Collected, Passage, Top
from serving.gate.compare import distance
from serving.gate.evidence import Evidence, number
from serving.gate.verdict import Finding

FAULT_KL = 0.0124
"""Of scales rolled by one group in one of 210 matrices, against a matched reference (SmolLM2 135M, NVFP4 weights)."""
BEYOND = 2.0
"""Times the limit, where the limit is above that fault."""
STORED_SHARE = 0.6
"""Of the honest run's own distance; wrong input scales, the faults that must show, moved it by as much and more."""
SEED = 4
_FIRST_NOISE = 0.02
_MARGIN = 1.1
_MOST_STEPS = 8
TESTED = (*ENGINE_FINDINGS, "repeat.kl")


def self_test(evidence: Evidence) -> Iterator[Finding]:
    """Nothing where no distance was judged."""
    wanted = _fault_kl(evidence)
    if wanted is None:
        return
    twin, kl = broken_twin(evidence.candidate, wanted)
    judged = [finding for finding in closeness(dataclasses.replace(evidence, candidate=twin)) if finding.name in TESTED]
    passed = bool(judged) and all(finding.outcome == "fail" for finding in judged)
    names = ", ".join(finding.name for finding in judged)
    said = f"a broken twin of the candidate, {number(kl)} nats from it, {'fails' if passed else 'does not fail'} ({names})"
    yield Finding(name="self_test", outcome="pass" if passed else "not_decided", said=said, value=kl)


def _fault_kl(evidence: Evidence) -> float | None:
    """How broken the twin must be; None where nothing was compared."""
    wanted = []
    floor, rules = evidence.floor, evidence.rules.matched
    activations = evidence.is_quantized and evidence.format_rules.quantizes_activations
    if evidence.from_own is not None and not activations:
        wanted.append(max(FAULT_KL, BEYOND * kl_band(rules, floor.matched_kl if floor else None).fails))
    if evidence.from_honest is not None and evidence.is_same_engine:
        wanted.append(max(FAULT_KL, BEYOND * kl_band(rules, floor.repeat_kl if floor else None).fails))
    if evidence.from_reference is not None and evidence.honest_from_reference is not None and evidence.is_quantized:
        wanted.append(STORED_SHARE * evidence.honest_from_reference.kl.value)
    return max(wanted) if wanted else None


def broken_twin(collected: Collected, kl: float) -> tuple[Collected, float]:
    """A copy whose mean KL from the original is at least `kl`, and that KL."""
    noise = _FIRST_NOISE
    twin, found = collected, 0.0
    for _ in range(_MOST_STEPS):
        chance = random.Random(SEED)
        passages = tuple(_noisy(passage, noise, chance) for passage in collected.passages)
        twin = collected.model_copy(update={"passages": passages})
        apart = distance(collected, twin)
        found = apart.kl.value if apart else 0.0
        if found >= kl:
            break
        # The divergence grows with the noise's square, while it is small.
        noise *= _MARGIN * max(1.0, math.sqrt(kl / found)) if found else 2.0
    return twin, found


def _noisy(passage: Passage, noise: float, chance: random.Random) -> Passage:
    tops: list[Top | None] = []
    logprobs: list[float | None] = []
    for token, own, top in zip(passage.ids, passage.logprobs, passage.tops, strict=True):
        if top is None:
            tops.append(None)
            logprobs.append(own)
            continue
        moved = [value + chance.gauss(0.0, noise) for value in top.logprobs]
        # The rest of the vocabulary keeps its weight, so that the list loses or gains against it.
        rest = max(1e-9, 1 - math.fsum(map(math.exp, top.logprobs)))
        total = math.log(math.fsum(map(math.exp, moved)) + rest)
        pairs = sorted(zip(top.ids, (value - total for value in moved), strict=True), key=lambda pair: -pair[1])
        tops.append(Top(ids=tuple(number for number, _ in pairs), logprobs=tuple(value for _, value in pairs)))
        listed = dict(pairs)
        logprobs.append(None if own is None else listed.get(token, own - total))
    return passage.model_copy(update={"tops": tuple(tops), "logprobs": tuple(logprobs)})
