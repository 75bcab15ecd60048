"""Header fields of HTTP/1.1, read line by line; a line that came before is known at once.

Peers send the same lines with each message. Only ordinary lines are read here; what is out of the ordinary, allowed or not, is
for a full parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

_FIELD = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)"
)
_MOST = 2048
_LONGEST_BYTES = 256
"""Lines that are kept, and how long each may be: about 1 MB together."""

Sense = TypeVar("Sense")


def field_of(line: bytes) -> tuple[bytes, bytes] | None:
    """Name, in lower case, and value of a header line without its end (RFC 9112, 5); None where it is not an ordinary one."""
    match = _FIELD.fullmatch(line)
    return (match[1].lower(), match[2]) if match is not None else None


class KnownLines(Generic[Sense]):
    """What header lines mean to somebody, remembered for the lines that came lately."""

    def __init__(self, judge: Callable[[bytes, bytes], Sense | None]) -> None:
        self._judge = judge
        self.known: dict[bytes, Sense] = {}
        """To be looked into first; `learn` is for the lines that are not in it."""

    def learn(self, line: bytes) -> Sense | None:
        """What a new line means; None where it is not ordinary, which is not remembered."""
        found = field_of(line)
        sense = None if found is None else self._judge(*found)
        if sense is not None and len(line) <= _LONGEST_BYTES:
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[line] = sense
        return sense
