"""Work that this gateway does not know of: other gateways' requests and those of direct users, by what engines say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from serving.fleet.engine_load import EngineLoad, read_load
from serving.routing.choose import Chooser
from serving.routing.news import number_of
from serving.routing.others import NONE, Others, faded, others_of
from serving.routing.peer_load import NOTHING, PeerLoad
from serving.routing.question import Question
from serving.routing.work import Choice
from tests.routing.asking import Clock, chosen, endpoints, question, text

A, B = AB = endpoints(2)
STALE = 10.0


def load(running: float, waiting: float, usage: float = 0.0) -> EngineLoad:
    lines = {"num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": usage}
    read = read_load("".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in lines.items()).encode(), 0.0)
    assert read is not None
    return read


def others(of: EngineLoad, known: int = 0, known_waiting: int = 0) -> Others | None:
    return others_of(of, known=known, known_waiting=known_waiting, known_tokens=1000.0, cache_tokens=10_000.0)


def test_what_is_not_this_gateways_is_others() -> None:
    assert others(load(6, 4, 0.5)) == (6.0, 4.0, 4000.0)
    assert others(load(10, 4), known=4, known_waiting=1) == (5.0, 3.0, 0.0)
    assert others(load(4, 0), known=4) is None
    assert others(load(104, 0), known=100) is None, "so many are on their way at any moment"
    assert others(load(0, 0), known=7) is None


def test_what_an_engine_does_not_say_is_not_made_up() -> None:
    read = read_load(b'vllm:num_requests_running{engine="0"} 5\n', 0.0)
    assert read is not None
    assert others(read) == (5.0, 0.0, 0.0)


def test_silence_becomes_what_the_others_of_the_pool_say() -> None:
    last, mate = Others(8.0, 0.0, 800.0), Others(2.0, 2.0, 200.0)
    assert faded(last, 1.0, [mate]) == last
    assert faded(last, 0.5, [mate]) == (5.0, 1.0, 500.0)
    assert faded(last, 0.0, [mate, None]) == (1.0, 1.0, 100.0)
    assert faded(last, 0.0, []) is None, "nobody says anything"
    assert faded(None, 0.0, [mate]) == mate
    assert NONE == (0.0, 0.0, 0.0)


def taken(chooser: Chooser, count: int = 20, size_bytes: int = 400) -> Counter[str]:
    """Where requests go that come one at a time."""
    places: Counter[str] = Counter()
    for number in range(count):
        asked = question(text(size_bytes, number))
        ticket = chooser.choose("m", AB, (), lambda asked=asked: asked, size_bytes=size_bytes)  # type: ignore[misc]
        assert ticket is not None
        chooser.begin(ticket)
        places[ticket.endpoint.name] += 1
        chooser.end(ticket)
        chooser.drop(ticket)
    return places


@pytest.mark.parametrize("size_bytes", [400, 20_000])
def test_an_engine_that_others_keep_busy_gets_less(size_bytes: int) -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    even = taken(chooser, size_bytes=size_bytes)
    assert min(even[e.name] for e in AB) >= 6
    chooser.hear(A, load(200, 40), 0)
    chooser.hear(B, load(0, 0), 0)
    for _ in range(2):  # small requests stand for the next sixteen
        busy = taken(chooser, size_bytes=size_bytes)
    assert busy[A.name] <= 1
    chooser.hear(A, load(0, 0), 0)
    clock.now += 60.0
    for _ in range(2):
        again = taken(chooser, size_bytes=size_bytes)
    assert min(again[e.name] for e in AB) >= 6


def test_this_gateways_own_requests_are_not_counted_twice() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    for number in range(40):
        chosen(chooser, AB, question(text(8000, number)))
    flying = {e.name: chooser.in_flight(e.name) for e in AB}
    for e in AB:
        chooser.hear(e, load(flying[e.name], 0), flying[e.name])
    assert [chooser._works[e.name].others for e in AB] == [None, None]
    # One that ended while the engine was asked is still in what it said.
    chooser.hear(A, load(flying[A.name] + 9, 0), flying[A.name] + 9)
    assert chooser._works[A.name].others is None


def test_peers_news_come_before_what_the_engine_says() -> None:
    """Their requests are known from themselves, sooner and better: they are not counted twice."""
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    work = chooser._work(A)
    work.hear(NOTHING, PeerLoad(requests=30, queued=5), clock.now)
    chooser.hear(A, load(25, 5), 0)
    assert work.others is None
    chooser.hear(A, load(60, 5), 0)
    assert work.others is not None and 25 < work.others.running < 30 and work.others.waiting == 0
    assert work.others_requests == 35


def test_an_engine_that_falls_silent_is_not_taken_for_idle() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    for e in AB:
        chooser.hear(e, load(100, 20), 0)
    for _ in range(10):
        clock.now += 2.0
        chooser.miss(A, STALE)
        chooser.hear(B, load(60, 0), 0)
    silent, mate = (chooser._works[e.name].others for e in AB)
    assert silent == mate != None  # noqa: E711
    for _ in range(10):
        clock.now += 2.0
        chooser.miss(A, STALE)
        chooser.miss(B, STALE)
    assert [chooser._works[e.name].others for e in AB] == [None, None], "nobody says anything, so that they are alike"


def test_a_step_is_learned_with_all_that_are_in_it() -> None:
    """A step with 100 of others in it takes longer; that is their number and not the engine's speed."""
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    chooser.hear(A, load(100, 0), 0)
    chooser.hear(B, load(100, 0), 0)
    ticket = chosen(chooser, AB, question(text(4000, 1)))
    assert isinstance(ticket, Choice)
    clock.now += 0.2
    chooser.first_token(ticket)
    clock.now += 2.0
    chooser.end(ticket)
    assert ticket.area == pytest.approx(2.0 * 101)


