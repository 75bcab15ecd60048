"""The smallest possible edit of a JSON object in its bytes: members are cut out or added at its end, all else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from json.scanner import make_scanner
from typing import Any, cast

import orjson

from serving.core.errors import InvalidRequest

_SPACE = b" \t\r\n"
_SCAN = cast("Callable[[str, int], tuple[Any, int]]", make_scanner(cast(Any, json.JSONDecoder(parse_int=float))))
"""Numbers are only passed over: a very long integer would be expensive to read."""


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
    text = body.decode("utf-8")
    spans = _members(text)
    kept = [index for index, (name, _, _) in enumerate(spans) if name not in gone]
    if not kept:
        return b"{}"
    parts = [text[: spans[0][1]]]
    for place, index in enumerate(kept):
        _, start, end = spans[index]
        if place:
            # What stands between two members (a comma, blanks) goes with the later one.
            start = spans[index - 1][2]
        parts.append(text[start:end])
    parts.append(text[spans[-1][2] :])
    return "".join(parts).encode("utf-8")


def _members(text: str) -> list[tuple[str, int, int]]:
    """Name, start and end of each member of the outermost object; its blanks and commas lie between the spans.

    Each value is passed over by the standard library's scanner, which is written in C. Raises: InvalidRequest.
    """
    found: list[tuple[str, int, int]] = []
    at = _token(text, text.index("{") + 1)
    while text[at] != "}":
        start = at
        name, at = _SCAN(text, start)
        at = _token(text, _token(text, at) + 1)
        try:
            _, at = _SCAN(text, at)
        except RecursionError:
            raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
        found.append((name, start, at))
        at = _token(text, at)
        if text[at] == ",":
            at = _token(text, at + 1)
    return found


def _token(text: str, at: int) -> int:
    """The place of the next character that is no blank."""
    while text[at] in " \t\r\n":
        at += 1
    return at
