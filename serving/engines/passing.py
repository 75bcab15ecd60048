"""What every piece of an answer goes through on its way to the client: watched, timed, and rid of what is not the client's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from serving.core.clock import Clock
from serving.core.context import RequestContext
from serving.engines.reasoning import ReasoningLines, WholeReasoning
from serving.engines.view import AnswerView, HiddenUsage


class Passing:
    """The path of one answer's pieces. Holds no bytes but those of an event that is not complete yet."""

    __slots__ = ("_bounds_seconds", "_clock", "_ctx", "_edit", "_intervals", "view")

    def __init__(self, ctx: RequestContext, view: AnswerView, *, bounds_seconds: Sequence[float], clock: Clock) -> None:
        self.view = view
        self._ctx = ctx
        self._edit = _edit_of(ctx, is_stream=view.is_stream)
        self._bounds_seconds = bounds_seconds
        self._intervals: list[int] | None = None
        self._clock = clock

    def take(self, data: bytes, *, last: bool) -> bytes:
        """A piece as it came from the engine; what of it the client gets, now."""
        if data:
            ctx, view = self._ctx, self.view
            now = self._clock()
            view.feed(data)
            if self._intervals is not None:
                self._intervals[bisect_left(self._bounds_seconds, now - ctx.last_byte)] += 1
            elif view.events:
                # From the first token on; some streams say that they begin long before that.
                ctx.first_token = now
                self._intervals = ctx.chunk_intervals = [0] * (len(self._bounds_seconds) + 1)
            ctx.last_byte = now
        return data if self._edit is None else self._edit.feed(data, last=last)

    @property
    def whole(self) -> bool:
        """Whether the answer may end here: a stream must have said that it is done, or that it failed."""
        view = self.view
        return view.done or view.failed or not view.is_stream


class _Edit(Protocol):
    """What changes an answer on its way."""

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What of the answer may go out now. `last`: nothing more comes."""
        ...


def _edit_of(ctx: RequestContext, *, is_stream: bool) -> _Edit | None:
    hidden = HiddenUsage() if ctx.hides_usage and is_stream else None
    if not ctx.reasoning_field:
        return hidden
    return ReasoningLines(ctx.reasoning_field, hidden) if is_stream else WholeReasoning(ctx.reasoning_field)
