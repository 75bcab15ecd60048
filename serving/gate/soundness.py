"""Before any distance: does it answer, does it read the same tokens, did the quantization happen, is there enough to judge by."""

from __future__ import annotations

import math
from collections.abc import Iterator

from serving.gate.compare import Mismatch, mismatch, shared_kinds
from serving.gate.evidence import Evidence, number
from serving.gate.verdict import Finding, Outcome

_TROUBLES: dict[str, tuple[Outcome, str]] = {
    "garbage": ("fail", "the engine answered what no sound engine answers"),
    "silent": ("not_decided", "the engine stopped answering, and by whose fault is not known"),
    "refused": ("not_decided", "the engine refuses what the gate must ask"),
}


def soundness(evidence: Evidence) -> Iterator[Finding]:
    yield from _alive(evidence)
    yield from _sound_references(evidence)
    yield from _same_tokens(evidence)
    yield from _quantized(evidence)
    yield from _enough(evidence)


def _alive(evidence: Evidence) -> Iterator[Finding]:
    troubles = evidence.candidate.troubles
    if not troubles:
        candidate = evidence.candidate
        has_numbers = candidate.passages or candidate.decode_runs
        said = "every log probability is a number" if has_numbers else "no log probability was asked for"
        yield Finding(name="alive", outcome="pass", said=f"{candidate.cost.requests} requests were answered, {said}")
        return
    for kind, (outcome, what) in _TROUBLES.items():
        found = [trouble for trouble in troubles if trouble.kind == kind]
        if found:
            said = f"{what}: {found[0].where}: {found[0].said}"
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield Finding(name=f"alive.{kind}", outcome=outcome, said=said + more)


def _sound_references(evidence: Evidence) -> Iterator[Finding]:
    """What is held against a broken reference proves nothing."""
    for name, collected in evidence.references():
        for trouble in collected.troubles[:1]:
            said = f"the {name} was in trouble itself: {trouble.where}: {trouble.said}"
            yield Finding(name="reference", outcome="not_decided", said=said)


def _same_tokens(evidence: Evidence) -> Iterator[Finding]:
    compared: dict[str, None] = {}
    for name, collected in evidence.references():
        found = mismatch(collected, evidence.candidate)
        if found is not None:
            yield Finding(name="tokens", outcome="fail", said=_explain(name, found))
            return
        shared = shared_kinds(collected, evidence.candidate)
        if not shared:
            said = f"not seen: no text, conversation or rendering is in both the {name} and the candidate"
            yield Finding(name="tokens", outcome="not_decided", said=said)
            return
        compared.update((kind, None) for kind in shared)
    said = f"{' and '.join(compared).replace(' and ', ', ', len(compared) - 1)} have the same tokens as with the references"
    yield Finding(name="tokens", outcome="pass", said=said)


def _explain(name: str, found: Mismatch) -> str:
    if not found.texts:
        which = ", ".join(found.renderings) or ", ".join(found.chats)
        return f"the chat template changed (plain texts have the same tokens): {which}, against the {name}: {found.said}"
    return f"the tokenizer differs from the {name}'s: {', '.join(found.texts[:3])}: {found.said}"


def _quantized(evidence: Evidence) -> Iterator[Finding]:
    """A quantization that was asked for and did not happen has the original's numbers, but for the noise of one engine."""
    found = evidence.from_reference
    if not evidence.is_quantized or found is None:
        return
    noise = evidence.floor.repeat_kl if evidence.floor else 0.0
    if found.kl.high <= noise:
        near = "exactly 0" if found.kl.high == 0 else f"{number(found.kl.value)}, no more than an engine is from itself,"
        yield Finding(
            name="quantized",
            outcome="fail",
            said=(
                f"KL to the unquantized reference is {near} over {found.tokens} tokens: the quantization to {evidence.format} "
                "that was asked for did not happen"
            ),
            value=found.kl.value,
        )
    elif math.isnan(found.kl.high):
        yield Finding(name="quantized", outcome="not_decided", said="the KL to the unquantized reference is no number")
    else:
        yield Finding(
            name="quantized", outcome="pass", said=f"the weights differ from the reference's: {evidence.format} is in use"
        )


def _enough(evidence: Evidence) -> Iterator[Finding]:
    rules = evidence.rules
    found = evidence.from_own or evidence.from_reference
    tokens, passages = (found.tokens, len(found.pairs)) if found else (0, 0)
    enough = tokens >= rules.least_tokens and passages >= rules.least_passages
    said = f"{tokens} tokens in {passages} passages were compared; {rules.least_tokens} in {rules.least_passages} are asked for"
    yield Finding(name="enough", outcome="pass" if enough else "not_decided", said=said, value=tokens)
