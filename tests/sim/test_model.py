"""The engine in virtual time: each moment is computed by hand from the rates."""

from __future__ import annotations

import pytest

from serving.sim.model import QueueFull
from serving.sim.rates import Rates
from tests.sim.virtual import BLOCK, RATES, Run, engine_model

NEAR = {"rel": 1e-9, "abs": 1e-9}


def test_a_prompt_is_computed_and_then_a_token_comes_each_step() -> None:
    run = Run(engine_model())
    seen = run.send(100, answer_tokens=3)
    run.out()
    assert seen.tokens == pytest.approx([0.01 + 0.1, 0.12, 0.13], **NEAR)
    assert (seen.ended, seen.ended_at) == ("length", seen.tokens[-1])
    assert run.model.next_seconds is None and run.model.pool.used_blocks == 0 and run.model.unfinished == 0


def test_a_long_prompt_is_cut_into_the_budget() -> None:
    run = Run(engine_model(max_num_batched_tokens=100))
    seen = run.send(250, answer_tokens=1)
    run.out()
    assert seen.ttft == pytest.approx(3 * 0.01 + 0.25, **NEAR)


def test_running_requests_get_their_token_while_a_prompt_is_computed() -> None:
    run = Run(engine_model(max_num_batched_tokens=101))
    first = run.send(1, answer_tokens=20)
    run.until(0.05)
    second = run.send(300, answer_tokens=1)
    run.out()
    assert len([moment for moment in first.tokens if second.sent < moment <= second.tokens[0]]) >= 3


def test_an_engine_that_schedules_ahead_takes_a_request_a_step_later() -> None:
    firsts = []
    for ahead in (False, True):
        run = Run(engine_model(Rates(1e9, 0.01), schedules_ahead=ahead))
        run.send(1, answer_tokens=50)
        run.until(0.015)
        firsts.append(run.send(1, answer_tokens=1))
        run.out()
    assert [one.ttft for one in firsts] == pytest.approx([0.015, 0.025], abs=1e-6)
    run = Run(engine_model(Rates(1e9, 0.01), schedules_ahead=True))
    alone = run.send(1, answer_tokens=1)
    run.until(0.005)
    last = run.send(1, answer_tokens=1)
    run.out()
    assert [alone.ttft, last.ttft] == pytest.approx([0.01, 0.015], abs=1e-6)


def test_a_step_costs_more_with_its_sequences_and_their_context() -> None:
    rates = Rates(1e9, 0.01, step_seconds_per_sequence=0.001, step_seconds_per_context_token=0.0001)
    run = Run(engine_model(rates))
    alone = run.send(50, answer_tokens=3)
    run.out()
    gaps = [later - earlier for earlier, later in zip(alone.tokens, alone.tokens[1:], strict=False)]
    assert gaps == pytest.approx([0.01 + 0.001 + 50 * 0.0001, 0.01 + 0.001 + 51 * 0.0001], **NEAR)
    both = [run.send(50, answer_tokens=3) for _ in range(2)]
    run.out()
    assert both[0].tokens[1] - both[0].tokens[0] == pytest.approx(0.01 + 2 * (0.001 + 50 * 0.0001), **NEAR)


def test_attention_makes_long_prompts_slower_than_their_length() -> None:
    rates = Rates(1000.0, 0.01, prefill_seconds_per_token_pair=1e-5)
    run = Run(engine_model(rates, max_num_batched_tokens=100))
    seen = run.send(200, answer_tokens=1)
    run.out()
    assert seen.ttft == pytest.approx(0.02 + 0.2 + 1e-5 * 200 * 200 / 2, **NEAR)


def test_a_request_has_a_way_in_and_a_way_back() -> None:
    run = Run(engine_model(Rates(1000.0, 0.01, request_seconds=0.1)))
    seen = run.send(10, answer_tokens=2)
    run.out()
    assert seen.tokens == pytest.approx([0.1 + 0.02, 0.1 + 0.03], **NEAR)
    assert seen.ended == "length"


