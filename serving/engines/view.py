"""A side view of an answer: it watches a copy of the bytes and may fail without effect on them."""

from __future__ import annotations

import json
import re
from collections import deque
from functools import lru_cache

import orjson

from serving.core.context import UNKNOWN_USAGE, Usage
from serving.core.routes import Dialect

USAGE = b'"usage":'
_SEQUENCE_NUMBER = b'"sequence_number":'
_ANSWER_TAIL_BYTES = 128 * 1024
_USAGE_EVENT_BYTES = 4096
_DECODER = json.JSONDecoder()
_PLAIN_USAGE = re.compile(
    rb'"usage":\{"prompt_tokens":(\d{1,15}),"total_tokens":\d{1,15},"completion_tokens":(\d{1,15})'
    rb'(?:,"prompt_tokens_details":\{"cached_tokens":(\d{1,15})(?:,"\w+":(?:null|\d{1,15}))*\})?[,}]'
)
"""How vLLM writes it for chats and completions."""


@lru_cache
def _marks(dialect: Dialect) -> tuple[tuple[bytes, ...], tuple[bytes, ...], int]:
    """A dialect's marks at the beginning of a line, and how many bytes of a piece the next one may need to complete one."""
    done = tuple(b"\n" + mark for mark in dialect.done)
    error = tuple(b"\n" + mark for mark in dialect.error)
    return done, error, max(map(len, (*done, *error, dialect.token))) - 1


