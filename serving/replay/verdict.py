"""Whether a stage's figures mean what they seem to: each check says what was wanted, what was seen and, if it fails, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.replay.counters import CacheFacts, Counters
from serving.replay.load import StageData
from serving.replay.measure import LEFT, ttft_seconds
from serving.replay.report import Check
from serving.replay.statistics import quantile
from serving.replay.stream import Sample

CACHED_SHARE_POINTS = 0.02
"""How far the observed share of cached tokens may be from the wanted one, and the engine's counters from its answers."""
ERROR_SHARE = 0.01
LEAST_REQUESTS = 20
OUTPUT_SHARE = 0.02
CPU_SHARE = 0.9
"""Of one core, above which the client is what is measured."""
LAG_FLOOR_SECONDS = 0.005
LAG_SHARE_OF_TAIL = 0.25
LAG_SHARE_OF_MEDIAN = 0.1
FOREIGN_SHARE = 0.03


@dataclass(frozen=True)
class Evidence:
    """What the checks look at."""

    data: StageData
    cache: CacheFacts
    forces_length: bool
    before: Counters | None
    after: Counters | None
    needed_tokens: int
    """That the cache must hold at the same time: shared beginnings and running requests."""

    @property
    def ok(self) -> list[Sample]:
        return [sample for sample in self.data.measured if sample.is_ok]

    @property
    def counted(self) -> Counters | None:
        """What the engines counted from before the stage until behind it."""
        return None if self.before is None or self.after is None else self.after.since(self.before)


def checks(evidence: Evidence) -> list[Check]:
    return [
        _enough(evidence),
        _errors(evidence),
        _unfinished(evidence),
        _prompt_lengths(evidence),
        _output_lengths(evidence),
        _cached(evidence),
        _counters(evidence),
        _alone(evidence),
        _client_cpu(evidence),
        _client_lag(evidence),
    ]


def cached_share(samples: Sequence[Sample]) -> float | None:
    """Of the prompts' tokens, as the answers tell it; None where no answer tells it."""
    if all(sample.cached_tokens is None for sample in samples):
        return None
    prompt = sum(sample.prompt_tokens or 0 for sample in samples)
    return sum(sample.cached_tokens or 0 for sample in samples) / prompt if prompt else None


def wanted_share(samples: Sequence[Sample]) -> float:
    prompt = sum(sample.wanted_prompt_tokens for sample in samples)
    return sum(sample.wanted_cached_tokens for sample in samples) / prompt if prompt else 0.0


def lag_figures(data: StageData) -> dict[str, float]:
    """Of the loop's timers, and of sending."""
    lags = sorted(data.lags)
    late = sorted(sample.sent - sample.intended for sample in data.measured)
    return {
        "timer_p50": round(quantile(lags, 0.5), 6) if lags else 0.0,
        "timer_p99": round(quantile(lags, 0.99), 6) if lags else 0.0,
        "sent_p50": round(quantile(late, 0.5), 6) if late else 0.0,
        "sent_p99": round(quantile(late, 0.99), 6) if late else 0.0,
    }


def _enough(evidence: Evidence) -> Check:
    count = len(evidence.ok)
    if count >= LEAST_REQUESTS:
        return Check(name="requests", passed=True, said=f"{count} measured requests ended well")
    said = f"only {count} measured requests ended well, {LEAST_REQUESTS} are needed; measure longer"
    return Check(name="requests", passed=False, said=said)


def _errors(evidence: Evidence) -> Check:
    measured = evidence.data.measured
    failed = [sample for sample in measured if sample.error not in (None, LEFT)]
    if len(failed) <= ERROR_SHARE * len(measured):
        return Check(name="errors", passed=True, said=f"{len(failed)} of {len(measured)} requests failed")
    kinds = ", ".join(sorted({str(sample.error) for sample in failed}))
    detail = next((sample.detail for sample in failed if sample.detail), "")
    said = f"{len(failed)} of {len(measured)} requests failed ({kinds}), more than {ERROR_SHARE:.0%}: {detail[:200]}"
    return Check(name="errors", passed=False, said=said)


def _unfinished(evidence: Evidence) -> Check:
    measured = evidence.data.measured
    left = sum(sample.error == LEFT or not sample.is_done for sample in measured)
    if left <= ERROR_SHARE * len(measured):
        return Check(name="unfinished", passed=True, said=f"{left} of {len(measured)} requests did not end in time")
    said = f"{left} of {len(measured)} measured requests had not ended when draining was over; their latencies are not known"
    return Check(name="unfinished", passed=False, said=said)


def _prompt_lengths(evidence: Evidence) -> Check:
    ok = evidence.ok
    if any(sample.prompt_tokens is None for sample in ok):
        return Check(
            name="prompt lengths", passed=False, said="answers come without usage, so the prompts' lengths are not known"
        )
    wrong = [sample for sample in ok if sample.prompt_tokens != sample.wanted_prompt_tokens]
    if not wrong:
        return Check(name="prompt lengths", passed=True, said=f"all {len(ok)} prompts have the wanted lengths, to the token")
    first = wrong[0]
    said = (
        f"{len(wrong)} of {len(ok)} prompts are not as long as wanted; the first has {first.prompt_tokens} tokens, "
        f"not {first.wanted_prompt_tokens}"
    )
    return Check(name="prompt lengths", passed=False, said=said)


