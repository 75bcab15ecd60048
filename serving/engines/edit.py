"""The smallest possible edit of a JSON object in its bytes: members are cut out or added at its end, all else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import orjson

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_SPACE = b" \t\r\n"


def edited(body: bytes, document: Mapping[str, Any], *, drop: Collection[str], put: Mapping[str, bytes]) -> bytes:
    """The body without the members named in `drop` and with those of `put` last.

    `body` must be the valid JSON object that `document` was parsed from; `put` maps names to JSON. A member of a name that is
    put is cut out first, however often it stands there and however its name is spelt, so that ours is the only one. The bytes
    come back unchanged when nothing is to be done. Costs a copy; the body is scanned only when a member has to go.
    """
    gone = {name for name in document if name in drop or name in put}
    if gone:
        body = _without(body, gone)
    if not put:
        return body
    head = body.rstrip(_SPACE)[:-1]
    comma = b"" if head.rstrip(_SPACE).endswith(b"{") and len(document) == len(gone) else b","
    members = b",".join(orjson.dumps(name) + b":" + value for name, value in put.items())
    return b"%s%s%s}" % (head, comma, members)


def _without(body: bytes, gone: Collection[str]) -> bytes:
    """The object with all members of these names cut out, each with one of the commas beside it."""
    spans = _members(body)
    kept = [index for index, (name, _, _) in enumerate(spans) if name not in gone]
    if not kept:
        return b"{}"
    parts = [body[: spans[0][1]]]
    for place, index in enumerate(kept):
        _, start, end = spans[index]
        if place:
            # What stands between two members (a comma, blanks) goes with the later one.
            start = spans[index - 1][2]
        parts.append(body[start:end])
    parts.append(body[spans[-1][2] :])
    return b"".join(parts)


def _members(body: bytes) -> list[tuple[str, int, int]]:
    """Name, start and end of each member of the outermost object; its blanks and commas lie between the spans."""
    found: list[tuple[str, int, int]] = []
    depth = 0
    name, start = None, 0
    for token in _TOKEN.finditer(body):
        kind = body[token.start() : token.start() + 1]
        if kind in (b"{", b"["):
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
            if depth == 0 and name is not None:
                found.append((name, start, _end(body, token.start())))
        elif depth != 1:
            continue
        elif kind == b'"' and name is None:
            name, start = orjson.loads(token.group()), token.start()
        elif kind == b"," and name is not None:
            found.append((name, start, _end(body, token.start())))
            name = None
    return found


def _end(body: bytes, stop: int) -> int:
    """Where a member ends whose separator stands at `stop`: blanks before that belong to the separator."""
    while body[stop - 1] in _SPACE:
        stop -= 1
    return stop
