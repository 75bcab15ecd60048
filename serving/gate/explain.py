"""What a distance looks like, by faults that were made on purpose in SmolLM2 135M and measured. A hint, no proof."""

from __future__ import annotations

import math

from serving.gate.compare import Distance
from serving.gate.decoding import LONG

MATCHED = "matched"
SIZES = (
    (1.0, "as much as one wrong value in the table of all weights, or a layout that is wrong everywhere"),
    (0.15, "as much as a whole layer that is not the checkpoint's"),
    (0.03, "as much as one matrix with doubled scales, or two swapped heads"),
    (0.0, "as much as one matrix of some hundreds with scales in the wrong place"),
)
"""Nats from which on."""
EARLY, LATE = 20, 60
"""Positions of a passage."""
GROWTH = 1.8
"""Of the mean KL from early to late positions. Faults of weights were seen at 0.7 to 1.4."""


def looks_like(found: Distance, name: str) -> str:
    """For a distance that failed; `name` is that of the test."""
    if growth(found) >= GROWTH:
        return "it grows along the passages, as wrong positions make it (the base of the rotary embedding, or its scaling)"
    if name != MATCHED:
        return "another engine than the one of the stored run"
    return f"{next(words for least, words in SIZES if found.kl.value >= least)} (in a model of 135 M parameters)"


def growth(found: Distance) -> float:
    """Mean KL of late positions over that of early ones; 1 where one of them is missing."""
    positions = [position for pair in found.pairs if pair.kind != LONG for position in pair.positions]
    early = [position.kl for position in positions if position.index < EARLY]
    late = [position.kl for position in positions if position.index >= LATE]
    if not early or not late or not math.fsum(early):
        return 1.0
    return (math.fsum(late) / len(late)) / (math.fsum(early) / len(early))
