"""How far the policy is from a router that knows everything: `python -m benchmarks.routing_clairvoyant` prints the table.

The clairvoyant knows all caches, all work and all lengths, and is run with several weights of a miss and of decoding; of each
trace the best of these runs counts, by the mean time to the first token. Ours begins with generic rates, with rates wrong by
two times either way, and without knowing which requests belong to one conversation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.routing_engine import Engine, EngineSpec
from benchmarks.routing_ours import Ours
from benchmarks.routing_peers import Clairvoyant
from benchmarks.routing_run import Result, Router, run
from benchmarks.routing_sim import DOUBLE, HALF, REPLICAS, TRUE
from benchmarks.routing_traces import TRACES, Turn
from serving.routing.question import Question

WEIGHTS = tuple((miss, decode) for miss in (1.0, 2.0, 4.0) for decode in (0.1, 0.5))
"""Of a second of prefill beside a second of waiting, and of a decoding step."""


class WithoutConversations(Ours):
    """Clients that say nothing of sessions, and prompts of which nobody knows where the first turn ends."""

    def question(self, turn: Turn) -> Question:
        return replace(super().question(turn), turn_pieces=0)


OURS: dict[str, Callable[[], Router]] = {
    "generic priors": lambda: Ours(REPLICAS),
    "priors known": lambda: Ours(REPLICAS, TRUE),
    "priors halved": lambda: Ours(REPLICAS, HALF),
    "priors doubled": lambda: Ours(REPLICAS, DOUBLE),
    "without conversations": lambda: WithoutConversations(REPLICAS),
}
Cell = dict[str, tuple[float, float]]
"""Mean and 99th percentile of the time to the first token, in seconds."""


def cell(profile: str, load: float, seed: int) -> Cell:
    """The best clairvoyant run and all of ours on one trace."""
    sessions = TRACES[profile](load, 140.0, seed)
    runs = []
    for miss, decode in WEIGHTS:
        engines = [Engine(number, EngineSpec()) for number in range(REPLICAS)]
        runs.append(_times(run(sessions, Clairvoyant(engines, miss, decode), engines=engines)))
    found: Cell = {"clairvoyant": min(runs)}
    for name, make in OURS.items():
        found[name] = _times(run(sessions, make()))
    return found


def _times(result: Result) -> tuple[float, float]:
    return result.mean_ttft, result.ttft_at(0.99)


def _cell(arguments: tuple[Any, ...]) -> Cell:
    return cell(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="production,agentic")
    parser.add_argument("--load", default="0.7,1.0,1.4")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print(f"| trace | load | clairvoyant: mean, p99 | {' | '.join(OURS)} |\n|{'---|' * (3 + len(OURS))}")
    with multiprocessing.Pool(given.processes) as pool:
        for profile in given.profile.split(","):
            for load in map(float, given.load.split(",")):
                cells = pool.map(_cell, [(profile, load, seed) for seed in seeds], chunksize=1)
                means = {name: [statistics.mean(c[name][place] for c in cells) for place in (0, 1)] for name in cells[0]}
                best = means["clairvoyant"]
                ratios = (f"{means[name][0] / best[0]:.2f}, {means[name][1] / best[1]:.2f}" for name in OURS)
                print(f"| {profile} | {load} | {best[0]:.3f} s, {best[1]:.2f} s | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
