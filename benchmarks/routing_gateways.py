"""Ten gateways over a hundred simulated engines against one: `python -m benchmarks.routing_gateways` prints the table.

Each gateway has its own chooser and its own datagrams, signed and lossy as on a wire; a request comes to any of them by chance.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.routing_engine import EngineSpec, Job
from benchmarks.routing_ours import Ours
from benchmarks.routing_run import Result, run
from benchmarks.routing_traces import TRACES, Session, Text, Turn, fresh
from serving.fleet.peers import Peers
from serving.peer_settings import PeerSettings

ENGINES, GATEWAYS = 100, 10
PERIOD_SECONDS = 0.1
SETTINGS = PeerSettings.model_validate({"addresses": ["gateways:8002"], "secret": "a secret of the simulation"})


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong between the gateways."""

    lost_share: float = 0.0
    """Of all datagrams."""
    silent: int = 0
    """So many gateways neither hear nor are heard, from the middle of the run on."""
    killed: int = 0
    """So many get no requests from the middle of the run on and say nothing any more."""
    skew_seconds: float = 0.0
    """Their clocks differ by up to this, either way."""


class Wire(asyncio.DatagramTransport):
    """One gateway's way to the others."""

    def __init__(self, deliver: Callable[[bytes, int], None]) -> None:
        super().__init__()
        self._deliver = deliver

    def sendto(self, data: Any, addr: Any = None) -> None:
        self._deliver(data, addr[1])


class Gateways:
    """Several gateways over the same engines. Any of them gets any request."""

    def __init__(
        self, count: int, engines: int, *, talk: bool = True, trouble: Trouble = Trouble(), seed: int = 1, middle: float = 0.0
    ) -> None:
        self._dice = random.Random(seed)
        self._trouble = trouble
        self._middle = middle
        self.now = 0.0
        self.gateways = [Ours(engines, seed=seed + number) for number in range(count)]
        self.peers: list[Peers] = []
        for number, gateway in enumerate(self.gateways if talk else ()):
            skew = trouble.skew_seconds * (2 * number / max(1, count - 1) - 1)
            peers = Peers(
                SETTINGS,
                gateway.chooser.join(silence_seconds=SETTINGS.silence_seconds),
                clock=lambda: self.now,
                wall=partial(self._wall, skew),
            )
            peers.connection_made(Wire(partial(self._deliver, number)))
            peers.targets = tuple(("gateway", other) for other in range(count) if other != number)
            self.peers.append(peers)

    def _wall(self, skew: float) -> float:
        return 1e9 + self.now + skew

    def _cut_off(self, number: int) -> bool:
        return self.now >= self._middle and number < self._trouble.silent + self._trouble.killed

    def _deliver(self, sender: int, datagram: bytes, receiver: int) -> None:
        if self._dice.random() >= self._trouble.lost_share and not self._cut_off(sender) and not self._cut_off(receiver):
            self.gateways[receiver].now = self.now
            self.peers[receiver].datagram_received(datagram, None)

    def _speak(self, number: int, now: float) -> None:
        self.now = self.gateways[number].now = now
        self.peers[number].speak()

    def events(self, seconds: float) -> list[tuple[float, Callable[[], None]]]:
        """All that they say until the end of a run, each at another moment of the period."""
        return [
            (
                (period + number / len(self.peers)) * PERIOD_SECONDS,
                partial(self._speak, number, (period + number / len(self.peers)) * PERIOD_SECONDS),
            )
            for period in range(int(seconds / PERIOD_SECONDS))
            for number in range(len(self.peers))
        ]

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        self.now = now
        first = self._trouble.killed if now >= self._middle else 0
        gateway = self.gateways[self._dice.randrange(first, len(self.gateways))]
        engine, ticket = gateway.pick(turn, now)
        return engine, (gateway, ticket)

    def first(self, ticket: Any, now: float) -> None:
        ticket[0].first(ticket[1], now)

    def end(self, ticket: Any, turn: Turn, job: Job, now: float) -> None:
        ticket[0].end(ticket[1], turn, job, now)


