"""The highest rate that meets the objectives: doubling until one fails, then halving the distance."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from serving.replay.profile import Objectives
from serving.replay.report import Found, Stage

_MOST_STAGES = 30
_LEAST_POINTS = 20
_GROWTH = 0.015
"""Seconds that latency grows a second: above the capacity, the share of what is offered that is too much."""
_GROWTH_EXPLAINS = 0.5
"""Of the latencies' variance; less is scatter."""
_CARRIED_SHARE = 0.9
"""Of the offered requests must end within the window, or they only pile up."""

RunStage = Callable[[float], Awaitable[Stage]]


def carries(stage: Stage, objectives: Objectives) -> bool:
    """Whether the engine carries this rate."""
    if stage.good_share is None or stage.good_share < objectives.share or is_growing(stage):
        return False
    return (stage.requests_per_second.value or 0.0) >= _CARRIED_SHARE * stage.offered_requests_per_second


def is_growing(stage: Stage) -> bool:
    """Whether requests took steadily longer over the window: a queue that has not yet hurt, since there was no time for it."""
    columns = stage.columns
    points = [(at, took) for at, took in zip(columns.intended, columns.e2e, strict=True) if took is not None]
    if len(points) < _LEAST_POINTS:
        return False
    middle_at = sum(at for at, _ in points) / len(points)
    middle_took = sum(took for _, took in points) / len(points)
    spread_at = sum((at - middle_at) ** 2 for at, _ in points)
    spread_took = sum((took - middle_took) ** 2 for _, took in points)
    together = sum((at - middle_at) * (took - middle_took) for at, took in points)
    if not spread_at or not spread_took:
        return False
    return together / spread_at > _GROWTH and together**2 / (spread_at * spread_took) > _GROWTH_EXPLAINS


def resolution(objectives: Objectives, seconds: float) -> float:
    """The share above the capacity at which a queue that begins empty has just filled an objective's time at the window's end."""
    bounds = [bound for bound in (objectives.ttft_seconds, objectives.e2e_seconds) if bound is not None]
    return min(bounds, default=0.0) / seconds


async def search(run: RunStage, objectives: Objectives, *, start: float, precision: float) -> tuple[list[Stage], Found]:
    """`precision`: the highest rate that is carried and the lowest that is not are at most so far apart, as a share."""
    carried: float | None = None
    failed: float | None = None
    rate = start
    stages: list[Stage] = []
    while len(stages) < _MOST_STAGES and (carried is None or failed is None or failed / carried > 1 + precision):
        stage = await run(rate)
        stages.append(stage)
        if carries(stage, objectives):
            carried = rate
            rate = rate * 2 if failed is None else math.sqrt(rate * failed)
        else:
            failed = rate
            rate = rate / 2 if carried is None else math.sqrt(carried * rate)
    stages.sort(key=lambda stage: stage.offered)
    return stages, Found(requests_per_second=carried, failed_at=failed, precision=precision)


CLIENT_CHECKS = ("client's CPU", "client's lag")


def search_faults(stages: list[Stage], found: Found) -> list[str]:
    """What makes a search's result worthless. A stage above the capacity may be full of errors, if only the client was not what
    failed."""
    if found.requests_per_second is None:
        return ["no rate that was tried meets the objectives"]
    if found.failed_at is None:
        return ["no rate that was tried was too high; search on from a higher one"]
    faults = []
    for stage in stages:
        if stage.offered == found.requests_per_second:
            faults += [f"{stage.label}: {fault}" for fault in stage.faults]
        elif stage.offered == found.failed_at:
            wrong = [check.said for check in stage.checks if check.name in CLIENT_CHECKS and check.passed is False]
            faults += [f"{stage.label}: {said}" for said in wrong]
    return faults
