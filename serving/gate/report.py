"""The report of a run: the verdict, what was compared with what, and the worst examples side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field

from serving.catalog.records import Record
from serving.core.errors import ConfigurationError
from serving.gate.collected import Collected, EngineFacts, Passage
from serving.gate.compare import Distance, Tasks, compare_tasks, distance
from serving.gate.distance import PassagePair, Position
from serving.gate.evidence import Evidence
from serving.gate.verdict import Verdict

WORST_PASSAGES = 3
WORST_TOKENS = 6
"""Of a passage."""
WORST_ANSWERS = 8
AROUND = 12
"""Tokens shown before the one in question."""
SHOWN_BYTES = 600


class Likely(Record):
    """A token and its probability."""

    text: str
    probability: float


class WorstToken(Record):
    """One position where the two differ most."""

    index: int
    kl: float
    before: str
    token: str
    """Of the text."""
    reference: tuple[Likely, ...]
    candidate: tuple[Likely, ...]


class WorstPassage(Record):
    name: str
    kind: str
    mean_kl: float
    tokens: int
    text: tuple[str, ...]
    """By token."""
    kl_by_token: tuple[float, ...]
    """As many; 0 for those that are not scored."""
    worst: tuple[WorstToken, ...]


class WorstAnswer(Record):
    family: str
    name: str
    prompt: str | None
    reference: str | None
    candidate: str | None
    said: str


class Compared(Record):
    """One reference: the figures against it."""

    role: str
    engine: EngineFacts
    created: str
    tokens: int = 0
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    perplexity_ratio: float | None = None
    perplexity_error: float | None = None
    top1: float | None = None
    sure_tokens: int = 0
    sure_top1: float | None = None
    kl_by_kind: dict[str, float] = Field(default_factory=dict)
    kl_by_passage: dict[str, float] = Field(default_factory=dict)
    tasks_by_family: dict[str, tuple[int, int, int]] = Field(default_factory=dict)
    """Items, solved by the reference, solved by the candidate."""


class GateReport(Record):
    """As it is written."""

    format: Literal["serving gate report 1"] = "serving gate report 1"
    verdict: Verdict
    candidate: EngineFacts
    weights_format: str
    target: str
    compared: tuple[Compared, ...]
    worst_against: str | None = None
    """Which of them the examples are held against."""
    worst_passages: tuple[WorstPassage, ...] = ()
    worst_answers: tuple[WorstAnswer, ...] = ()
    without_prompts: bool = False
    self_test: str = ""
    """What the gate said of a broken twin of this candidate."""


def make_report(evidence: Evidence, verdict: Verdict, *, without_prompts: bool = False, self_test: str = "") -> GateReport:
    """`without_prompts` leaves out all texts: passages, prompts and answers."""
    base = evidence.base
    found = distance(base, evidence.candidate) if base else None
    role = next((name for name, collected in evidence.references() if collected is base), None)
    passages: tuple[WorstPassage, ...] = ()
    answers: tuple[WorstAnswer, ...] = ()
    if base is not None and found is not None and not without_prompts:
        passages = tuple(_worst_passages(found, base, evidence.candidate))
        answers = tuple(_worst_answers(base, evidence.candidate))
    return GateReport(
        verdict=verdict if not without_prompts else _without_texts(verdict),
        candidate=evidence.candidate.engine,
        weights_format=evidence.format,
        target=evidence.target,
        compared=tuple(compared(name, collected, evidence.candidate) for name, collected in evidence.references()),
        worst_against=role if passages or answers else None,
        worst_passages=passages,
        worst_answers=answers,
        without_prompts=without_prompts,
        self_test=self_test,
    )


def _without_texts(verdict: Verdict) -> Verdict:
    """Findings of the customer's prompts and of renderings quote them."""
    findings = tuple(
        finding.model_copy(update={"said": finding.said.split(": ")[0]}) if finding.name in ("customer", "tokens") else finding
        for finding in verdict.findings
    )
    quoted = verdict.reason.startswith(("customer:", "tokens:"))
    return verdict.model_copy(
        update={"findings": findings, "reason": ": ".join(verdict.reason.split(": ")[:2]) if quoted else verdict.reason}
    )


