"""Made-up stages and reports, for what is done with them afterwards."""

from __future__ import annotations

import random
from typing import Any

from serving.replay.measure import distribution, window_rate
from serving.replay.report import Check, Columns, Engine, Estimate, Money, Options, Report, Roofline, Stage, Timeline
from serving.replay.run import profile_sha256
from serving.replay.shelf import load_profiles
from serving.replay.statistics import METHOD, SLICES
from serving.settings import catalog_dir


def a_stage(
    *,
    offered: float = 4.0,
    good_share: float | None = 1.0,
    finished_rate: float | None = None,
    ttft: float = 0.2,
    tokens_per_second: float = 1000.0,
    dollars_per_hour: float | None = None,
    checks: tuple[Check, ...] = (),
    seed: int = 0,
    count: int = 60,
    kind: str = "open",
) -> Stage:
    """An open loop at `offered` requests a second, whose figures scatter by 5 %."""
    chance = random.Random(seed)
    times = tuple(ttft * chance.gauss(1, 0.05) for _ in range(count))
    times_of = distribution(times, 0)
    width = 1.0
    output = tuple(tokens_per_second * width * chance.gauss(1, 0.05) for _ in range(SLICES))
    none = Estimate(value=None)
    rate = window_rate(output, width, 0)
    dollars = None if dollars_per_hour is None else dollars_per_hour / 3600 / tokens_per_second * 1e6
    return Stage(
        label=f"{offered:g} requests/s, poisson" if kind == "open" else f"{offered:g} at a time",
        kind="open" if kind == "open" else "closed",
        offered=offered,
        window_seconds=SLICES * width,
        requests=count,
        finished_ok=count,
        unfinished=0,
        errors={},
        offered_requests_per_second=offered,
        requests_per_second=Estimate(value=offered if finished_rate is None else finished_rate),
        output_tokens_per_second=rate,
        prompt_tokens_per_second=rate,
        ttft=times_of,
        tpot=times_of,
        e2e=times_of,
        itl={"mean": 0.01, "p50": 0.01, "p99": 0.01},
        cached_share=0.6,
        wanted_cached_share=0.6,
        engine_cached_share=None,
        mean_prompt_tokens=20_000.0,
        mean_output_tokens=1_000.0,
        mean_running=4.0,
        good_share=good_share,
        good_requests_per_second=None,
        client_cpu_share=0.1,
        client_lag_seconds={"timer_p50": 0.0, "timer_p99": 0.001, "sent_p50": 0.0, "sent_p99": 0.001},
        preemptions=0.0,
        money=Money(
            dollars_per_hour=dollars_per_hour,
            source="made up for a test",
            per_million_output_tokens=Estimate(value=dollars),
            per_million_tokens=none,
        ),
        roofline=Roofline(share=None, said="not known"),
        checks=checks or (Check(name="requests", passed=True, said="enough"),),
        columns=Columns(
            intended=tuple(number / 10 for number in range(count)),
            sent_late=(0.0,) * count,
            ttft=times,
            tpot=times,
            e2e=times,
            prompt_tokens=(20_000,) * count,
            cached_tokens=(12_000,) * count,
            output_tokens=(1_000,) * count,
            error=(None,) * count,
        ),
        timeline=Timeline(
            slice_seconds=width,
            first_slice=0,
            window_slices=SLICES,
            output_tokens=output,
            prompt_tokens=output,
            finished=(4,) * SLICES,
        ),
    )


def a_report(*stages: Stage, **fields: Any) -> Report:
    profile = load_profiles(catalog_dir())["production"]
    stages = stages or (a_stage(),)
    faults = tuple(fault for stage in stages for fault in stage.faults)
    report = Report(
        format="serving replay 1",
        is_valid=not faults,
        faults=faults,
        simulated=None,
        created="2026-11-30T12:00:00Z",
        serving_version="0.1.0",
        python="3.11.7",
        machine="a machine",
        argv=("replay", "production"),
        options=Options(url="http://127.0.0.1:8000"),
        profile=profile,
        profile_sha256=profile_sha256(profile),
        objectives=profile.objectives,
        nonce="n",
        engine=Engine(
            model="glm",
            version="0.32.0",
            simulated=None,
            max_model_len=100_000,
            block_tokens=16,
            kv_capacity_tokens=1_000_000,
            prefix_caching=True,
            counts_by="tokenize",
            template={},
            vocabulary_words=120,
            vocabulary_sha256="0",
            forced=("max_tokens", "ignore_eos", "min_tokens"),
        ),
        notes=(),
        statistics=METHOD,
        stages=tuple(stages),
    )
    return report.model_copy(update=fields)
