"""What every piece of an answer goes through on its way to the client: watched, timed, and rid of what is not the client's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.core.clock import Clock
from serving.core.context import RequestContext, Write
from serving.engines.reasoning import ReasoningLines, WholeReasoning
from serving.engines.view import USAGE, AnswerView, HiddenUsage, WholeView


class Passing:
    """The path of one answer's pieces. Holds no bytes but those of an event that is not complete yet."""

    __slots__ = ("_bounds_seconds", "_clock", "_ctx", "_edit", "_intervals", "view")

    def __init__(
        self, ctx: RequestContext, view: AnswerView | WholeView, *, bounds_seconds: Sequence[float], clock: Clock
    ) -> None:
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
            if view.aborted:
                data, view.kept_bytes = data[: view.kept_bytes], 0
        if last and self.view.ends_aborted():
            # Without its end the client sees that it is not whole.
            self.view.aborted, data = True, b""
        return data if self._edit is None else self._edit.feed(data, last=last)

    def to(self, write: Write, on_done: Callable[[], None]) -> Write:
        """A function that takes a piece and writes what of it the client gets.

        `on_done` is called before the stream's last bytes. Nearly all pieces are one plain event, and each costs the gateway's
        time as often as there are tokens: those take a way of their own that comes to the same.
        """
        ctx, view, clock = self._ctx, self.view, self._clock
        dialect, bounds_seconds, intervals = ctx.route.dialect, self._bounds_seconds, self._intervals or []
        plain, plain_lines = dialect.plain, dialect.plain_lines

        def pass_edited(data: bytes, framed: bytes | None) -> bool:
            out = self.take(data, last=False)
            if view.done:
                on_done()
            return write(out, framed if out is data else None)

        if ctx.reasoning_field:
            return pass_edited

        feed_plain = view.feed_plain
        # A plain event leaves the view as clean as it was.
        expected = view.clean and bool(intervals)

        def pass_on(data: bytes, framed: bytes | None) -> bool:
            nonlocal intervals, expected
            if (
                expected
                and data.startswith(plain)
                and data.endswith(b"\n\n")
                and data.count(b"\n") == plain_lines
                and USAGE not in data
            ):
                now = clock()
                feed_plain(data)
                intervals[bisect_left(bounds_seconds, now - ctx.last_byte)] += 1
                ctx.last_byte = now
                return write(data, framed)
            has_room = pass_edited(data, framed)
            intervals = self._intervals or []
            expected = view.clean and bool(intervals)
            return has_room

        return pass_on

    @property
    def whole(self) -> bool:
        """Whether the answer may end here: a stream must have said that it is done, or that it failed."""
        view = self.view
        return view.done or view.failed or not (view.is_stream or view.aborted)


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
