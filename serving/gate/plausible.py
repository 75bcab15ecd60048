"""What a log probability can be. Asked of engines' answers and of stored files alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MOST_TOTAL = 1.05
"""Of the probabilities at one position, with room for rounding."""
MOST = math.log(MOST_TOTAL)
IMPOSSIBLE = -9000.0
"""vLLM writes -9999 for minus infinity."""


def is_log_probability(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value <= MOST


def wrong_values(values: Sequence[Any]) -> str | None:
    """What is wrong with the first that is no log probability; None where all are."""
    return next((f"a log probability is {value!r}" for value in values if not is_log_probability(value)), None)


def wrong_top(place: int, logprobs: Sequence[Any]) -> str | None:
    """What is wrong with the likeliest tokens at one position: no numbers, more than certain together, or impossible."""
    if not logprobs:
        return f"position {place} has no likely tokens at all"
    if not all(map(is_log_probability, logprobs)):
        return wrong_values(logprobs)
    total = sum(map(math.exp, logprobs))
    if total > MOST_TOTAL or logprobs[0] < IMPOSSIBLE:
        return f"the likeliest tokens at position {place} have a probability of {total:.3g} in all"
    return None
