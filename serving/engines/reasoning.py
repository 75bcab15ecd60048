"""The text of a model's reasoning under the name that a client knows.

vLLM calls it `reasoning`; others call it `reasoning_content`. For a model whose settings say so the member of that name is
renamed, or said again, in the messages and deltas of a chat completion. Everything else keeps its bytes: what is edited is
found by its place in the JSON, so a text that only looks like it is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import orjson

from serving.engines.edit import items, members
from serving.engines.view import HiddenUsage

log = logging.getLogger("serving.engines")

LINE_BYTES = 256 * 1024
"""Of a line that is not complete yet, so much is held at most; a longer one passes as it is."""
WHOLE_BYTES = 32 * 1024 * 1024
"""Of an answer that is not a stream; a longer one passes as it is."""
_OURS, _THEIRS = "reasoning", "reasoning_content"
_MARK = b'"reasoning"'
_RENAMED = f'"{_THEIRS}"'


def with_reasoning(document: bytes, field: str) -> bytes:
    """A chat completion, or a chunk of one, with its reasoning under the name `field`: "reasoning_content" or "both".

    The bytes come back unchanged where there is none, or where they are no JSON.
    """
    if _MARK not in document:
        return document
    try:
        if not _tells(orjson.loads(document)):
            return document
        text = document.decode("utf-8")
        found = list(_places(text))
    except (ValueError, RecursionError):
        return document
    parts: list[str] = []
    done = 0
    for start, name_end, end in found:
        parts += (text[done:start], _RENAMED, text[name_end:end])
        done = end
        if field == "both":
            parts += (",", text[start:end])
    parts.append(text[done:])
    return "".join(parts).encode("utf-8")


def _tells(document: Any) -> bool:
    """A quick look at the values, so that only a document that has to change is searched for the places."""
    choices = document.get("choices") if isinstance(document, dict) else None
    return isinstance(choices, list) and any(
        isinstance(message, dict) and _OURS in message
        for choice in choices
        if isinstance(choice, dict)
        for message in (choice.get("delta"), choice.get("message"))
    )


def _places(text: str) -> Iterator[tuple[int, int, int]]:
    """Start, end of the name, and end of each member that is the reasoning; none where the other name is there already."""
    for choices in members(text):
        if choices.name != "choices" or text[choices.value] != "[":
            continue
        for choice in items(text, choices.value):
            if text[choice] != "{":
                continue
            for message in members(text, choice):
                if message.name not in ("delta", "message") or text[message.value] != "{":
                    continue
                told = {member.name: member for member in members(text, message.value)}
                if _OURS in told and _THEIRS not in told:
                    yield told[_OURS].start, told[_OURS].name_end, told[_OURS].end


class ReasoningLines:
    """The same for a stream: each `data:` line is a document. Holds a line that is not complete yet, and no more."""

    __slots__ = ("_field", "_held", "_passes", "_then")

    def __init__(self, field: str, then: HiddenUsage | None) -> None:
        self._field = field
        self._then = then
        """What is done to the stream afterwards."""
        self._held = b""
        self._passes = False
        """The line under way is too long to be held, and part of it is out."""

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What of the stream may go out now. `last`: nothing more comes."""
        passed, lines = self._split(data, last=last)
        if _MARK in lines:
            lines = b"".join([self._line(line) for line in lines.splitlines(keepends=True)])
        out = passed + lines if passed else lines
        return out if self._then is None else self._then.feed(out, last=last)

    def _split(self, data: bytes, *, last: bool) -> tuple[bytes, bytes]:
        """The rest of a line that passes as it is, and whole lines; what is neither is held."""
        passed = b""
        if self._passes:
            end = data.find(b"\n") + 1
            self._passes = not end
            passed, data = (data[:end], data[end:]) if end else (data, b"")
        if self._held:
            data, self._held = self._held + data, b""
        if not last and not data.endswith(b"\n"):
            end = data.rfind(b"\n") + 1
            data, self._held = data[:end], data[end:]
            if len(self._held) > LINE_BYTES:
                data, self._held, self._passes = data + self._held, b"", True
        return passed, data

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        return b"data:" + with_reasoning(line[len(b"data:") :], self._field)


class WholeReasoning:
    """The same for an answer that is not a stream and comes in pieces: it is kept until it is whole."""

    __slots__ = ("_bytes", "_field", "_pieces")

    def __init__(self, field: str) -> None:
        self._field = field
        self._pieces: list[bytes] | None = []
        self._bytes = 0

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """Nothing until the last piece has come, then all of the answer."""
        if self._pieces is None:
            return data
        self._pieces.append(data)
        self._bytes += len(data)
        if not last and self._bytes <= WHOLE_BYTES:
            return b""
        body = b"".join(self._pieces)
        self._pieces = None
        if self._bytes > WHOLE_BYTES:
            log.warning("an answer of more than %d bytes keeps the engine's name for its reasoning", WHOLE_BYTES)
            return body
        return with_reasoning(body, self._field)
