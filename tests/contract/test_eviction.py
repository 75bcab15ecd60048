"""The prefix cache under pressure: the same requests, one after another, find the same tokens cached as in a real engine.

The cache holds far less than the requests bring, so each figure depends on what was evicted before, block by block.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from serving.sim.probe import look
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import running_engine
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.tiny_model import tiny_model

CACHE_BYTES = 17_000_000
"""Some 8,000 tokens of the tiny model."""
REQUESTS = 60


async def cached_tokens(url: str) -> list[int]:
    """Of each request: new texts, texts that come again, and conversations that go on with the engine's own answer."""
    chance = random.Random(5)
    texts = ["".join(chance.choices("abcdefgh", k=chance.randrange(200, 1800))) for _ in range(14)]
    found = []
    conversation = ""
    for number in range(REQUESTS):
        prompt = conversation + "more" if number % 4 == 3 else chance.choice(texts) + f"{number}" * chance.randrange(60)
        body = {"prompt": prompt[:3500], "max_tokens": chance.choice((4, 150, 300)), "temperature": 0, "ignore_eos": True}
        answer = (await ask(url, "/v1/completions", body)).json
        conversation = prompt[:3500] + answer["choices"][0]["text"]
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return found


async def test_the_cache_is_under_pressure() -> None:
    async with simulated_engine(capacity_blocks=64, speed=100.0) as small, simulated_engine(speed=100.0) as large:
        found, ample = await cached_tokens(small.url), await cached_tokens(large.url)
        assert 0 < sum(found) < 0.7 * sum(ample)
        assert small.models[0].pool.evicted_blocks > 100


@pytest.mark.engine
async def test_the_same_tokens_are_cached_as_in_a_real_engine(tmp_path: Path) -> None:
    with running_engine(tiny_model(), tmp_path / "log", ["--kv-cache-memory-bytes", str(CACHE_BYTES)]) as real:
        facts = look(real.url, max_num_batched_tokens=2048)
        theirs = await cached_tokens(real.url)
    blocks = facts.kv_capacity_tokens // facts.block_tokens
    async with simulated_engine(capacity_blocks=blocks, speed=100.0) as simulated:
        ours = await cached_tokens(simulated.url)
    assert ours == theirs
