"""The probes find the rates of an engine whose rates are known: a simulated one. And the figures on real ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from serving.core.errors import ConfigurationError
from serving.sim.calibrate import AskAll, Probes, calibrate, fit, over_http
from serving.sim.probe import EngineFacts, Stream, look
from serving.sim.rates import Rates
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.simulated_engine import simulated_engine
from tests.sim.virtual import BLOCK, Run, engine_model

RATES = Rates(
    prefill_tokens_per_second=8000.0,
    step_seconds=0.01,
    step_seconds_per_sequence=0.004,
    step_seconds_per_context_token=1e-6,
    prefill_seconds_per_token_pair=5e-8,
    request_seconds=0.02,
)


def test_least_squares_leaves_out_what_would_be_negative() -> None:
    rows = [(1.0, x, x * x) for x in range(6)]
    assert fit(rows, [3 + 2 * x + 0.5 * x * x for x in range(6)]) == pytest.approx([3, 2, 0.5])
    found = fit(rows, [3 + 2 * x - 0.05 * x * x for x in range(6)])
    assert found[2] == 0.0 and found[1] == pytest.approx(1.75, rel=0.05)


def test_noise_hardly_moves_it() -> None:
    chance = random.Random(1)
    rows = [(1.0, batch, batch * context) for batch in (1, 4, 8) for context in (30, 800)]
    values = [(0.005 + 0.0005 * b + 3e-7 * c) * chance.uniform(0.98, 1.02) for _, b, c in rows]
    step, per_sequence, per_context_token = fit(rows, values)
    assert step == pytest.approx(0.005, rel=0.1)
    assert per_sequence == pytest.approx(0.0005, rel=0.3) and per_context_token == pytest.approx(3e-7, rel=0.2)


def in_virtual_time(run: Run) -> AskAll:
    def ask_all(prompts: Sequence[str], answer_tokens: int) -> list[Stream]:
        seen = [run.send(prompt, answer_tokens) for prompt in prompts]
        run.out()
        return [
            Stream(
                token_seconds=[moment - one.sent for moment in one.tokens],
                prompt_tokens=one.sequence.prompt_tokens,
                completion_tokens=answer_tokens,
            )
            for one in seen
        ]

    return ask_all


def test_the_rates_of_a_simulated_engine_are_found() -> None:
    run = Run(engine_model(RATES, max_num_batched_tokens=2048, capacity_tokens=100_000))
    facts = EngineFacts("http://virtual", "tiny", 4096, BLOCK, 100_000, 2048)
    found = calibrate(facts, Probes(), report=lambda line: None, ask_all=in_virtual_time(run))
    assert found.step_seconds == pytest.approx(RATES.step_seconds, rel=0.05)
    assert found.step_seconds_per_sequence == pytest.approx(RATES.step_seconds_per_sequence, rel=0.05)
    assert found.step_seconds_per_context_token == pytest.approx(RATES.step_seconds_per_context_token, rel=0.1)
    assert found.prefill_tokens_per_second == pytest.approx(RATES.prefill_tokens_per_second, rel=0.05)
    assert found.prefill_seconds_per_token_pair == pytest.approx(RATES.prefill_seconds_per_token_pair, rel=0.1)
    assert found.request_seconds == pytest.approx(RATES.request_seconds, rel=0.1)
    assert (found.bytes_per_token, found.kv_capacity_tokens, found.block_tokens) == (1, 100_000, BLOCK)


async def test_an_engine_is_looked_at_and_asked_over_http() -> None:
    async with simulated_engine() as engine:
        facts = await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
        assert (facts.model, facts.max_model_len, facts.block_tokens, facts.kv_capacity_tokens) == ("tiny", 4096, 128, 762 * 128)
        seen = await asyncio.to_thread(over_http(facts), ["ab", "abc"], 4)
        assert [(one.prompt_tokens, one.completion_tokens, len(one.token_seconds)) for one in seen] == [(2, 4, 4), (3, 4, 4)]
        assert all(one.token_seconds == sorted(one.token_seconds) and one.total_seconds >= one.token_seconds[-1] for one in seen)


async def test_what_is_no_vllm_is_said() -> None:
    async with ScriptedEngine() as engine:
        with pytest.raises(ConfigurationError, match="cache_config_info"):
            await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
    with pytest.raises(ConfigurationError, match="Connection refused"):
        await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
    with pytest.raises(ConfigurationError, match="must be like"):
        await asyncio.to_thread(look, "ftp://x", max_num_batched_tokens=2048)
