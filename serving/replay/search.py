"""The highest rate that meets the objectives: doubling until one fails, then halving the distance."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from serving.replay.profile import Objectives
from serving.replay.report import Found, Stage

_MOST_STAGES = 30
_CARRIED_SHARE = 0.9
"""Of the offered requests must end within the window, or they only pile up."""

RunStage = Callable[[float], Awaitable[Stage]]


def carries(stage: Stage, objectives: Objectives) -> bool:
    """Whether the engine carries this rate."""
    if stage.good_share is None or stage.good_share < objectives.share:
        return False
    return (stage.requests_per_second.value or 0.0) >= _CARRIED_SHARE * stage.offered_requests_per_second


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
