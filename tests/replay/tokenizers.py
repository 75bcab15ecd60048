"""Tokenizers of several kinds as a replay asks for them: how many tokens is a text?"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

ALWAYS = 7
"""What a template adds to each text."""


def counting(tokens: Callable[[str], int]) -> Callable[[str], Awaitable[int]]:
    async def count(text: str) -> int:
        return ALWAYS + tokens(text)

    return count


def of_bytes(size: int) -> Callable[[str], int]:
    """A token is so many bytes, the last one may be shorter."""
    return lambda text: -(-len(text.encode()) // size)


def of_words(*split: str) -> Callable[[str], int]:
    """A word is a token, but those in `split`, which are two."""
    return lambda text: sum(2 if word in split else 1 for word in text.split())


def merging(text: str) -> int:
    """Pairs of words are a token, so that nothing adds up."""
    return len(re.findall(r"\w+(?: \w+)?", text))