def test_while_others_wait_a_first_token_says_nothing_of_prefill() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    for e in AB:
        chooser.hear(e, load(0, 5), 0)
    ticket = chosen(chooser, AB, question(text(4000, 1)))
    assert isinstance(ticket, Choice) and not ticket.alone


def test_slots_that_others_use_are_left_to_them() -> None:
    slotted = tuple(replace(e, slots=8) for e in AB)
    chooser = Chooser(clock=Clock(), seed=1)
    assert [chooser.slots_at(e) for e in slotted] == [8, 8]
    chooser.hear(slotted[0], load(5, 1), 0)
    assert [chooser.slots_at(e) for e in slotted] == [2, 8]
    chooser.hear(slotted[0], load(30, 30), 0)
    assert chooser.slots_at(slotted[0]) == 1, "nobody is shut out"
    chooser.gateways = lambda: 4
    before = chooser.slots_changed
    chooser.hear(slotted[0], load(30, 30), 0)
    chooser.miss(slotted[1], STALE)
    assert [chooser.slots_at(e) for e in slotted] == [2, 2], "an even part, also where nothing was heard"
    assert chooser.slots_changed == before + 2
    assert chooser.slots_at(A) is None


def test_slots_that_other_gateways_use_are_known_from_themselves() -> None:
    clock = Clock()
    slotted = tuple(replace(e, slots=8) for e in AB)
    chooser = Chooser(clock=clock, seed=1)
    desk = chooser.join(silence_seconds=1.0)
    chooser.know(slotted)
    before = chooser.slots_changed
    desk.hear(b"peer", b"L" + PeerLoad(requests=6).packed(number_of(slotted[0])))
    assert chooser.slots_changed > before
    assert [chooser.slots_at(e) for e in slotted] == [2, 8]
    chooser.hear(slotted[0], load(6, 0), 0)
    assert chooser.slots_at(slotted[0]) == 4, "an even part of two gateways, whatever the other one has"
    taken_here: Counter[str] = Counter()
    for _ in range(12):
        ticket = chooser.choose("m", slotted, (), question)
        assert ticket is not None
        chooser.begin(ticket)
        taken_here[ticket.endpoint.name] += 1
    assert taken_here == {"e0": 4, "e1": 8}


def test_an_endpoint_without_a_free_slot_gets_nothing_while_another_has_one() -> None:
    slotted = tuple(replace(e, slots=2) for e in endpoints(3))
    chooser = Chooser(clock=Clock(), seed=1)

    def taken_by(count: int) -> list[str]:
        names = []
        for _ in range(count):
            ticket = chooser.choose("m", slotted, (), question)
            assert ticket is not None
            chooser.begin(ticket)
            names.append(ticket.endpoint.name)
        return names

    assert Counter(taken_by(6)) == {"e0": 2, "e1": 2, "e2": 2}
    assert len(taken_by(1)) == 1, "all are full, so that any is as good: a retry must not fail by that"


def test_groups_of_endpoints_with_free_slots_are_made_once() -> None:
    slotted = tuple(replace(e, slots=1) for e in endpoints(4))
    chooser = Chooser(clock=Clock(), seed=1)
    held = chooser.choose("m", slotted, (), question)
    assert held is not None
    chooser.begin(held)
    made = 0
    group_of = chooser._group_of

    def counted(candidates: Any) -> Any:
        nonlocal made
        made += 1
        return group_of(candidates)

    chooser._group_of = counted  # type: ignore[method-assign]
    for _ in range(50):
        ticket = chooser.choose("m", slotted, (), question)
        assert ticket is not None and ticket.endpoint is not held.endpoint
    assert made == 1


def test_many_small_requests_at_a_time_are_looked_at_once() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    looks = 0

    def ask() -> Question:
        nonlocal looks
        looks += 1
        return question(text(400, looks))

    def come(count: int) -> int:
        before = looks
        for _ in range(count):
            ticket = chooser.choose("m", AB, (), ask, size_bytes=400)
            assert ticket is not None
            chooser.begin(ticket)
            chooser.end(ticket)
            chooser.drop(ticket)
        return looks - before

    assert come(300) == 1
    clock.now += 1.0
    assert come(300) == 1
    chooser.hear(A, load(3, 0), 0)
    assert come(300) == 1, "what an engine says counts from the next look on"
    few = []
    for _ in range(17):
        clock.now += 1.0
        few.append(come(1))
    assert few == [1, *[0] * 15, 1]
