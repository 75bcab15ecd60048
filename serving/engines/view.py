"""A side view of an answer: it watches a copy of the bytes and may fail without effect on them."""

from __future__ import annotations

import json
from collections import deque
from functools import lru_cache

import orjson

from serving.core.context import Usage
from serving.core.routes import Dialect

_USAGE = b'"usage":'
_SEQUENCE_NUMBER = b'"sequence_number":'
_TAIL_BYTES = 256 * 1024
_USAGE_EVENT_BYTES = 4096
_DECODER = json.JSONDecoder()


@lru_cache
def _marks(dialect: Dialect) -> tuple[tuple[bytes, ...], tuple[bytes, ...], int]:
    """A dialect's marks at the beginning of a line, and how many bytes of a piece the next one may need to complete one."""
    done = tuple(b"\n" + mark for mark in dialect.done)
    error = tuple(b"\n" + mark for mark in dialect.error)
    return done, error, max(map(len, (*done, *error, dialect.token))) - 1


class AnswerView:
    """Counts a stream's events and keeps the last bytes of an answer, where usage and finish reason stand.

    Holds at most 256 KiB beyond the newest piece.
    """

    __slots__ = (
        "_carry",
        "_carry_bytes",
        "_dialect",
        "_done",
        "_ending",
        "_error",
        "_pieces",
        "_pieces_bytes",
        "_token",
        "done",
        "events",
        "failed",
        "is_stream",
    )

    def __init__(self, dialect: Dialect, *, is_stream: bool) -> None:
        self._dialect = dialect
        self._done, self._error, self._carry_bytes = _marks(dialect)
        self._token = dialect.token
        self._ending = False
        """The mark that ends the stream was there."""
        self.is_stream = is_stream
        self.events = 0
        """Events so far that hold tokens, as far as the dialect tells them from others; the one that is the end is none."""
        self.done = False
        """The stream said that it is whole."""
        self.failed = False
        """The stream held an error event."""
        self._carry = b"\n"
        self._pieces: deque[bytes] = deque()
        self._pieces_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take a piece as it came; events may be split anywhere."""
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        while len(self._pieces) > 1 and self._pieces_bytes - len(self._pieces[0]) >= _TAIL_BYTES:
            self._pieces_bytes -= len(self._pieces.popleft())
        if not self.is_stream:
            return
        carry = self._carry
        text = carry + data
        # What lies wholly inside the carried bytes was counted with the piece before.
        lines = text.count(self._token) - carry.count(self._token)
        if self._ending:
            self.done = self.done or b"\n\n" in carry[-1:] + data
        else:
            for mark in self._done:
                if mark in text:
                    self._ending = True
                    self.done = not self._dialect.done_has_data or b"\n\n" in text[text.find(mark) + 1 :]
                    lines -= mark.startswith(self._token)
                    break
        for mark in self._error:
            if mark in text:
                self.failed = True
        self.events += lines
        self._carry = text[-self._carry_bytes :]

    def choice_events(self) -> int:
        """Events that held a choice: all but the usage event, which comes last where it was asked for."""
        if self._dialect.name != "openai":
            return self.events
        return self.events - (b'"choices":[]' in self._tail()[-_USAGE_EVENT_BYTES:])

    def next_number(self) -> int:
        """The number of the next event, where the events of a stream are numbered."""
        tail = self._tail()
        start = tail.rfind(_SEQUENCE_NUMBER)
        if start < 0:
            return 0
        start += len(_SEQUENCE_NUMBER)
        digits = tail[start : start + 12].partition(b",")[0].partition(b"}")[0]
        return int(digits) + 1 if digits.isdigit() else 0

    def usage(self) -> Usage:
        """The usage object that came last; its fields are None where there was none or it makes no sense."""
        dialect = self._dialect
        worth = dialect.usage_before_done if self.is_stream and not self.done else "all"
        found = None if worth == "none" else self._last_usage()
        if found is None:
            return Usage()
        if found.get("type") == "duration":
            return Usage(audio_seconds=_count(found.get("seconds")))
        prompt = _count(found.get(dialect.prompt_keys[0]))
        if prompt is not None:
            prompt += sum(_count(found.get(key)) or 0 for key in dialect.prompt_keys[1:])
        if worth == "prompt":
            return Usage(prompt)
        cached: object = found
        for key in dialect.cached_path:
            cached = cached.get(key) if isinstance(cached, dict) else None
        output = 0 if dialect.output_key is None else _count(found.get(dialect.output_key))
        return Usage(prompt, _count(cached), output)

    def finish_reason(self) -> str:
        """The finish reason that came last, or an empty string."""
        tail = self._tail()
        key = self._dialect.finish_key
        start = tail.rfind(key)
        if start < 0:
            return ""
        start += len(key)
        end = tail.find(b'"', start, start + 32)
        return tail[start:end].decode("ascii", "replace") if end > 0 else ""

    def _tail(self) -> bytes:
        if len(self._pieces) > 1:
            self._pieces = deque([b"".join(self._pieces)])
        return self._pieces[0] if self._pieces else b""

    def _last_usage(self) -> dict[str, object] | None:
        tail = self._tail()
        end = len(tail)
        # Inside a JSON string the quotes are escaped, so the pattern only matches a key.
        while (start := tail.rfind(_USAGE, 0, end)) >= 0:
            end = start
            text = tail[start + len(_USAGE) : start + len(_USAGE) + _USAGE_EVENT_BYTES].decode("utf-8", "replace").lstrip()
            if not text.startswith("{"):
                if self._dialect.name == "openai":
                    continue
                return None
            try:
                found, _ = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                return None
            return found if isinstance(found, dict) else None
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


class WholeView(AnswerView):
    """The same view of an answer that is not a stream and came whole: small ones are simply parsed."""

    __slots__ = ("_body",)

    def __init__(self, dialect: Dialect, body: bytes) -> None:
        super().__init__(dialect, is_stream=False)
        super().feed(body)
        self._body = body

    def _last_usage(self) -> dict[str, object] | None:
        if len(self._body) > _USAGE_EVENT_BYTES:
            return super()._last_usage()
        try:
            document = orjson.loads(self._body)
        except orjson.JSONDecodeError:
            return None
        found = document.get("usage") if isinstance(document, dict) else None
        return found if isinstance(found, dict) else None


class ToldView(WholeView):
    """The view of an answer whose usage the engine told beside its body, as JSON."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """The body holds nothing to see."""


class BeginningView(AnswerView):
    """The view of an answer that is not a stream and whose usage stands in its first bytes."""

    __slots__ = ("_beginning",)

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect, is_stream=False)
        self._beginning = b""

    def feed(self, data: bytes) -> None:
        if len(self._beginning) < _USAGE_EVENT_BYTES:
            self._beginning += data[:_USAGE_EVENT_BYTES]

    def _last_usage(self) -> dict[str, object] | None:
        start = self._beginning.find(_USAGE)
        if start < 0:
            return None
        try:
            found, _ = _DECODER.raw_decode(self._beginning[start + len(_USAGE) :].decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def view_of(dialect: Dialect, *, is_stream: bool, told: bytes = b"") -> AnswerView:
    """The view of an answer that comes in pieces. `told`: its usage, where the engine told it beside the body."""
    if told:
        return ToldView(dialect, told)
    return BeginningView(dialect) if dialect.usage_first and not is_stream else AnswerView(dialect, is_stream=is_stream)


def view_of_whole(dialect: Dialect, body: bytes, *, told: bytes = b"") -> AnswerView:
    """The view of an answer that is not a stream and is all here."""
    if dialect.usage_first and not told:
        view = BeginningView(dialect)
        view.feed(body)
        return view
    return ToldView(dialect, told) if told else WholeView(dialect, body)


class HiddenUsage:
    """Takes the usage event out of a stream whose client did not ask for it; all else passes byte for byte.

    Only the bytes of an event that is not complete yet are kept back, and of those at most 64 KiB.
    """

    __slots__ = ("_held", "_open")

    def __init__(self) -> None:
        self._held = b""
        self._open = True

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What of the stream may go out now. `last`: nothing more comes."""
        if self._held:
            data, self._held = self._held + data, b""
        if last or not self._open:
            return self._without(data) if self._open else data
        if not data.endswith(b"\n\n"):
            end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
            self._held = data[end:]
            data = data[:end]
            if len(self._held) > _HELD_BYTES or b"\r\n\r\n" in self._held:
                # Not the stream of an engine we know: let it through rather than hold it.
                data, self._held, self._open = data + self._held, b"", False
                return data
        return self._without(data)

    @staticmethod
    def _without(data: bytes) -> bytes:
        if _USAGE not in data:
            return data
        events = data.split(b"\n\n")
        return b"\n\n".join(event for event in events if not _is_usage_event(event))


_HELD_BYTES = 64 * 1024


def _is_usage_event(event: bytes) -> bool:
    if _USAGE not in event or not event.startswith(b"data:"):
        return False
    try:
        document = orjson.loads(event[len(b"data:") :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and document.get("choices") == [] and isinstance(document.get("usage"), dict)
