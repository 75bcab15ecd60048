"""What a request costs at each of some endpoints: the loop that every choice runs, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from serving.routing.chain import START
from serving.routing.cost import MOST_LOAD, Objective, Weights
from serving.routing.prefix import Cache
from serving.routing.work import Work

PRICE_MARGIN = 4.0
REFRESH_SECONDS = 0.05
"""How old what is taken from a pool's rates may be."""


class Scores:
    """Lists along the endpoints that were looked at; those of `detail` only where somebody wants to know why."""

    __slots__ = ("detail", "dollars", "first", "prefill")

    def __init__(self, *, explained: bool) -> None:
        self.prefill: list[float] = []
        """Seconds for the part of the prompt that is not cached."""
        self.first: list[float] = []
        """Seconds until the first token."""
        self.dollars: list[float] = []
        self.detail: list[Detail] | None = [] if explained else None


class Detail(NamedTuple):
    cached_tokens: float
    """Of the prompt, those that are probably in the engine's cache."""
    wait_seconds: float
    """Until the engine begins with it."""
    latency_seconds: float
    """Until the last token."""
    busy_seconds: float
    """What it adds to the machine's work."""


def score(
    works: Sequence[Work],
    depths: Mapping[Cache, int],
    *,
    prompt: float,
    output: float,
    tokens_per_byte: float,
    arrivals_per_second: float,
    objective: Objective,
    weights: Weights,
    now: float,
    shared_pieces: int,
    shared_charge: float,
    explained: bool,
) -> Scores:
    """`prompt` and `output` are tokens, `arrivals_per_second` those at one endpoint, `shared_pieces` what a new
    conversation begins with and others have begun with: computing that once more is an investment, of
    which `shared_charge` is this request's part.
    """
    scores = Scores(explained=explained)
    load = dearest = 0.0
    running = 0
    for work in works:
        work.advance(now)
        if now - work.refreshed_at > REFRESH_SECONDS:
            work.refresh(now)
        load += work.prefill_share
        running += work.in_flight - work.queued
        if work.dollars_per_second > dearest:
            dearest = work.dollars_per_second
    shared = START[shared_pieces] * tokens_per_byte
    kept = 1.0 - shared_charge
    dearest *= PRICE_MARGIN
    count = len(works)
    later = weights.queue * arrivals_per_second / (1.0 - min(load / count, MOST_LOAD))
    others = weights.decoders + weights.uneven / (running / count + 1.0)
    worth, target, decode_weight = objective.dollars_per_second, objective.ttft_seconds, weights.decode
    add_prefill, add_first, add_dollars, detail = scores.prefill.append, scores.first.append, scores.dollars.append, scores.detail
    for work in works:
        rates, cache = work.rates, work.cache
        waiting = work.queued
        batch = work.in_flight - waiting
        cached = START[depths[cache]] * tokens_per_byte * rates.cache_trust.value if cache in depths else 0.0
        slope = rates.step_slope
        step = rates.step + slope * batch
        prefill = (prompt - cached) * rates.prefill_seconds
        wait = work.wait_seconds(now) if waiting else 0.0
        share = work.prefill_share
        writing = output * (step + slope * waiting) / (1.0 - (share if share < MOST_LOAD else MOST_LOAD))
        if work.in_flight >= work.sequences:
            wait += (work.in_flight - work.sequences + 1) * writing / (work.in_flight or 1)
        missing = work.context_tokens + prompt + output - work.cache_tokens
        if missing > 0 and work.in_flight:
            wait += missing * writing / (work.context_tokens + 1.0)
        busy = prefill + output * slope
        first = wait + prefill + step
        seconds = first + decode_weight * writing + busy * (later * (wait + 0.5 * prefill) + others * batch)
        if cached < shared:
            again = kept * (shared - cached) * rates.prefill_seconds
            seconds -= again * (1.0 + later * (wait + 0.5 * prefill) + others * batch)
        cost = worth * seconds + work.dollars_per_second * busy
        if first > 0.5 * target:
            # At the objective this alone is more than any price; it is met first.
            cost += (2.0 * first / target - 1.0) ** 3 * (worth * target + dearest * busy)
        add_prefill(prefill)
        add_first(first)
        add_dollars(cost)
        if detail is not None:
            detail.append(Detail(cached, wait, first + writing, busy))
    return scores
