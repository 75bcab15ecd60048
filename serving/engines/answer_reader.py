"""Reads ordinary answers of engines: a head with status 200, and a body in one or several whole chunks.

Engines write little else, so that this spares the full parser for nearly all of them. Whatever is not ordinary, allowed or not,
is answered with None and left to that parser; nothing is guessed here.
"""

from __future__ import annotations

import re

from serving.core.context import Headers
from serving.core.field_lines import KnownLines

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_HEAD_BYTES = 16 * 1024
_STATUS_LINE = b"HTTP/1.1 200 OK"
_DROPPED, _KEPT, _LENGTH, _CHUNKED = range(4)
_LENGTH_DIGITS = 15
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_SIZES_KEPT = 4096
SIZES: dict[bytes, int] = {}
"""Chunk sizes as they were spelt lately."""


def _ordinary(name: bytes, value: bytes) -> tuple[tuple[bytes, bytes], int] | None:
    """A field and what it is for; None for one that an ordinary answer does not have."""
    if name == b"content-length":
        return ((name, value), _LENGTH) if value.isdigit() and len(value) <= _LENGTH_DIGITS else None
    if name == b"transfer-encoding":
        return ((name, value), _CHUNKED) if value == b"chunked" else None
    if name in HOP_BY_HOP:
        kept_open = name == b"keep-alive" or (name == b"connection" and value.lower() == b"keep-alive")
        return ((name, value), _DROPPED) if kept_open else None
    return (name, value), _KEPT


_LINES = KnownLines(_ordinary)


def read_head(data: bytes) -> tuple[Headers, int, int] | None:
    """Headers, where the body begins, and its length in bytes or -1 when it is chunked."""
    end = data.find(b"\r\n\r\n")
    if not 0 < end <= _HEAD_BYTES:
        return None
    lines = data[:end].split(b"\r\n")
    if lines[0] != _STATUS_LINE:
        return None
    del lines[0]
    known, learn = _LINES.known, _LINES.learn
    headers: Headers = []
    length: int | None = None
    for line in lines:
        found = known.get(line) or learn(line)
        if found is None:
            return None
        header, kind = found
        if kind == _KEPT:
            headers.append(header)
        elif kind != _DROPPED:
            if length is not None:
                return None
            if kind == _CHUNKED:
                length = -1
            else:
                length = int(header[1])
                headers.append(header)
    return None if length is None else (headers, end + 4, length)


def size_of(spelt: bytes) -> int | None:
    """A chunk's size in bytes (RFC 9112, 7.1) from its line without extensions; None where it is anything else."""
    if _SIZE.fullmatch(spelt) is None:
        return None
    if len(SIZES) >= _SIZES_KEPT:
        SIZES.clear()
    size = SIZES[spelt] = int(spelt, 16)
    return size


def read_chunks(data: bytes) -> tuple[list[bytes], int, bool]:
    """The contents of the whole chunks at the beginning of `data`, how many bytes they take there, and whether the last was the
    body's end. The end's own bytes are not counted; what is neither stands behind the counted bytes."""
    contents: list[bytes] = []
    at = 0
    while True:
        line_end = data.find(b"\r\n", at, at + 10)
        if line_end < 0:
            return contents, at, False
        spelt = data[at:line_end]
        size = SIZES.get(spelt)
        if size is None:
            size = size_of(spelt)
        if not size:
            return contents, at, size == 0 and data[line_end + 2 :] == b"\r\n"
        end = line_end + 2 + size
        if data[end : end + 2] != b"\r\n":
            return contents, at, False
        contents.append(data[line_end + 2 : end])
        at = end + 2
