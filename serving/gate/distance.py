"""How far two engines are apart at each position of the same text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serving.gate.collected import Passage, Top
from serving.gate.decoding import LONG

SKIPPED_POSITIONS = 4
"""At the beginning of a passage, where a context of one to three tokens makes distances ten times as large as elsewhere."""
SURE_NATS = 1.0
"""By which the reference must prefer its first token to its second one, to be called sure. Less can be a tie in bf16."""
_LEAST_REST = 1e-9


@dataclass(frozen=True, slots=True)
class Position:
    """One token of a passage, as the reference and the candidate see it."""

    index: int
    kl: float
    """Nats, of the candidate from the reference, over the union of their likeliest tokens."""
    nll_difference: float | None
    """Nats by which the candidate finds the text's own token less likely; None where there is none."""
    is_same_top: bool
    is_sure: bool


@dataclass(frozen=True)
class PassagePair:
    """One passage of both."""

    name: str
    kind: str
    positions: tuple[Position, ...]

    @property
    def kl_sum(self) -> float:
        return math.fsum(position.kl for position in self.positions)

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / len(self.positions)


def kl_of_union(reference: Top, candidate: Top) -> float:
    """Kullback-Leibler divergence in nats over the union of both lists and one rest.

    A token that one side does not list has that side's smallest listed value. So it is less than the whole divergence by a
    quarter or so, and does not vanish when the two share nothing, as it would over the tokens that both list.
    """
    p = dict(zip(reference.ids, reference.logprobs, strict=True))
    q = dict(zip(candidate.ids, candidate.logprobs, strict=True))
    least_p, least_q = reference.logprobs[-1], candidate.logprobs[-1]
    union = p.keys() | q.keys()
    ordered = sorted(union)
    ps = [math.exp(p.get(token, least_p)) for token in ordered]
    qs = [math.exp(q.get(token, least_q)) for token in ordered]
    ps.append(max(1 - math.fsum(ps), _LEAST_REST))
    qs.append(max(1 - math.fsum(qs), _LEAST_REST))
    sum_p, sum_q = math.fsum(ps), math.fsum(qs)
    total = math.fsum(a / sum_p * math.log(a * sum_q / (b * sum_p)) for a, b in zip(ps, qs, strict=True) if a > 0)
    return max(0.0, total)


def compare_passages(reference: Passage, candidate: Passage) -> PassagePair:
    """Both must have the same tokens."""
    skipped = 0 if reference.kind == LONG else SKIPPED_POSITIONS
    positions = []
    columns = zip(reference.tops, candidate.tops, reference.logprobs, candidate.logprobs, strict=True)
    for index, (top_r, top_c, own_r, own_c) in enumerate(columns):
        if index < skipped or top_r is None or top_c is None:
            continue
        difference = own_r - own_c if own_r is not None and own_c is not None else None
        positions.append(
            Position(
                index=index,
                kl=kl_of_union(top_r, top_c),
                nll_difference=difference,
                is_same_top=top_r.ids[0] in _first(top_c),
                is_sure=len(top_r.logprobs) > 1 and top_r.logprobs[0] - top_r.logprobs[1] > SURE_NATS,
            )
        )
    return PassagePair(reference.name, reference.kind, tuple(positions))


def _first(top: Top) -> Sequence[int]:
    """The likeliest token; several when they are equally likely."""
    return [token for token, value in zip(top.ids, top.logprobs, strict=True) if value == top.logprobs[0]]