def test_a_repeated_prompt_costs_only_its_rest() -> None:
    run = Run(engine_model())
    text = "a" * 100
    cold = run.send(text, answer_tokens=1)
    run.out()
    warm = run.send(text, answer_tokens=1)
    run.out()
    full = 100 // BLOCK * BLOCK
    assert (cold.sequence.cached_tokens, warm.sequence.cached_tokens) == (0, full)
    assert (cold.sequence.created_cache_tokens, warm.sequence.created_cache_tokens) == (full, 0)
    assert warm.ttft == pytest.approx(0.01 + (100 - full) / 1000, **NEAR)
    facts = run.model.facts
    assert (facts.prefix_queries, facts.prefix_hits, facts.prompt_tokens, facts.cached_prompt_tokens) == (200, full, 200, full)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    run = Run(engine_model())
    for _ in range(2):
        seen = run.send("b" * BLOCK * 4, answer_tokens=1)
        run.out()
    assert seen.sequence.cached_tokens == BLOCK * 3


def test_an_answer_is_held_too_so_that_the_next_turn_finds_it() -> None:
    run = Run(engine_model())
    first = run.send("c" * 40, answer_tokens=60)
    run.out()
    said = first.sequence.answer(0, 60)
    second = run.send(b"c" * 40 + said + b"next", answer_tokens=1)
    run.out()
    assert second.sequence.cached_tokens == 99 // BLOCK * BLOCK


def test_salts_and_adapters_keep_prompts_apart() -> None:
    run = Run(engine_model(max_loras=2))
    kinds = [{"salt": "one"}, {"salt": "two"}, {"adapter": "x"}, {}, {"salt": "one"}]
    cached = []
    for kind in kinds:
        seen = run.send("d" * 64, answer_tokens=1, **kind)
        run.out()
        cached.append(seen.sequence.cached_tokens)
    assert cached == [0, 0, 0, 0, 48]


def test_only_so_many_run_at_once() -> None:
    run = Run(engine_model(max_num_seqs=2))
    seen = [run.send(10, answer_tokens=5) for _ in range(3)]
    run.until(0.03)
    assert (run.model.running, run.model.waiting) == (2, 1)
    run.out()
    assert seen[2].tokens[0] > seen[0].tokens[-1]


def test_without_room_the_last_one_starts_again_later_and_all_are_answered() -> None:
    run = Run(engine_model(capacity_tokens=BLOCK * 8))
    seen = [run.send(BLOCK * 3, answer_tokens=40) for _ in range(2)]
    run.out()
    assert [len(one.tokens) for one in seen] == [40, 40]
    assert run.model.facts.preemptions >= 1
    assert (seen[0].sequence.preemptions, seen[1].sequence.preemptions > 0) == (0, True)
    assert run.model.pool.used_blocks == 0


def test_a_request_waits_until_all_of_its_prompt_has_room() -> None:
    run = Run(engine_model(capacity_tokens=BLOCK * 10, max_num_batched_tokens=BLOCK))
    first = run.send(BLOCK * 6, answer_tokens=2)
    second = run.send(BLOCK * 5, answer_tokens=2)
    run.out()
    assert second.tokens[0] > first.tokens[-1] and run.model.facts.preemptions == 0


def test_priority_comes_before_arrival_where_the_engine_is_told_so() -> None:
    for by_priority, first in ((True, 2), (False, 1)):
        run = Run(engine_model(max_num_seqs=1, by_priority=by_priority))
        seen = [run.send(10, answer_tokens=5, priority=priority) for priority in (0, 5, 1)]
        run.out()
        assert min((1, 2), key=lambda number: seen[number].tokens[0]) == first


def test_full_queues_refuse_and_count() -> None:
    run = Run(engine_model(max_num_queued_reqs=2))
    run.send(10), run.send(10)
    with pytest.raises(QueueFull):
        run.send(10)
    run.out()
    run.send(10)
    assert run.model.facts.rejections == {"max_num_queued_reqs": 1}
    run = Run(engine_model(max_num_queued_tokens=50))
    run.send(60)
    with pytest.raises(QueueFull):
        run.send(1)
    run.out()
    run.send(1)
    assert run.model.facts.rejections == {"max_num_queued_tokens": 1}