CASES: dict[str, tuple[int, bool, Trouble]] = {
    "one": (1, False, Trouble()),
    "ten, silent all of them": (GATEWAYS, False, Trouble()),
    "ten": (GATEWAYS, True, Trouble()),
    "ten, 30 % lost": (GATEWAYS, True, Trouble(lost_share=0.3)),
    "ten, one cut off": (GATEWAYS, True, Trouble(silent=1)),
    "ten, one killed": (GATEWAYS, True, Trouble(killed=1)),
    "ten, clocks 20 s apart": (GATEWAYS, True, Trouble(skew_seconds=10.0)),
}


def chat(load: float, seconds: float, seed: int, scale: float = 1.0) -> list[Session]:
    """Many short questions that have nothing in common: about as many as engines can write at once."""
    dice = random.Random(seed)
    at, number, sessions = 0.0, 0, []
    while (at := at + dice.expovariate(14.0 * load * scale)) < seconds:
        prompt = Text() + fresh(dice.randint(20, 500))
        number += 1
        sessions.append(Session(at, [Turn(0.0, prompt, prompt.size, dice.randint(5, 60), number)]))
    return sessions


def outcome(profile: str, load: float, seed: int, case: str, engines: int, seconds: float, warm_up: float) -> Result:
    """One run; requests come for all the engines."""
    make = chat if profile == "chat" else TRACES[profile]
    sessions = make(load, seconds, seed, scale=engines / 8)
    count, talk, trouble = CASES[case]
    gateways = Gateways(count, engines, talk=talk, trouble=trouble, seed=seed, middle=(seconds + warm_up) / 2)
    return run(sessions, gateways, specs=(EngineSpec(),) * engines, seconds=seconds, warm_up=warm_up, at=gateways.events(seconds))


def worst_second(result: Result, weigh: Callable[[Any], float] = lambda sample: 1.0) -> float:
    """The most that one engine got within one second, over what engines got in that second on average."""
    got: Counter[tuple[int, int]] = Counter()
    total: Counter[int] = Counter()
    for sample in result.samples:
        second = int(sample.arrived)
        got[second, sample.engine] += weigh(sample)
        total[second] += weigh(sample)
    return max(most * len(result.engines) / total[second] for (second, _), most in got.items())


def worst_load(result: Result) -> float:
    """The same of the requests that were under way at the beginning of each second."""
    worst = 0.0
    for second in range(int(result.began) + 2, int(result.ended)):
        there = Counter(s.engine for s in result.samples if s.arrived <= second and (not s.ended or s.ended > second))
        if there:
            worst = max(worst, max(there.values()) * len(result.engines) / sum(there.values()))
    return worst


COLUMNS = ("hit %", "TTFT mean", "p99", "e2e mean", "finished", "requests in a second: worst/mean", "under way: worst/mean")


def measured(result: Result) -> tuple[float, ...]:
    return (
        100 * result.hit_rate,
        result.mean_ttft,
        result.ttft_at(0.99),
        result.mean_e2e,
        float(result.finished),
        worst_second(result),
        worst_load(result),
    )


def _row(arguments: tuple[Any, ...]) -> tuple[float, ...]:
    return measured(outcome(*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", default="production,agentic,chat")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    cases: Sequence[str] = given.cases.split(";")
    with multiprocessing.Pool(given.processes) as pool:
        for profile in given.profiles.split(","):
            print(f"\n{profile}, load {given.load}\n\n| gateways | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
            arguments = [(profile, given.load, given.seed, case, given.engines, given.seconds, given.warm_up) for case in cases]
            for case, row in zip(cases, pool.imap(_row, arguments), strict=True):
                print(
                    f"| {case} | {' | '.join(f'{value:.3g}' if value < 1000 else f'{value:.0f}' for value in row)} |", flush=True
                )


if __name__ == "__main__":
    main()
