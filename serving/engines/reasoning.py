"""The text of a model's reasoning under the name that a client knows.

vLLM calls it `reasoning`; others call it `reasoning_content`. For a model whose settings say so the member of that name is
renamed, or said again, in the messages and deltas of a chat completion. Everything else keeps its bytes: what is edited is
found by its place in the JSON, so a text that only looks like it is left alone.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from serving.engines.view import HiddenUsage

log = logging.getLogger("serving.engines")

LINE_BYTES = 256 * 1024
"""Of a line that is not complete yet, so much is held at most; a longer one passes as it is."""
WHOLE_BYTES = 4 * 1024 * 1024
"""Of an answer that is not a stream; a longer one passes as it is: parsing it would hold up all others."""
_MARK = b'"reasoning"'
_COLON = re.compile(rb"[ \t\r\n]*:")
_VALUE = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("|null)')
"""What follows the name: the beginning of a text, or that there is none."""
_BACKSLASH = ord("\\")
_SENTINEL = f"@{secrets.token_hex(16)}:"
"""Begins names that no document holds."""


def with_reasoning(document: bytes, field: str) -> bytes:
    """A chat completion, or a chunk of one, with its reasoning under the name `field`: "reasoning_content" or "both".

    The bytes come back unchanged where there is none, or where they are no JSON. Costs one parse: each member of that name gets
    one that tells it from the others, and the parser, which is written in C, says where it stands.
    """
    names = list(_names(document))
    if not names:
        return document
    try:
        parsed = orjson.loads(_replaced(document, {span: f'"{_SENTINEL}{at}"'.encode() for at, span in enumerate(names)}))
    except orjson.JSONDecodeError:
        return document
    edits: dict[tuple[int, int], bytes] = {}
    for at in _told(parsed):
        start, end = names[at]
        edits[start, end] = b'"reasoning_content"'
        if field == "both" and (value_end := _value_end(document, end)) > 0:
            edits[start, end] = b'"reasoning_content"%s,"reasoning"' % document[end:value_end]
    return _replaced(document, edits)


def _names(document: bytes) -> Iterator[tuple[int, int]]:
    """Where names of members end like that, whatever they belong to: inside a text its quotes would be escaped."""
    end = 0
    while (start := document.find(_MARK, end)) >= 0:
        end = start + len(_MARK)
        if _COLON.match(document, end):
            yield start, end


def _value_end(document: bytes, at: int) -> int:
    """Where the value ends whose name ends at `at`, or -1 where it is neither a text nor null: no reasoning that we know."""
    begun = _VALUE.match(document, at)
    if begun is None or begun[1] == b"null":
        return -1 if begun is None else begun.end()
    end = begun.end()
    while True:
        end = document.index(b'"', end)
        slashes = end
        while document[slashes - 1] == _BACKSLASH:
            slashes -= 1
        end += 1
        if (end - slashes) % 2:
            return end


def _replaced(document: bytes, edits: Mapping[tuple[int, int], bytes]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for (start, end), text in sorted(edits.items()):
        parts += (document[done:start], text)
        done = end
    return b"".join([*parts, document[done:]])


def _told(document: Any) -> Iterator[int]:
    """Which of the numbered members are the reasoning of a message or delta that has not got the other name already."""
    choices = document.get("choices") if isinstance(document, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        for place in ("delta", "message") if isinstance(choice, dict) else ():
            message = choice.get(place)
            if isinstance(message, dict) and "reasoning_content" not in message:
                yield from (int(name.removeprefix(_SENTINEL)) for name in message if name.startswith(_SENTINEL))


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
