"""Compares routing policies over simulated engines in virtual time: `python -m benchmarks.routing_sim` prints the tables.

The same traces and the same model of an engine as the harness, at the loads 0.7, 1.0 and 1.4, on several seeds. Nothing here
depends on how fast or busy the machine is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.routing_engine import Engine, EngineSpec
from benchmarks.routing_ours import Ours
from benchmarks.routing_peers import CacheAware, Clairvoyant, LeastLoaded, Reference, RoundRobin, SessionHash
from benchmarks.routing_run import Result, Router, run
from benchmarks.routing_traces import TRACES
from serving.routing.predict import Rates

REPLICAS = 8
TRUE = Rates(16_000.0, 0.008, 0.00012, 64, 640_000)
HALF = Rates(8_000.0, 0.004, 0.00006, 32, 320_000)
DOUBLE = Rates(32_000.0, 0.016, 0.00024, 128, 1_280_000)
Make = Callable[[list[Engine]], Router]

POLICIES: dict[str, Make] = {
    "round robin": lambda engines: RoundRobin(len(engines)),
    "least loaded": lambda engines: LeastLoaded(len(engines)),
    "session hash": lambda engines: SessionHash(len(engines)),
    "cache aware": lambda engines: CacheAware(len(engines)),
    "reference, miss 1": lambda engines: Reference(len(engines), 1.0),
    "reference, miss 4": lambda engines: Reference(len(engines), 4.0),
    "clairvoyant, miss 1": lambda engines: Clairvoyant(engines, 1.0, 1.0),
    "clairvoyant, miss 2": lambda engines: Clairvoyant(engines, 2.0, 0.3),
    "clairvoyant, miss 4": lambda engines: Clairvoyant(engines, 4.0, 1.0),
    "cost": lambda engines: Ours(len(engines)),
    "cost, priors known": lambda engines: Ours(len(engines), TRUE),
    "cost, priors halved": lambda engines: Ours(len(engines), HALF),
    "cost, priors doubled": lambda engines: Ours(len(engines), DOUBLE),
}
COLUMNS = ("hit %", "max/mean", "finished", "TTFT mean", "p50", "p99", "e2e mean", "p50")


def measured(result: Result) -> tuple[float, ...]:
    """In the order of COLUMNS; times in seconds."""
    return (
        100 * result.hit_rate,
        result.imbalance,
        float(result.finished),
        result.mean_ttft,
        result.ttft_at(0.5),
        result.ttft_at(0.99),
        result.mean_e2e,
        result.median_e2e,
    )


def compare(profile: str, load: float, seed: int, policies: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """All policies on one trace."""
    sessions = TRACES[profile](load, 140.0, seed)
    found = {}
    for name in policies:
        engines = [Engine(number, EngineSpec()) for number in range(REPLICAS)]
        found[name] = measured(run(sessions, POLICIES[name](engines), engines=engines))
    return found


def _compare(arguments: tuple[Any, ...]) -> dict[str, tuple[float, ...]]:
    return compare(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="production,agentic")
    parser.add_argument("--load", default="0.7,1.0,1.4")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--policies", default=",".join(POLICIES).replace(", ", "; "))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    policies = [name.replace("; ", ", ") for name in given.policies.split(",")]
    seeds = [int(seed) for seed in given.seeds.split(",")]
    with multiprocessing.Pool(given.processes) as pool:
        for profile in given.profile.split(","):
            for load in map(float, given.load.split(",")):
                rows = pool.map(_compare, [(profile, load, seed, policies) for seed in seeds], chunksize=1)
                print(f"\n{profile}, load {load}\n\n| policy | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
                for name in policies:
                    means = [statistics.mean(values) for values in zip(*(row[name] for row in rows), strict=True)]
                    print(f"| {name} | {' | '.join(_shown(value) for value in means)} |", flush=True)


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"


if __name__ == "__main__":
    main()
