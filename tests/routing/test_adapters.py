"""LoRA adapters: where one is loaded, what loading it elsewhere costs, and that prompts are cached for each of them apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from serving.core.context import RequestContext, Usage
from serving.core.routes import ROUTES
from serving.fleet.engine_load import EngineLoad, read_load
from serving.fleet.store import Endpoint
from serving.routing.adapters import AdapterSlots
from serving.routing.chain import chain_of
from serving.routing.choose import Chooser
from serving.routing.predict import ADAPTER_SECONDS, Mean
from serving.routing.question import Question, question_of
from serving.routing.work import Choice
from tests.routing.asking import Clock, endpoints, text

AB = endpoints(2)


def slots(count: int = 1) -> AdapterSlots:
    made = AdapterSlots(Mean(0.5))
    made.hear(count, ())
    return made


def test_what_is_loaded_costs_nothing_and_what_is_not_its_load() -> None:
    made = slots(2)
    assert made.seconds("x", 10.0) == 0.5
    made.begin("x")
    assert (made.seconds("x", 10.0), made.seconds("y", 10.0)) == (0.0, 0.5)
    made.end("x")
    assert made.seconds("x", 10.0) == 0.0, "it stays until another one needs its slot"


def test_the_one_used_longest_ago_goes_first_and_none_that_is_in_use() -> None:
    made = slots(2)
    for adapter in ("x", "y"):
        made.begin(adapter)
        made.end(adapter)
    made.begin("x")
    made.begin("z")
    assert [made.has(each) for each in "xyz"] == [True, False, True]
    made.begin("y")
    assert not made.has("y"), "both slots are in use"


def test_while_all_slots_are_in_use_a_request_waits_for_the_one_that_is_free_first() -> None:
    made = slots(2)
    for adapter in ("x", "x", "x", "y"):
        made.begin(adapter)
    assert made.seconds("z", 12.0) == 0.5 + 12.0 / 2
    made.begin("z")
    assert made.seconds("w", 12.0) == 0.5 + 12.0 / 2 + 12.0, "one is ahead of it"
    made.end("y")
    assert made.has("z") and not made.has("y")
    made.end("z")
    for _ in range(3):
        made.end("x")
    assert made.seconds("w", 12.0) == 0.5


def test_one_that_leaves_while_it_waits_is_not_counted_on() -> None:
    made = slots()
    made.begin("x")
    made.begin("y")
    made.end("y")
    made.end("x")
    assert made.has("x") and not made.has("y")
    made.end("never")


def test_what_the_engine_runs_for_others_is_loaded() -> None:
    made = slots(2)
    made.begin("mine")
    made.hear(2, {"theirs"})
    assert made.has("mine") and made.has("theirs")
    made.hear(1, ())
    assert made.has("mine") and not made.has("theirs")


def test_after_a_restart_only_what_is_under_way_is_there() -> None:
    made = slots(3)
    for adapter in ("x", "y"):
        made.begin(adapter)
    made.end("x")
    made.forget()
    assert (made.has("x"), made.has("y")) == (False, True)


def asked(
    chooser: Chooser, model: str, size_bytes: int = 400, candidates: tuple[Endpoint, ...] = AB, words: object = "all the same"
) -> Choice:
    prompt = text(size_bytes, words)
    question = Question(model, "t", chain_of(prompt, hash(model) & 0xFFFF), size_bytes, 0, 50)
    ticket = chooser.choose(model, candidates, (), lambda: question, size_bytes=size_bytes)
    assert isinstance(ticket, Choice)
    chooser.begin(ticket)
    return ticket


def finished(chooser: Chooser, choice: Choice, clock: Clock, first_seconds: float = 0.05) -> None:
    clock.now += first_seconds
    chooser.first_token(choice)
    clock.now += 0.5
    chooser.end(choice)
    chooser.learn(choice, Usage(choice.question.text_bytes // 4, 0, 40), clock.now)


def test_requests_go_where_their_adapter_is_loaded_however_small_they_are() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    places: dict[str, Counter[str]] = {"sql": Counter(), "poet": Counter()}
    for _ in range(20):
        for model, places_of in places.items():
            choice = asked(chooser, model)
            places_of[choice.endpoint.name] += 1
            finished(chooser, choice, clock)
    assert [len(each) for each in places.values()] == [1, 1]
    assert places["sql"].keys() != places["poet"].keys()


@pytest.mark.parametrize("with_peers", [False, True])
def test_what_loading_takes_is_learned_and_says_nothing_of_prefill(with_peers: bool) -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    if with_peers:
        chooser.join(silence_seconds=1.0)
    names = ["a", "b", "c", "d", "e", "f"]
    prefill = asked(chooser, "m", 8000)
    finished(chooser, prefill, clock)
    before = prefill.work.rates.prefill_seconds
    for name in names:
        finished(chooser, asked(chooser, name, 8000), clock, first_seconds=2.0)
    rates = prefill.work.rates
    rates.refresh(0.0)
    assert prefill.work.adapters.load_seconds.value > 5 * ADAPTER_SECONDS
    assert rates.prefill_seconds < 1.5 * before


def test_a_load_that_is_dear_is_waited_out_where_the_adapter_is() -> None:
    """It moves to the other engine when its own is so busy that the load is the smaller evil."""
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    home = asked(chooser, "sql")
    finished(chooser, home, clock, first_seconds=0.5)
    spread = [asked(chooser, "sql", 8000, words=number) for number in range(20)]
    taken = Counter(choice.endpoint.name for choice in spread)
    assert taken[home.endpoint.name] > 1
    assert len(taken) == 2, "not all of them wait at one engine while the other is idle"
    assert spread[1].endpoint is home.endpoint


def test_a_request_that_waits_for_a_slot_holds_up_no_prefill() -> None:
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1)
    first = asked(chooser, "sql", candidates=AB)
    elsewhere = [e for e in AB if e is not first.endpoint]
    held = asked(chooser, "poet", candidates=(first.endpoint, *elsewhere))
    assert held.endpoint is not first.endpoint
    third = asked(chooser, "wise", 4000)
    work = third.work
    assert not work.adapters.has("wise")
    assert third not in work.waiting
    clock.now += 30.0
    assert work.wait_seconds(clock.now) < 31.0
    chooser.first_token(third)
    chooser.end(third)
    chooser.drop(third)
    for choice in (first, held):
        chooser.first_token(choice)
        chooser.end(choice)
        chooser.drop(choice)
    assert all(not each.waiting and each.context_tokens == pytest.approx(0.0, abs=1e-6) for each in chooser._works.values())


def test_prompts_of_an_adapter_are_cached_apart_from_its_models() -> None:
    chains = []
    for model in ("m", "sql"):
        ctx = RequestContext("r", next(route for route in ROUTES.values() if route.path == "/v1/chat/completions"), None, 0.0)
        ctx.model, ctx.document = model, {"messages": [{"role": "user", "content": "x" * 2000}]}
        ctx.body_bytes = 2100
        chains.append(question_of(ctx, None).chain)
    assert chains[0] and not set(chains[0]) & set(chains[1])


def heard(adapters: str, most: int = 2) -> EngineLoad:
    load = read_load(
        b'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'
        + f'vllm:lora_requests_info{{max_lora="{most}",running_lora_adapters="{adapters}"}} 5\n'.encode(),
        0.0,
    )
    assert load is not None
    return replace(load, read_at=0.0)


@pytest.mark.parametrize("place", [0, 1])
def test_an_adapter_that_runs_for_other_gateways_draws_requests(place: int) -> None:
    for name in ("a", "b", "c", "d"):
        chooser = Chooser(clock=Clock(), seed=1)
        chooser.hear(AB[place], heard(name), 0)
        assert asked(chooser, name).endpoint is AB[place]