def _output_lengths(evidence: Evidence) -> Check:
    ok = [sample for sample in evidence.ok if sample.output_tokens is not None]
    if not ok:
        return Check(name="output lengths", passed=False, said="no answer tells how many tokens it has")
    wrong = [sample for sample in ok if sample.output_tokens != sample.wanted_output_tokens]
    seen = sum(sample.output_tokens or 0 for sample in ok) / len(ok)
    wanted = sum(sample.wanted_output_tokens for sample in ok) / len(ok)
    if not wrong:
        return Check(name="output lengths", passed=True, said=f"all {len(ok)} answers have the wanted lengths, to the token")
    said = f"{len(wrong)} of {len(ok)} answers are not as long as wanted: {seen:.1f} tokens on average, not {wanted:.1f}"
    if evidence.forces_length:
        return Check(name="output lengths", passed=False, said=said)
    said += "; this engine does not take ignore_eos and min_tokens, so lengths could not be forced"
    return Check(name="output lengths", passed=None if abs(seen - wanted) <= OUTPUT_SHARE * wanted else False, said=said)


def _cached(evidence: Evidence) -> Check:
    ok = evidence.ok
    wanted, seen = wanted_share(ok), cached_share(ok)
    source = "the answers' usage"
    if seen is None and (counted := evidence.counted) is not None and counted.cached_share is not None:
        seen, source = counted.cached_share, "the engine's counters, since its answers do not tell"
        wanted = wanted_share([sample for sample in evidence.data.samples if sample.is_ok])
    if seen is None:
        said = "nothing tells how much was cached; vLLM does with --enable-prompt-tokens-details, or give --metrics-url"
        return Check(name="cached share", passed=False, said=said)
    said = f"{seen:.1%} of the prompt tokens were cached, {wanted:.1%} wanted ({source})"
    if abs(seen - wanted) <= CACHED_SHARE_POINTS:
        return Check(name="cached share", passed=True, said=said)
    return Check(name="cached share", passed=False, said=f"{said}: {_why_cached(evidence, seen, wanted)}")


def _why_cached(evidence: Evidence, seen: float, wanted: float) -> str:
    cache = evidence.cache
    if seen > wanted:
        return "something of what should be new was sent before; the cache was warm, or another client sends the same"
    if cache.is_enabled is False:
        return "the engine runs with prefix caching off"
    if cache.capacity_tokens is not None and cache.capacity_tokens < evidence.needed_tokens:
        return (
            f"the cache is too small: it holds {cache.capacity_tokens:,} tokens, the shared beginnings and running requests "
            f"need {evidence.needed_tokens:,}"
        )
    if seen == 0:
        return "nothing was found in a cache; prefix caching is off, or each request goes to another engine"
    return "shared beginnings were evicted, or requests went to engines that do not have them"


def _counters(evidence: Evidence) -> Check:
    counted = evidence.counted
    name = "engine's counters"
    if counted is None:
        return Check(name=name, passed=None, said="the engine's counters could not be read; --metrics-url names where they are")
    if counted.went_back:
        return Check(name=name, passed=False, said="the engine's counters fell: it began anew during the run")
    if counted.cached_share is None:
        return Check(name=name, passed=None, said="the engine counted no look-up in a prefix cache")
    ok = [sample for sample in evidence.data.samples if sample.is_ok]
    seen = cached_share(ok)
    if seen is None:
        return Check(name=name, passed=None, said="the answers do not tell what was cached; only the engine's counters do")
    said = f"the engine counted {counted.cached_share:.1%} cached, its answers say {seen:.1%}"
    return Check(name=name, passed=abs(counted.cached_share - seen) <= CACHED_SHARE_POINTS, said=said)


def _alone(evidence: Evidence) -> Check:
    counted, name = evidence.counted, "no other load"
    if counted is None or counted.went_back:
        return Check(name=name, passed=None, said="whether others used the engine is not known without its counters")
    # What was left early may or may not have been counted, so that sent is a bound from above.
    sent = sum(sample.prompt_tokens or sample.wanted_prompt_tokens for sample in evidence.data.samples)
    more = counted.prompt_tokens - sent
    said = f"the engine counted {counted.prompt_tokens:,.0f} prompt tokens, {sent:,} were sent"
    if more <= FOREIGN_SHARE * sent:
        return Check(name=name, passed=True, said=said)
    return Check(name=name, passed=False, said=f"{said}: somebody else used it meanwhile")


def _client_cpu(evidence: Evidence) -> Check:
    if evidence.data.gave_up:
        said = "the client could not send in time and gave up early: it is the bottleneck; offer less, or take a faster machine"
        return Check(name="client's CPU", passed=False, said=said)
    share = evidence.data.cpu_seconds / evidence.data.window_seconds
    said = f"the client used {share:.0%} of a core"
    if share <= CPU_SHARE:
        return Check(name="client's CPU", passed=True, said=said)
    return Check(name="client's CPU", passed=False, said=f"{said}, more than {CPU_SHARE:.0%}: the client is the bottleneck")


def _client_lag(evidence: Evidence) -> Check:
    name = "client's lag"
    times = sorted(value for sample in evidence.ok if (value := ttft_seconds(sample)) is not None)
    figures = lag_figures(evidence.data)
    if not times:
        return Check(name=name, passed=None, said="no first token to hold the client's lag against")
    tail, median = max(figures["timer_p99"], figures["sent_p99"]), max(figures["timer_p50"], figures["sent_p50"])
    most_tail = max(LAG_FLOOR_SECONDS, LAG_SHARE_OF_TAIL * quantile(times, 0.99))
    most_median = max(LAG_FLOOR_SECONDS / 2, LAG_SHARE_OF_MEDIAN * quantile(times, 0.5))
    said = f"the client was late by {median * 1000:.1f} ms (median) and {tail * 1000:.1f} ms (99 %)"
    if tail <= most_tail and median <= most_median:
        return Check(name=name, passed=True, said=said)
    limits = f"{most_median * 1000:.1f} and {most_tail * 1000:.1f} ms"
    said += f", more than {limits}: the client lags, its own time is in the latencies"
    return Check(name=name, passed=False, said=said)
