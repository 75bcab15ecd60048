"""The probes find the rates of an engine whose rates are known: a simulated one. And the figures on real ones."""

from __future__ import annotations

import asyncio
import random

import pytest

from serving.core.errors import ConfigurationError
from serving.sim.calibrate import Probes, calibrate, fit
from serving.sim.probe import look
from serving.sim.rates import Rates
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.simulated_engine import simulated_engine

RATES = Rates(
    prefill_tokens_per_second=8000.0, step_seconds=0.01, step_seconds_per_sequence=0.004, step_seconds_per_context_token=1e-6
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


async def test_the_rates_of_a_simulated_engine_are_found() -> None:
    async with simulated_engine(rates=RATES) as engine:
        facts = await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
        assert (facts.model, facts.max_model_len, facts.block_tokens, facts.kv_capacity_tokens) == ("tiny", 4096, 128, 762 * 128)
        probes = Probes(rounds=2, answer_tokens=12)
        found = await asyncio.to_thread(calibrate, facts, probes, report=lambda line: None)
    # A busy machine makes single events late; what is held here is that each rate is seen as the one it is.
    assert found.bytes_per_token == 1 and found.kv_capacity_tokens == 762 * 128
    assert found.step_seconds == pytest.approx(RATES.step_seconds, rel=0.6)
    assert found.step_seconds_per_sequence == pytest.approx(RATES.step_seconds_per_sequence, rel=0.5)
    assert found.prefill_tokens_per_second == pytest.approx(RATES.prefill_tokens_per_second, rel=0.5)


async def test_what_is_no_vllm_is_said() -> None:
    async with ScriptedEngine() as engine:
        with pytest.raises(ConfigurationError, match="cache_config_info"):
            await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
    with pytest.raises(ConfigurationError, match="Connection refused"):
        await asyncio.to_thread(look, engine.url, max_num_batched_tokens=2048)
    with pytest.raises(ConfigurationError, match="must be like"):
        await asyncio.to_thread(look, "ftp://x", max_num_batched_tokens=2048)
