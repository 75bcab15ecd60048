"""The production profile, scaled down, on a real vLLM: the cached share is the wanted one, or the run says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.replay.shelf import load_profiles
from serving.settings import catalog_dir
from tests.doubles.real_engine import RealEngine, running_engine
from tests.doubles.tiny_model import tiny_model
from tests.flow.test_replay import faults, run

pytestmark = pytest.mark.engine

SCALED = {"scale": 0.1, "concurrencies": (4,), "settle_seconds": 3.0, "measure_seconds": 25.0}


async def test_production_is_cached_as_wanted_and_exact(real_engine: RealEngine) -> None:
    report = await run(real_engine.url, load_profiles(catalog_dir())["production"], **SCALED)
    assert faults(report) == {}
    assert report.simulated is None
    (stage,) = report.stages
    assert stage.cached_share == pytest.approx(0.6, abs=0.02)
    assert stage.engine_cached_share == pytest.approx(0.6, abs=0.02)
    assert set(stage.columns.prompt_tokens) == {2000}
    assert set(stage.columns.output_tokens) == {100}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--no-enable-prefix-caching"], "prefix caching off"),
        # 8,192 tokens; eight beginnings of 1,200 do not fit.
        (["--kv-cache-memory-bytes", "16800000"], "the cache is too small"),
    ],
)
async def test_an_engine_that_cannot_cache_makes_the_run_invalid(tmp_path: Path, arguments: list[str], why: str) -> None:
    with running_engine(tiny_model(), tmp_path / "engine.log", arguments) as engine:
        report = await run(engine.url, load_profiles(catalog_dir())["production"], **SCALED)
    assert why in faults(report)["cached share"]
    assert not report.is_valid
