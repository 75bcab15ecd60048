from __future__ import annotations

import pytest

from serving.replay.profile import Objectives
from serving.replay.report import Check, Found, Stage
from serving.replay.search import carries, is_growing, resolution, search, search_faults
from tests.replay.stages import a_stage

OBJECTIVES = Objectives(ttft_seconds=1.0, share=0.9)


def engine_of(capacity: float, tried: list[float]) -> object:
    async def run(rate: float) -> Stage:
        tried.append(rate)
        return a_stage(offered=rate, good_share=1.0 if rate <= capacity else 0.2, finished_rate=min(rate, capacity))

    return run


@pytest.mark.parametrize("capacity", [0.4, 1.0, 17.3, 900.0])
@pytest.mark.parametrize("start", [1.0, 50.0])
async def test_a_known_capacity_is_found(capacity: float, start: float) -> None:
    tried: list[float] = []
    stages, found = await search(engine_of(capacity, tried), OBJECTIVES, start=start, precision=0.03)  # type: ignore[arg-type]
    assert found.requests_per_second is not None
    assert found.failed_at is not None
    assert found.requests_per_second <= capacity < found.failed_at <= found.requests_per_second * 1.03
    assert [stage.offered for stage in stages] == sorted(tried)
    assert search_faults(stages, found) == []


async def test_requests_that_pile_up_are_not_carried_although_they_were_fast() -> None:
    async def run(rate: float) -> Stage:
        return a_stage(offered=rate, good_share=1.0, finished_rate=min(rate, 10.0))

    _, found = await search(run, OBJECTIVES, start=4.0, precision=0.03)
    assert found.requests_per_second is not None
    assert found.requests_per_second <= 10 / 0.9 < (found.failed_at or 0)


async def test_what_never_meets_the_objectives_is_said() -> None:
    async def run(rate: float) -> Stage:
        return a_stage(offered=rate, good_share=0.0, finished_rate=rate)

    stages, found = await search(run, OBJECTIVES, start=4.0, precision=0.03)
    assert search_faults(stages, found) == ["no rate that was tried meets the objectives"]


def test_a_client_that_lagged_where_the_engine_seemed_to_fail_spoils_the_search() -> None:
    lagged = Check(name="client's lag", passed=False, said="the client lags")
    broken = Check(name="errors", passed=False, said="many failed")
    stages = [a_stage(offered=4.0), a_stage(offered=8.0, checks=(lagged, broken))]
    found = Found(requests_per_second=4.0, failed_at=8.0, precision=0.03)
    assert search_faults(stages, found) == ["8 requests/s, poisson: the client lags"]
    stages = [a_stage(offered=4.0, checks=(broken,)), a_stage(offered=8.0)]
    assert search_faults(stages, found) == ["4 requests/s, poisson: many failed"]


def growing_stage(growth: float, scatter: float) -> Stage:
    stage = a_stage(count=100)
    took = tuple(1.0 + at * growth + (scatter if number % 2 else -scatter) for number, at in enumerate(stage.columns.intended))
    return stage.model_copy(update={"columns": stage.columns.model_copy(update={"e2e": took})})


def test_a_queue_that_grows_is_seen_before_it_hurts() -> None:
    assert is_growing(growing_stage(0.03, 0.02))
    assert not is_growing(growing_stage(0.0, 0.02))
    assert not is_growing(growing_stage(0.005, 0.0))
    assert not is_growing(growing_stage(0.03, 0.5))  # scatter
    assert not carries(growing_stage(0.03, 0.02), OBJECTIVES)


def test_how_exact_a_search_can_be() -> None:
    assert resolution(Objectives(ttft_seconds=0.5, e2e_seconds=2.0), 10.0) == pytest.approx(0.05)
    assert resolution(Objectives(tpot_seconds=0.5), 10.0) == 0.0