def compared(role: str, reference: Collected, candidate: Collected) -> Compared:
    found = distance(reference, candidate)
    tasks: Tasks | None = compare_tasks(reference.answers, candidate.answers)
    by_family = tasks.by_family if tasks else {}
    base = Compared(role=role, engine=reference.engine, created=reference.created, tasks_by_family=by_family)
    if found is None:
        return base
    return base.model_copy(
        update={
            "tokens": found.tokens,
            "kl": found.kl.value,
            "kl_low": found.kl.low,
            "kl_high": found.kl.high,
            "perplexity_ratio": found.perplexity_ratio,
            "perplexity_error": found.log_perplexity_error,
            "top1": found.top1,
            "sure_tokens": found.sure_tokens,
            "sure_top1": 1 - found.lost_top1,
            "kl_by_kind": {kind: kl for kind, (_, kl) in found.by_kind.items()},
            "kl_by_passage": {pair.name: pair.mean_kl for pair in found.pairs},
        }
    )


def _worst_passages(found: Distance, reference: Collected, candidate: Collected) -> list[WorstPassage]:
    ours = {passage.name: passage for passage in reference.passages}
    theirs = {passage.name: passage for passage in candidate.passages}
    ranked = sorted((pair for pair in found.pairs if pair.kind != "long"), key=lambda pair: -pair.mean_kl)
    return [_worst_passage(pair, ours[pair.name], theirs[pair.name]) for pair in ranked[:WORST_PASSAGES]]


def _worst_passage(pair: PassagePair, ours: Passage, theirs: Passage) -> WorstPassage:
    by_index = {position.index: position for position in pair.positions}
    ranked = sorted(pair.positions, key=lambda position: -position.kl)[:WORST_TOKENS]
    return WorstPassage(
        name=pair.name,
        kind=pair.kind,
        mean_kl=pair.mean_kl,
        tokens=len(pair.positions),
        text=tuple(_shown(ours, place) for place in range(len(ours.ids))),
        kl_by_token=tuple(round(by_index[place].kl, 5) if place in by_index else 0.0 for place in range(len(ours.ids))),
        worst=tuple(_worst_token(position, ours, theirs) for position in ranked),
    )


def _worst_token(position: Position, ours: Passage, theirs: Passage) -> WorstToken:
    index = position.index
    return WorstToken(
        index=index,
        kl=position.kl,
        before="".join(_shown(ours, place) for place in range(max(0, index - AROUND), index)),
        token=_shown(ours, index),
        reference=_likely(ours, index, ours, theirs),
        candidate=_likely(theirs, index, theirs, ours),
    )


def _shown(passage: Passage, place: int) -> str:
    """A token's text. Engines do not tell that of a prompt's first one, which nothing predicts."""
    return "…" if place == 0 and str(passage.ids[0]) not in passage.words else passage.text(passage.ids[place])


def _likely(passage: Passage, index: int, *texts: Passage) -> tuple[Likely, ...]:
    """The likeliest token and the text's own one."""
    top, own = passage.tops[index], passage.logprobs[index]
    if top is None or own is None:
        return ()
    shown = {top.ids[0]: top.logprobs[0], passage.ids[index]: own}
    return tuple(
        Likely(
            text=next((one.words[str(token)] for one in texts if str(token) in one.words), f"<{token}>"),
            probability=math.exp(value),
        )
        for token, value in shown.items()
    )


def _worst_answers(reference: Collected, candidate: Collected) -> list[WorstAnswer]:
    found = []
    for ours, theirs in ((reference.answers, candidate.answers), (reference.customer, candidate.customer)):
        tasks = compare_tasks(ours, theirs)
        for a, b in tasks.losses if tasks else ():
            found.append(
                WorstAnswer(
                    family=a.family,
                    name=a.name,
                    prompt=_cut(a.prompt),
                    reference=_cut(a.text),
                    candidate=_cut(b.text),
                    said=b.said,
                )
            )
    return found[:WORST_ANSWERS]


def _cut(text: str | None) -> str | None:
    """The end, where the question stands."""
    return text if text is None or len(text) <= SHOWN_BYTES else f"…{text[-SHOWN_BYTES:]}"


def write_report(report: GateReport, path: Path) -> None:
    try:
        path.write_text(report.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from None