def test_adapters_wait_for_a_slot_and_do_not_hold_others_up() -> None:
    run = Run(engine_model(max_loras=1))
    names = ("x", "y", None)
    seen = {name: run.send(10, answer_tokens=5, adapter=name) for name in names}
    run.until(0.005)
    assert [s.adapter for s in run.model.scheduler.running] == ["x", None] and run.model.scheduler.deferred == 1
    run.out()
    assert seen["y"].tokens[0] > seen["x"].tokens[-1] > seen[None].tokens[0]


def test_an_adapter_that_has_no_slot_is_loaded_and_the_one_used_longest_ago_goes() -> None:
    rates = Rates(1e9, 0.01, adapter_seconds=0.5)
    run = Run(engine_model(rates, max_loras=2))
    waited = []
    for name in ("x", "x", "y", None, "x", "z", "x", "y"):
        seen = run.send(10, answer_tokens=1, adapter=name)
        run.out()
        waited.append(round(seen.ttft, 2))
    assert waited == [0.51, 0.01, 0.51, 0.01, 0.01, 0.51, 0.01, 0.51]


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.155])
def test_who_leaves_frees_all_it_had_in_every_phase(moment: float) -> None:
    run = Run(engine_model())
    other = run.send(5, answer_tokens=30)
    seen = run.send(100, answer_tokens=50)
    run.until(moment)
    run.model.abort(seen.sequence, run.now)
    assert seen.ended == "abort"
    told = len(seen.tokens)
    run.out()
    assert (len(seen.tokens), len(other.tokens)) == (told, 30)
    assert run.model.pool.used_blocks == 0 and run.model.unfinished == 0 and run.model.prefill_backlog_tokens == 0
    assert run.model.facts.finished == {"abort": 1, "length": 1}


def test_a_hung_engine_stands_still_and_goes_on_later() -> None:
    run = Run(engine_model())
    seen = run.send(10, answer_tokens=3)
    run.until(0.025)
    run.model.is_hung = True
    run.until(5.0)
    assert len(seen.tokens) == 1 and run.model.next_seconds is None
    run.model.resume(run.now)
    run.out()
    assert len(seen.tokens) == 3 and seen.tokens[1] == pytest.approx(5.0, **NEAR)


def test_a_slow_engine_takes_so_many_times_as_long() -> None:
    run = Run(engine_model())
    run.model.slow_factor = 3.0
    seen = run.send(100, answer_tokens=2)
    run.out()
    assert seen.tokens == pytest.approx([0.33, 0.36], **NEAR)


def test_speculation_yields_several_tokens_a_step_on_average() -> None:
    run = Run(engine_model(Rates(1e6, 0.01, tokens_per_step=2.5), seed=3))
    seen = run.send(10, answer_tokens=500)
    run.out()
    steps = len(set(seen.tokens))
    assert len(seen.tokens) == 500 and 500 / steps == pytest.approx(2.5, rel=0.1)
    assert run.model.facts.accepted_tokens == pytest.approx(1.5 * run.model.facts.drafts, rel=0.1)


def test_chance_comes_from_the_seed_alone() -> None:
    moments = []
    for seed in (1, 1, 2):
        run = Run(engine_model(Rates(1000.0, 0.01, jitter=0.2), seed=seed))
        moments.append(run.send(10, answer_tokens=20).tokens)
        run.out()
    assert moments[0] == moments[1] != moments[2]


def test_what_is_timed_is_what_the_client_saw() -> None:
    run = Run(engine_model())
    seen = run.send(100, answer_tokens=5)
    run.out()
    found = {name.removeprefix("vllm:"): histogram.total for name, histogram in run.model.facts.histograms.items()}
    assert found["time_to_first_token_seconds"] == pytest.approx(seen.ttft, **NEAR)
    assert found["e2e_request_latency_seconds"] == pytest.approx(seen.total, **NEAR)
    assert found["inter_token_latency_seconds"] == pytest.approx(0.04, **NEAR)
    assert found["request_decode_time_seconds"] == pytest.approx(0.04, **NEAR)
    assert found["request_prefill_time_seconds"] == pytest.approx(0.11, **NEAR)
    assert (found["request_prompt_tokens"], found["request_generation_tokens"], found["iteration_tokens_total"]) == (100, 5, 105)


def test_idle_engines_have_nothing_to_wake_up_for() -> None:
    assert engine_model(RATES).next_seconds is None
