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

    __slots__ = ("adapter", "detail", "dollars", "first", "prefill")

    def __init__(self, *, explained: bool) -> None:
        self.adapter: list[float] = []
        """Seconds until the LoRA adapter is loaded; empty where none is asked for."""
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
    own_dollars: float
    """Of the whole cost: what the request waits itself; then what others wait, machine time, and being late."""
    others_dollars: float
    machine_dollars: float
    late_dollars: float


def score(
    works: Sequence[Work],
    depths: Mapping[Cache, int],
    *,
    prompt: float,
    output: float,
    tokens_per_byte: float,
    arrivals_per_second: float,
    typical_prefill: float,
    objective: Objective,
    weights: Weights,
    now: float,
    shared_pieces: int,
    shared_charge: float,
    explained: bool,
    adapter: str = "",
) -> Scores:
    """`prompt` and `output` are tokens, `arrivals_per_second` those at one endpoint, `typical_prefill` the
    seconds of a request like the last ones, `shared_pieces` what a new
    conversation begins with and others have begun with: computing that once more is an investment, of
    which `shared_charge` is this request's part.
    """
    scores = Scores(explained=explained)
    load = dearest = running = 0.0
    for work in works:
        work.advance(now)
        if now - work.refreshed_at > REFRESH_SECONDS:
            work.refresh(now)
        load += work.prefill_share
        running += work.in_flight - work.queued
        if work.others is not None:
            running += work.others.running
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
        in_flight: float = work.in_flight
        context, ahead = work.context_tokens, 0.0
        if work.others is not None:
            in_flight += work.others.running
            context += work.others.context_tokens
            ahead = work.others.waiting * typical_prefill
        batch = in_flight - waiting
        cached = START[depths[cache]] * tokens_per_byte * rates.cache_trust.value if cache in depths else 0.0
        slope = rates.step_slope
        step = rates.step + slope * batch
        prefill = (prompt - cached) * rates.prefill_seconds
        wait = work.wait_seconds(now) + ahead if waiting else ahead
        share = work.prefill_share
        writing = output * (step + slope * waiting) / (1.0 - (share if share < MOST_LOAD else MOST_LOAD))
        if in_flight >= work.sequences:
            wait += (in_flight - work.sequences + 1) * writing / (in_flight or 1)
        missing = context + prompt + output - work.cache_tokens
        if missing > 0 and in_flight:
            wait += missing * writing / (context + 1.0)
        busy = prefill + output * slope
        if adapter:
            loading = work.adapters.seconds(adapter, writing)
            scores.adapter.append(loading)
            wait += loading
            # An engine loads between two steps, so that all that run there wait for it.
            busy += min(loading, work.adapters.load_seconds.value)
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
            own, machine = worth * (first + decode_weight * writing), work.dollars_per_second * busy
            late = cost - worth * seconds - machine
            detail.append(Detail(cached, wait, first + writing, busy, own, worth * seconds - own, machine, late))
    return scores
