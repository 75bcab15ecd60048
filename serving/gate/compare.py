"""Two collections held against each other: figures, not judgements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serving.core.errors import ConfigurationError
from serving.gate.collected import LONG, Answer, Collected
from serving.gate.distance import PassagePair, compare_passages
from serving.gate.statistics import Estimate, mcnemar, standard_error, weighted_mean

LEAST_POSITIONS = 20
"""Of a passage whose mean is judged by itself."""
LEAST_BASE = 0.2
"""A family of tasks of which the reference solves fewer says nothing about losses."""


@dataclass(frozen=True)
class Distance:
    """Of a candidate from a reference, over all passages that both have."""

    pairs: tuple[PassagePair, ...]
    tokens: int
    kl: Estimate
    log_perplexity: Estimate
    """Logarithm of the perplexity ratio; above 0 the candidate is worse."""
    log_perplexity_error: float
    """Standard error."""
    sure_tokens: int
    lost_top1: float
    """Share of the positions where the reference is sure and the candidate prefers another token; 0 of none."""
    top1: float
    is_identical: bool
    """Every number is the same in both, to the last bit."""
    by_kind: dict[str, tuple[int, float]]
    """Tokens and mean KL."""

    @property
    def worst(self) -> PassagePair:
        """Of those with enough positions for a mean; of all, where none has."""
        enough = [pair for pair in self.pairs if len(pair.positions) >= LEAST_POSITIONS]
        return max(enough or self.pairs, key=lambda pair: pair.badness)

    @property
    def long(self) -> Estimate | None:
        """Mean KL behind long contexts; None where they were left out."""
        pairs = [pair for pair in self.pairs if pair.kind == LONG]
        return weighted_mean([pair.kl_sum for pair in pairs], [len(pair.positions) for pair in pairs]) if pairs else None

    @property
    def perplexity_ratio(self) -> float:
        return math.exp(min(self.log_perplexity.value, 700.0))


@dataclass(frozen=True)
class Mismatch:
    """Passages whose tokens differ, so that they cannot be compared."""

    texts: tuple[str, ...]
    chats: tuple[str, ...]
    renderings: tuple[str, ...]
    """Conversations that the two chat templates write differently."""
    said: str
    """Where the first of them differ."""


def require_comparable(reference: Collected, candidate: Collected) -> None:
    """Raises: ConfigurationError for collections of different corpora."""
    if reference.corpus != candidate.corpus:
        raise ConfigurationError(
            f"reference: was collected with the texts {reference.corpus[:12]} ({reference.gate_version}) and the candidate with "
            f"{candidate.corpus[:12]} ({candidate.gate_version}); collect it again with this version"
        )


def shared_kinds(reference: Collected, candidate: Collected) -> tuple[str, ...]:
    """What both have by name, whatever its tokens are."""
    kinds = (
        ("texts and conversations", reference.passages, candidate.passages),
        ("renderings", reference.renderings, candidate.renderings),
    )
    return tuple(kind for kind, ours, theirs in kinds if {one.name for one in ours} & {one.name for one in theirs})


def distance(reference: Collected, candidate: Collected) -> Distance | None:
    """Over the passages that have the same tokens in both; None where there is none."""
    theirs = {passage.name: passage for passage in candidate.passages}
    pairs = []
    is_identical = True
    for passage in reference.passages:
        other = theirs.get(passage.name)
        if other is None or other.ids != passage.ids:
            continue
        pair = compare_passages(passage, other)
        if pair.positions:
            pairs.append(pair)
            is_identical &= passage.tops == other.tops and passage.logprobs == other.logprobs
    if not pairs:
        return None
    return _summary(tuple(pairs), is_identical)


def _summary(pairs: tuple[PassagePair, ...], is_identical: bool) -> Distance:
    counts = [len(pair.positions) for pair in pairs]
    kl = weighted_mean([pair.kl_sum for pair in pairs], counts)
    owned = [[p.nll_difference for p in pair.positions if p.nll_difference is not None] for pair in pairs]
    owned = [differences for differences in owned if differences]
    sums, owned_counts = [math.fsum(differences) for differences in owned], [len(differences) for differences in owned]
    nll = weighted_mean(sums, owned_counts) if owned else Estimate(0.0, 0.0, 0.0)
    sure = [position for pair in pairs for position in pair.positions if position.is_sure]
    everything = [position for pair in pairs for position in pair.positions]
    return Distance(
        pairs=pairs,
        tokens=sum(counts),
        kl=kl,
        log_perplexity=nll,
        log_perplexity_error=standard_error(sums, owned_counts) if owned else math.inf,
        sure_tokens=len(sure),
        lost_top1=sum(not position.is_same_top for position in sure) / len(sure) if sure else 0.0,
        top1=sum(position.is_same_top for position in everything) / len(everything),
        is_identical=is_identical,
        by_kind=_by_kind(pairs),
    )


def _by_kind(pairs: Sequence[PassagePair]) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        members = [pair for pair in pairs if pair.kind == kind]
        tokens = sum(len(pair.positions) for pair in members)
        found[kind] = tokens, math.fsum(pair.kl_sum for pair in members) / tokens
    return found


def mismatch(reference: Collected, candidate: Collected) -> Mismatch | None:
    """What the two engines do not read as the same tokens; None when they do."""
    theirs = {passage.name: passage for passage in candidate.passages}
    texts: list[str] = []
    chats: list[str] = []
    said = ""
    for passage in reference.passages:
        other = theirs.get(passage.name)
        if other is None or other.ids == passage.ids:
            continue
        (chats if passage.kind == "chat" else texts).append(passage.name)
        said = said or _first_difference(passage.ids, other.ids, [passage.text(token) for token in passage.ids])
    rendered = {rendering.name: rendering for rendering in candidate.renderings}
    renderings = []
    for rendering in reference.renderings:
        other_rendering = rendered.get(rendering.name)
        if other_rendering is None or other_rendering.ids == rendering.ids:
            continue
        renderings.append(rendering.name)
        if len(renderings) == 1:
            said = _side_by_side(rendering.texts, other_rendering.texts) or said
    if not (texts or chats or renderings):
        return None
    return Mismatch(tuple(texts), tuple(chats), tuple(renderings), said)


def _first_difference(ours: Sequence[int], theirs: Sequence[int], texts: Sequence[str]) -> str:
    place = next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    before = "".join(texts[max(0, place - 6) : place])
    return f"{len(ours)} tokens and {len(theirs)}; they part at token {place}, behind {before!r}"


def _side_by_side(ours: Sequence[str], theirs: Sequence[str]) -> str:
    if not ours or not theirs:
        return ""
    place = next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, place - 4)
    return f"the reference writes …{''.join(ours[start : place + 12])!r}, the candidate …{''.join(theirs[start : place + 12])!r}"


@dataclass(frozen=True)
class Tasks:
    """Answers to the same items, paired."""

    items: int
    reference_share: float
    candidate_share: float
    lost: int
    won: int
    p: float
    """One-sided, of losing so many by chance."""
    formed_items: int
    reference_formed: float
    candidate_formed: float
    by_family: dict[str, tuple[int, int, int]]
    """Items, and how many of them the reference and the candidate solve."""
    losses: tuple[tuple[Answer, Answer], ...]
    """The reference's answer and the candidate's, where only the reference is right."""

    @property
    def lost_points(self) -> float:
        """Share of the items that are lost on balance."""
        return (self.lost - self.won) / self.items if self.items else 0.0


def compare_tasks(reference: Sequence[Answer], candidate: Sequence[Answer]) -> Tasks | None:
    """None where no item is in both. Families that the reference hardly solves are counted in `by_family` only."""
    theirs = {(answer.family, answer.name): answer for answer in candidate}
    both = [(answer, theirs[answer.family, answer.name]) for answer in reference if (answer.family, answer.name) in theirs]
    if not both:
        return None
    by_family: dict[str, tuple[int, int, int]] = {}
    for a, b in both:
        count, ours, other = by_family.get(a.family, (0, 0, 0))
        by_family[a.family] = count + 1, ours + a.passed, other + b.passed
    telling = {family for family, (count, ours, _) in by_family.items() if ours >= LEAST_BASE * count}
    counted = [(a, b) for a, b in both if a.family in telling]
    lost = sum(a.passed and not b.passed for a, b in counted)
    won = sum(b.passed and not a.passed for a, b in counted)
    formed = [(a, b) for a, b in both if a.well_formed is not None and b.well_formed is not None]
    return Tasks(
        items=len(counted),
        reference_share=_share([a.passed for a, _ in counted]),
        candidate_share=_share([b.passed for _, b in counted]),
        lost=lost,
        won=won,
        p=mcnemar(lost, won),
        formed_items=len(formed),
        reference_formed=_share([bool(a.well_formed) for a, _ in formed]),
        candidate_formed=_share([bool(b.well_formed) for _, b in formed]),
        by_family=by_family,
        losses=tuple((a, b) for a, b in counted if a.passed and not b.passed),
    )


def _share(held: Sequence[bool]) -> float:
    return sum(held) / len(held) if held else 0.0
