"""Who is chosen, and that everything that is counted is given back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import UNKNOWN_USAGE, Usage
from serving.fleet.report import SpeedReport
from serving.fleet.store import EndpointState, EndpointStatus
from serving.routing.choose import Chooser
from serving.routing.question import Question
from serving.routing.work import Choice, Ticket
from tests.routing.asking import Clock, chosen, endpoint, endpoints, question, text

A, B, C = ABC = endpoints(3)


def never() -> Question:
    pytest.fail("there was nothing to choose, so that nobody needs to know the prompt")


def finish(
    chooser: Chooser, ticket: Ticket, usage: Usage = UNKNOWN_USAGE, *, seconds: float = 0.0, clock: Clock | None = None
) -> None:
    if clock is not None:
        clock.now += seconds
    chooser.first_token(ticket)
    chooser.end(ticket)
    chooser.learn(ticket, usage, 0.0 if clock is None else clock.now)


def test_without_candidates_there_is_no_choice() -> None:
    assert Chooser().choose("m", (), (), never) is None


def test_a_single_candidate_is_taken_without_a_look_at_the_prompt() -> None:
    ticket = Chooser().choose("m", (A,), (), never)
    assert ticket is not None
    assert ticket.endpoint is A


def test_what_was_tried_is_not_chosen_again() -> None:
    chooser = Chooser()
    ticket = chooser.choose("m", (A, B), {A.name}, never)
    assert ticket is not None
    assert ticket.endpoint is B
    assert chooser.choose("m", (A, B), {A.name, B.name}, never) is None
    assert chooser.choose("m", (A,), {A.name}, never) is None


def test_choosing_alone_counts_nothing() -> None:
    chooser = Chooser()
    assert chooser.choose("m", ABC, (), question) is not None
    assert [chooser.in_flight(e.name) for e in ABC] == [0, 0, 0]


def test_small_prompts_one_at_a_time_go_around() -> None:
    chooser = Chooser(clock=Clock())
    turns = []
    for _ in range(6):
        ticket = chosen(chooser, ABC, question())
        finish(chooser, ticket)
        turns.append(ticket.endpoint)
    assert turns == [A, B, C, A, B, C]


def test_different_cold_prompts_one_after_another_spread_over_all_replicas() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock)
    eight = endpoints(8)
    counts: Counter[str] = Counter()
    for number in range(24):
        ticket = chosen(chooser, eight, question(text(40_000, number)))
        finish(chooser, ticket, Usage(10_000, 0, 20), seconds=0.7, clock=clock)
        counts[ticket.endpoint.name] += 1
        assert number != 7 or len(counts) == 8
    assert max(counts.values()) <= 6


def test_a_conversation_stays_where_its_prefix_is() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock)
    prompt = text(20_000, "conversation")
    first = chosen(chooser, ABC, question(prompt))
    finish(chooser, first, Usage(5000, 0, 50), seconds=1.0, clock=clock)
    for turn in range(5):
        prompt += text(2000, turn)
        clock.now += 5.0
        ticket = chosen(chooser, ABC, question(prompt))
        assert ticket.endpoint is first.endpoint
        finish(chooser, ticket, Usage(len(prompt) // 4, (len(prompt) - 2000) // 4, 50), seconds=0.3, clock=clock)


def test_one_that_starts_slowly_gets_less_than_its_part_though_it_is_empty() -> None:
    ten = endpoints(10)
    name = ten[0].name
    ramping = {name: EndpointStatus(ten[0], EndpointState.READY, began_at=100.0, ramp_seconds=40.0)}
    chooser = Chooser(ramping=lambda: ramping, clock=lambda: 110.0, seed=1)
    taken: Counter[str] = Counter()
    for _ in range(2000):
        ticket = chooser.choose("m", ten, (), question)
        assert ticket is not None
        chooser.begin(ticket)
        taken[ticket.endpoint.name] += 1
    assert 20 < taken[name] < 120, "a quarter of 200, and never the half of them"
    assert max(taken.values()) < 260


def test_all_gateways_give_a_new_conversation_to_the_same_endpoint() -> None:
    asked = question(text(20_000, "one"))
    owners = {chosen(Chooser(clock=Clock()), endpoints(8), asked).endpoint.name for _ in range(5)}
    assert len(owners) == 1


def test_a_departed_endpoint_leaves_nothing_behind() -> None:
    chooser = Chooser(clock=Clock())
    for number in range(30):
        finish(chooser, chosen(chooser, ABC, question(text(8000, number))))
    chooser.retain([])
    assert chooser.index.used_bytes == 0
    assert not chooser._works


def test_another_engine_under_the_same_name_has_nothing_cached() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock)
    prompt = text(20_000, "p")
    before = chosen(chooser, ABC, question(prompt))
    finish(chooser, before, Usage(5000, 0, 5), seconds=1.0, clock=clock)
    name = before.endpoint.name
    renewed = tuple(endpoint(e.name, "other") if e.name == name else e for e in ABC)
    ticket = chosen(chooser, renewed, question(prompt))
    assert isinstance(ticket, Choice)
    assert ticket.cached_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=80))
def test_whatever_happens_all_that_is_counted_is_given_back(steps: list[tuple[int, int, bool]]) -> None:
    clock = Clock()
    chooser = Chooser(clock=clock)
    running: list[Ticket] = []
    for action, number, flag in steps:
        clock.now += 0.05 * number
        if action <= 1 or not running:
            running.append(chosen(chooser, ABC, question(text(3000, 0) + text(2000 * number, number))))
        elif action == 2:
            chooser.first_token(running[number % len(running)])
        else:
            ticket = running.pop(number % len(running))
            chooser.end(ticket)
            if flag:
                chooser.learn(ticket, Usage(1000, 10, 20), clock.now)
            else:
                chooser.drop(ticket, gone=number == 5)
    assert sum(chooser.in_flight(e.name) for e in ABC) == len(running)
    for ticket in running:
        chooser.end(ticket)
        chooser.drop(ticket)
    for work in chooser._works.values():
        assert (work.in_flight, len(work.waiting), len(work.cache.pinned)) == (0, 0, 0)
        assert work.waiting_seconds == 0.0
        assert work.context_tokens == pytest.approx(0.0, abs=1e-6)
    chooser.retain([])
    assert chooser.index.used_bytes == 0


def test_the_speed_of_an_engine_is_what_was_learned_and_unknown_before() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock)
    assert chooser.speed(A) == SpeedReport(None, None)
    finish(chooser, chosen(chooser, (A, B), question()))
    assert chooser.speed(A) == SpeedReport(None, None), "a prior is no speed"
    for number in range(40):
        ticket = chosen(chooser, (A, B), question(text(40_000, number)))
        clock.now += 2.0
        chooser.first_token(ticket)
        clock.now += 4.0
        chooser.end(ticket)
        chooser.learn(ticket, Usage(10_000, 0, 201), clock.now)
    for each in (A, B):
        speed = chooser.speed(each)
        assert speed.prefill_tokens_per_second == pytest.approx(5_000, rel=0.1)
        assert speed.decode_tokens_per_second == pytest.approx(50, rel=0.1), "of one request alone, since there is none"
    ticket = chosen(chooser, (A, B), question(text(40_000, "last")))
    other = chosen(chooser, (ticket.endpoint,), question())
    both = chooser.speed(ticket.endpoint).decode_tokens_per_second
    assert both is not None and both > 60, "two together are faster"
    finish(chooser, other)
    assert chooser.speed(replace(A, uid="another")) == SpeedReport(None, None)
    assert chooser.speed(C) == SpeedReport(None, None)


def test_a_pool_that_was_slow_once_is_tried_again() -> None:
    """A pool of one engine has nobody else to learn from: what made it slow may be over, and only a request can tell."""
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    pools = (endpoint("a", "first"), endpoint("b", "second"))

    def ask(number: int, slower: float) -> str:
        ticket = chosen(chooser, pools, question(text(20_000, number)))
        assert isinstance(ticket, Choice)
        took = slower if ticket.endpoint.name == "b" else 1.0
        clock.now += 0.5 * took
        chooser.first_token(ticket)
        clock.now += 1.2 * took
        chooser.end(ticket)
        chooser.learn(ticket, Usage(5000, 0, 100), clock.now)
        clock.now += 2.0
        return ticket.endpoint.name

    before = [ask(number, 1.0) for number in range(30)]
    slow = [ask(number, 30.0) for number in range(100, 160)]
    assert before.count("b") > 8
    assert slow[-20:].count("b") <= 2
    well = [ask(number, 1.0) for number in range(200, 600)]
    assert well[-30:].count("b") > 8
