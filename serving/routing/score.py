"""What a request costs at each of some endpoints: the loop that every choice runs, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serving.routing.chain import START
from serving.routing.cost import MOST_LOAD, Objective, Weights
from serving.routing.prefix import Cache
from serving.routing.work import Work


class Scores:
    """Lists along the endpoints that were looked at."""

    __slots__ = ("busy", "cached", "dollars", "first", "latency", "prefill", "wait")

    def __init__(self) -> None:
        self.cached: list[float] = []
        """Tokens of the prompt that are probably in the engine's cache."""
        self.prefill: list[float] = []
        """Seconds for the rest of the prompt."""
        self.wait: list[float] = []
        """Seconds until the engine begins with it."""
        self.first: list[float] = []
        """Seconds until its first token."""
        self.latency: list[float] = []
        """Seconds until its last."""
        self.busy: list[float] = []
        """Machine seconds that it adds."""
        self.dollars: list[float] = []


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
) -> Scores:
    """`prompt` and `output` are tokens, `arrivals_per_second` those at one endpoint."""
    scores = Scores()
    load = running = 0.0
    for work in works:
        work.advance(now)
        work.rates.refresh(now - work.learned_at)
        load += work.prefill_share
        running += work.decoding
    count = len(works)
    later = weights.queue * arrivals_per_second / (1.0 - min(load / count, MOST_LOAD))
    others = weights.decoders + weights.uneven / (running / count + 1.0)
    worth, target, decode_weight = objective.dollars_per_second, objective.ttft_seconds, weights.decode
    add_cached, add_prefill, add_wait = scores.cached.append, scores.prefill.append, scores.wait.append
    add_first, add_latency = scores.first.append, scores.latency.append
    add_busy, add_dollars = scores.busy.append, scores.dollars.append
    for work in works:
        rates = work.rates
        batch = work.decoding
        cached = START[depths[work.cache]] * tokens_per_byte * rates.cache_trust.value if work.cache in depths else 0.0
        slope = rates.step_slope
        step = rates.step + slope * batch
        prefill = (prompt - cached) * rates.prefill_seconds
        wait = work.wait_seconds(now) if work.waiting else 0.0
        if work.in_flight >= work.sequences:
            wait += (work.in_flight - work.sequences + 1) * output * step / (work.in_flight or 1)
        missing = work.context_tokens + prompt + output - work.cache_tokens
        if missing > 0 and work.in_flight:
            wait += missing * output * step / (work.context_tokens + 1.0)
        busy = prefill + output * slope
        first = wait + prefill + step
        share = work.prefill_share
        writing = output * (step + slope * len(work.waiting)) / (1.0 - (share if share < MOST_LOAD else MOST_LOAD))
        seconds = first + decode_weight * writing + busy * (later * (wait + 0.5 * prefill) + others * batch)
        if first > 0.5 * target:
            seconds += target * (first / target - 0.5) ** 3
        add_cached(cached)
        add_prefill(prefill)
        add_wait(wait)
        add_first(first)
        add_latency(first + writing)
        add_busy(busy)
        add_dollars(worth * seconds + work.dollars_per_second * busy)
    return scores
