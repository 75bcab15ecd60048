"""Text from outside, for a terminal."""

from __future__ import annotations


def printable(text: object) -> str:
    """The text with what a terminal may obey, as ESC, written out as Python writes it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text))
