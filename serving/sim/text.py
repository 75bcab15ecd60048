"""Texts and tokens of an engine without a tokenizer: a token is a fixed number of bytes, an answer is made of such words.

Equal beginnings of two texts are equal tokens, and an answer that comes back as part of a longer conversation is the tokens
that the engine made, so that its blocks are found again: each part of a conversation begins with a token of its own.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from serving.sim.sequence import Prompt

_ID_BYTES = 8
"""Of a token that comes as a number."""
_WORDS = 997
_STRIDE = 389
"""Prime to the number of words, so that an answer goes through all of them before it repeats."""


def chat_prompt(messages: Sequence[Mapping[str, Any]], token_bytes: int, *, is_continued: bool = True) -> Prompt:
    """A conversation in a plain template: a begin token, `role: content` and a line end for each turn, and the next role."""
    parts = [b"\0"]
    for message in messages:
        parts += [f"{message.get('role')}: ".encode(), content_text(message.get("content")).encode(errors="replace"), b"\n"]
    if is_continued:
        parts.append(b"assistant: ")
    return Prompt(b"".join(_whole_tokens(part, token_bytes) for part in parts), token_bytes)


def plain_prompt(prompt: str | Sequence[int], token_bytes: int) -> Prompt:
    """A text, or tokens as numbers."""
    if isinstance(prompt, str):
        return Prompt(prompt.encode(errors="replace"), token_bytes)
    return Prompt(b"".join((token & _ID_MASK).to_bytes(_ID_BYTES, "big") for token in prompt), _ID_BYTES)


_ID_MASK = (1 << 8 * _ID_BYTES) - 1


def content_text(content: Any) -> str:
    """The text of a message, whose parts are joined by line ends as vLLM does it."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def token_numbers(prompt: Prompt) -> list[int]:
    """The tokens of a text as numbers that `text_of` turns back."""
    data, size = prompt.data, prompt.token_bytes
    return [int.from_bytes(data[start : start + size], "big") for start in range(0, len(data), size)]


def text_of(numbers: Sequence[int]) -> str:
    pieces = (number.to_bytes(max(1, math.ceil(number.bit_length() / 8)), "big") for number in numbers)
    return b"".join(pieces).replace(b"\0", b"").decode(errors="replace")


def _whole_tokens(part: bytes, token_bytes: int) -> bytes:
    return part.ljust(-(-len(part) // token_bytes) * token_bytes, b"\0")


@lru_cache(maxsize=8)
def _vocabulary(token_bytes: int) -> tuple[bytes, ...]:
    if token_bytes == 1:
        return tuple(bytes([code]) for code in b"etaoinshrdlucmfwypvbgkjqxz")
    chance = random.Random(token_bytes)
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    words = []
    for _ in range(_WORDS):
        letters = "".join(chance.choice(vowels if place % 2 else consonants) for place in range(token_bytes - 1))
        words.append(f" {letters}".encode())
    return tuple(words)


class Words:
    """One answer's text: the same for the same model, prompt, choice and draw, on every engine of a fleet."""

    def __init__(self, prompt: Prompt, text_bytes: int, *, choice: int = 0, drawn: int = 0, is_wrong: bool = False) -> None:
        """`drawn` is 0 where an answer is not left to chance, and another number for each that is."""
        self._vocabulary = _vocabulary(text_bytes)
        self._start = zlib.crc32(prompt.data) + 31 * choice + drawn + (17 if is_wrong else 0)
        self._token_bytes = prompt.token_bytes

    def text(self, start: int, end: int) -> str:
        """Of the tokens from `start` up to, not with, `end`."""
        return b"".join(self._token(number) for number in range(start, end)).decode()

    def data(self, start: int, end: int) -> bytes:
        """The same as the engine's cache sees them."""
        return b"".join(self._token(number).ljust(self._token_bytes, b"\0") for number in range(start, end))

    def _token(self, number: int) -> bytes:
        return self._vocabulary[(self._start + number * _STRIDE) % len(self._vocabulary)]


def answer_length(prompt: Prompt, mean_tokens: int, seed: int) -> int:
    """How long an answer would be if nothing cut it: exponentially distributed, the same for the same prompt and seed."""
    chance = random.Random(zlib.crc32(prompt.data, seed))
    return 1 + int(chance.expovariate(1.0) * mean_tokens)
