"""A recording of a real engine, played to the simulated one in virtual time."""

from __future__ import annotations

from typing import Any

from benchmarks.record_engine import prompt
from serving.catalog.model import Simulation
from serving.sim.rates import Rates
from tests.sim.virtual import Run, Seen, engine_model


def _run(recording: dict[str, Any], simulation: Simulation) -> Run:
    model = engine_model(
        Rates.of(simulation),
        capacity_tokens=simulation.kv_capacity_tokens,
        block_tokens=simulation.block_tokens,
        **recording["limits"],
    )
    return Run(model)


def play_open(recording: dict[str, Any], simulation: Simulation) -> list[Seen]:
    """Each request at the moment at which it was sent."""
    run = _run(recording, simulation)
    seen: dict[int, Seen] = {}
    for number, request in sorted(enumerate(recording["open"]), key=lambda entry: entry[1]["sent_seconds"]):
        run.until(request["sent_seconds"])
        seen[number] = run.send(prompt(request, recording["salt"]), request["answer_tokens"])
    run.out()
    return [seen[number] for number in range(len(seen))]


def play_closed(recording: dict[str, Any], simulation: Simulation) -> list[Seen]:
    """Workers that ask again when they have their answer. The cache holds what the open load left, as the engine's did."""
    run = _run(recording, simulation)
    for request in recording["open"]:
        run.send(prompt(request, recording["salt"]), request["answer_tokens"])
        run.out()
    began, seen = run.now, []
    workers = [iter(requests) for requests in recording["closed"]]
    busy: dict[int, Seen] = {}
    for number, worker in enumerate(workers):
        request = next(worker)
        busy[number] = run.send(prompt(request, recording["salt"]), request["answer_tokens"])
    while busy:
        assert run.model.next_seconds is not None
        run.until(run.model.next_seconds)
        for number, one in list(busy.items()):
            if one.ended is None:
                continue
            seen.append(busy.pop(number))
            following = next(workers[number], None)
            if following is not None:
                busy[number] = run.send(prompt(following, recording["salt"]), following["answer_tokens"])
    for one in seen:
        one.sent -= began
        one.tokens = [moment - began for moment in one.tokens]
        assert one.ended_at is not None
        one.ended_at -= began
    return seen