class AnswerView:
    """Counts a stream's events and keeps the last bytes of an answer, where usage and finish reason stand.

    Holds at most twice the dialect's `tail_bytes` of a stream, 256 KiB of another answer, beyond the newest piece.
    """

    __slots__ = (
        "_carry",
        "_carry_bytes",
        "_dialect",
        "_done",
        "_earlier_usage",
        "_ending",
        "_error",
        "_pieces",
        "_pieces_bytes",
        "_tail_bytes",
        "_token",
        "aborted",
        "clean",
        "done",
        "events",
        "failed",
        "is_stream",
        "kept_bytes",
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
        self.aborted = False
        """The engine gave the answer up; what says that it is whole does not count."""
        self.kept_bytes = 0
        """How much of the piece with which that was seen comes before what says that it is whole."""
        self._carry = b"\n"
        self._tail_bytes = dialect.tail_bytes if is_stream else _ANSWER_TAIL_BYTES
        self._pieces: deque[bytes] = deque()
        self._pieces_bytes = 0
        self._earlier_usage = b""
        """The last usage among the pieces that were let go of, with what followed it there."""
        self.clean = is_stream
        """What came so far ends between two events."""

    def feed_plain(self, event: bytes) -> None:
        """Take one whole event of the dialect's plainest kind, while the view is `clean`."""
        self.events += 1
        self._pieces.append(event)
        self._pieces_bytes += len(event)
        if self._pieces_bytes > 2 * self._tail_bytes:
            self._trim()

    def feed(self, data: bytes) -> None:
        """Take a piece as it came; events may be split anywhere."""
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes > 2 * self._tail_bytes:
            self._trim()
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
                    if self._gave_up():
                        self.aborted, self.done = True, False
                        self.kept_bytes = max(0, text.find(mark) + 1 - len(carry))
                    break
        for mark in self._error:
            if mark in text:
                self.failed = True
        self.events += lines
        self.clean = text.endswith(b"\n\n") and not self._ending
        self._carry = b"\n" if self.clean else text[-self._carry_bytes :]

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
        dialect, tail = self._dialect, self._tail()
        if not self.is_stream and USAGE not in tail:
            self._keep_usage(tail)
            tail = self._earlier_usage
        if (plain := _plain_usage(tail, dialect)) is not None:
            return plain
        worth = dialect.usage_before_done if self.is_stream and not self.done else "all"
        return UNKNOWN_USAGE if worth == "none" else _usage(_last_usage(tail, dialect), dialect, worth)

    def finish_reason(self) -> str:
        """The finish reason that came last, or an empty string."""
        return _finish_reason(self._tail(), self._dialect)

    def ends_aborted(self) -> bool:
        """Whether an answer that is no stream says at its end that the engine gave it up."""
        return not self.is_stream and self._gave_up()

    def _gave_up(self) -> bool:
        """Whether the finish reason that came last is that the engine gave the answer up."""
        mark, tail = self._dialect.given_up, self._tail()
        return mark is not None and tail.startswith(mark, tail.rfind(self._dialect.finish_key))

    def _trim(self) -> None:
        """Let go of pieces that are further from the end than anything that is looked for."""
        pieces, keeps_usage = self._pieces, not self.is_stream and self._dialect.name == "openai"
        while len(pieces) > 1 and self._pieces_bytes - len(pieces[0]) >= self._tail_bytes:
            gone = pieces.popleft()
            self._pieces_bytes -= len(gone)
            if keeps_usage:
                self._keep_usage(gone)

    def _keep_usage(self, gone: bytes) -> None:
        """Behind the usage a client may have asked for the prompt's token ids, which can be longer than all that is kept."""
        text = self._carry + gone
        self._carry = text[1 - len(USAGE) :]
        start = text.rfind(USAGE)
        if start >= 0:
            self._earlier_usage = text[start : start + _USAGE_EVENT_BYTES]
        elif self._earlier_usage:
            self._earlier_usage += gone[: _USAGE_EVENT_BYTES - len(self._earlier_usage)]

    def _tail(self) -> bytes:
        if len(self._pieces) > 1:
            self._pieces = deque([b"".join(self._pieces)])
        return self._pieces[0] if self._pieces else b""


class WholeView:
    """The view of an answer that is not a stream and came whole, or of a usage told beside it: a small one is simply parsed."""

    __slots__ = ("_body", "_dialect", "aborted", "kept_bytes")

    is_stream = False
    done = True
    failed = False
    clean = False
    events = 0

    def __init__(self, dialect: Dialect, body: bytes) -> None:
        self._dialect = dialect
        self._body = body
        self.aborted = False
        self.kept_bytes = 0

    def ends_aborted(self) -> bool:
        return False

    def feed(self, data: bytes) -> None:
        """There is nothing more to see."""

    def feed_plain(self, event: bytes) -> None:
        """The same."""

    def choice_events(self) -> int:
        return 0

    def next_number(self) -> int:
        return 0

    def usage(self) -> Usage:
        body, dialect = self._body, self._dialect
        if (plain := _plain_usage(body, dialect)) is not None:
            return plain
        if len(body) > _USAGE_EVENT_BYTES:
            return _usage(_last_usage(body, dialect), dialect, "all")
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return UNKNOWN_USAGE
        return _usage(document.get("usage") if isinstance(document, dict) else None, dialect, "all")

    def finish_reason(self) -> str:
        return _finish_reason(self._body, self._dialect)


def _plain_usage(tail: bytes, dialect: Dialect) -> Usage | None:
    """The usage that stands last, if it is spelt as nearly always; None where it must be looked at more closely."""
    if dialect.name != "openai" or (start := tail.rfind(USAGE)) < 0 or (match := _PLAIN_USAGE.match(tail, start)) is None:
        return None
    prompt, output, cached = match.groups()
    return Usage(int(prompt), None if cached is None else int(cached), int(output))


def _usage(found: object, dialect: Dialect, worth: str) -> Usage:
    if not isinstance(found, dict):
        return UNKNOWN_USAGE
    if found.get("type") == "duration":
        return Usage(audio_seconds=_count(found.get("seconds")))
    prompt = _count(found.get(dialect.prompt_keys[0]))
    if prompt is not None and len(dialect.prompt_keys) > 1:
        prompt += sum(_count(found.get(key)) or 0 for key in dialect.prompt_keys[1:])
    if worth == "prompt":
        return Usage(prompt)
    cached: object = found
    for key in dialect.cached_path:
        cached = cached.get(key) if isinstance(cached, dict) else None
    return Usage(prompt, _count(cached), 0 if dialect.output_key is None else _count(found.get(dialect.output_key)))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _finish_reason(tail: bytes, dialect: Dialect) -> str:
    key = dialect.finish_key
    start = tail.rfind(key)
    if start < 0:
        return ""
    start += len(key)
    end = tail.find(b'"', start, start + 32)
    return tail[start:end].decode("ascii", "replace") if end > 0 else ""


def _last_usage(tail: bytes, dialect: Dialect) -> object:
    end = len(tail)
    # Inside a JSON string the quotes are escaped, so the pattern only matches a key.
    while (start := tail.rfind(USAGE, 0, end)) >= 0:
        end = start
        text = tail[start + len(USAGE) : start + len(USAGE) + _USAGE_EVENT_BYTES].decode("utf-8", "replace").lstrip()
        if not text.startswith("{"):
            if dialect.name == "openai":
                continue
            return None
        try:
            found, _ = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        return found
    return None


class BeginningView(AnswerView):
    """The view of an answer that is not a stream and whose usage stands in its first bytes."""

    __slots__ = ("_beginning",)

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect, is_stream=False)
        self._beginning = b""

    def feed(self, data: bytes) -> None:
        if len(self._beginning) < _USAGE_EVENT_BYTES:
            self._beginning += data[:_USAGE_EVENT_BYTES]

    def usage(self) -> Usage:
        start = self._beginning.find(USAGE)
        if start < 0:
            return UNKNOWN_USAGE
        try:
            found, _ = _DECODER.raw_decode(self._beginning[start + len(USAGE) :].decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            return UNKNOWN_USAGE
        return _usage(found, self._dialect, "all")


def view_of(dialect: Dialect, *, is_stream: bool, told: bytes = b"") -> AnswerView | WholeView:
    """The view of an answer that comes in pieces. `told`: its usage, where the engine told it beside the body."""
    if told:
        return WholeView(dialect, told)
    return BeginningView(dialect) if dialect.usage_first and not is_stream else AnswerView(dialect, is_stream=is_stream)


def view_of_whole(dialect: Dialect, body: bytes, *, told: bytes = b"") -> AnswerView | WholeView:
    """The view of an answer that is not a stream and is all here."""
    if told:
        return WholeView(dialect, told)
    if not dialect.usage_first:
        return WholeView(dialect, body)
    view = BeginningView(dialect)
    view.feed(body)
    return view


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
        if USAGE not in data:
            return data
        events = data.split(b"\n\n")
        return b"\n\n".join(event for event in events if not _is_usage_event(event))


_HELD_BYTES = 64 * 1024


def _is_usage_event(event: bytes) -> bool:
    if USAGE not in event or not event.startswith(b"data:"):
        return False
    try:
        document = orjson.loads(event[len(b"data:") :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and document.get("choices") == [] and isinstance(document.get("usage"), dict)
