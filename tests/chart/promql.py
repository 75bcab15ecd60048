"""As much of PromQL's grammar as it takes to ask for the parts of an alert one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator

SET_OPERATOR = re.compile(r"\b(?:and|unless|or)\b(?:\s+(?:on|ignoring)\s*\([^)]*\))?")
COMPARISON = re.compile(r"(?:==|!=|>=|<=|>|<)(?:\s+bool)?(?:\s+(?:on|ignoring)\s*\([^)]*\))?")
NUMBER = re.compile(r"[-+\d.e*\s]+")


def operands(expression: str) -> list[str]:
    """The vectors that an alert compares and joins, each a query by itself; of `absent(x)` it is x that must be there."""
    found = []
    for joined in _split(expression, SET_OPERATOR):
        for side in _split(joined, COMPARISON):
            match = re.fullmatch(r"absent\((.*)\)", side)
            side = match[1] if match else side
            if not NUMBER.fullmatch(side):
                found.append(side)
    return found


def _split(expression: str, operator: re.Pattern[str]) -> Iterator[str]:
    """At each operator that stands outside of all brackets and texts."""
    outside = _outside(expression)
    begin = 0
    for match in operator.finditer(expression):
        if outside[match.start()]:
            yield expression[begin : match.start()].strip()
            begin = match.end()
    yield expression[begin:].strip()


def _outside(expression: str) -> list[bool]:
    depth, quoted, found = 0, "", []
    for letter in expression:
        if quoted:
            quoted = "" if letter == quoted else quoted
            found.append(False)
            continue
        if letter in "\"'":
            quoted = letter
        depth += (letter in "([{") - (letter in ")]}")
        found.append(depth == 0 and not quoted)
    return found
