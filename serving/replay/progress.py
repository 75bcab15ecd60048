"""What a run shows while it goes on: a line that changes on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from serving.replay.load import StageData
from serving.replay.measure import ttft_seconds
from serving.replay.statistics import quantile
from serving.replay.verdict import cached_share

_RECENT = 1000
"""Requests that the shown figures are of."""


class LiveProgress:
    """A context; outside of a terminal it says nothing."""

    def __init__(self, console: Console) -> None:
        self.is_live = console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeRemainingColumn(),
            TextColumn("{task.fields[seen]}"),
            console=console,
            disable=not self.is_live,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def phase(self, text: str, total_seconds: float | None = None) -> None:
        """Another part of the run begins."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=total_seconds, seen="")

    def show(self, data: StageData, now: float, total_seconds: float, settle_seconds: float) -> None:
        """Where a stage is, and what its last requests were like."""
        if self._task is None or not self.is_live:
            return
        began = data.begin - settle_seconds
        phase = "settling" if now < data.begin else "measuring" if now < data.end else "draining"
        self._bars.update(
            self._task,
            completed=min(now - began, total_seconds),
            description=f"{phase}, {data.pattern.label}",
            seen=_seen(data),
        )


def _seen(data: StageData) -> str:
    # All of them would be too many to look at twice a second.
    recent = [sample for sample in data.samples[-_RECENT:] if sample.is_done]
    times = sorted(value for sample in recent if (value := ttft_seconds(sample)) is not None)
    cached = cached_share([sample for sample in recent if sample.is_ok]) if recent else None
    words = [f"{len(data.samples)} sent", f"{data.ended} ended"]
    if data.failed:
        words.append(f"{data.failed} failed")
    if times:
        words.append(f"TTFT {quantile(times, 0.5) * 1000:.0f} ms")
    if cached is not None:
        words.append(f"cached {cached:.0%}")
    return ", ".join(words)


def stamp() -> str:
    """The moment as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
