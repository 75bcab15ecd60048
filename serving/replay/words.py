"""Words that are one token each in whatever tokenizer the engine has, found by asking the engine how many tokens a text is.

A text of n such words is n tokens, so that lengths are exact without knowing the tokenizer. Every request's usage is held against
that later.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from serving.core.errors import ConfigurationError

Count = Callable[[str], Awaitable[int]]
"""How many tokens the engine makes of a text, with what it always adds to one."""

_SHORT = """
the and for are but not you all any can had her was one our out day get has him his how man new now old see two way
who boy did its let put say she too use dad mom car run sun big red top yes far eye ask own end set try why low add
act age ago air arm art bad bag bar bed bit box bus buy cup cut dog eat egg fly fun gas got guy hat hit hot ice job
key kid lay led leg lie lot map may men mix net nor off oil pay per pop raw row sea sit six sky son tax tea ten tie
tip via web win won
"""
_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_LEAST_WORDS = 20
_MOST_GROUPS = 150
"""Looked at for one kind of words; a kind that needs more has hardly any good ones."""
_MOST_TOKENS_OF_A_WORD = 1.4
_PROOF_WORDS = (40, 173, 600)


@dataclass(frozen=True)
class Vocabulary:
    """One-token words and what stands between them."""

    words: tuple[str, ...]
    joint: str

    def text(self, words: Sequence[str]) -> str:
        return self.joint.join(words)


@dataclass(frozen=True)
class Wording:
    """Texts from names: the same name and nonce are the same words, and another nonce shares none of their beginnings."""

    vocabulary: Vocabulary
    nonce: str

    def words(self, name: str, tokens: int) -> list[str]:
        """A longer text of a name begins with its shorter ones."""
        return random.Random(f"{self.nonce}/{name}").choices(self.vocabulary.words, k=tokens)


def _candidates() -> list[Vocabulary]:
    """Short English words are one token of nearly all vocabularies; letters are, where a token is a byte; the rest serves engines
    without a tokenizer, whose tokens are so many bytes."""
    chance = random.Random(0)
    made_up = [
        Vocabulary(tuple(dict.fromkeys("".join(chance.choices(_LETTERS, k=size)) for _ in range(200))), " ")
        for size in (4, 5, 6, 7, 2, 1)
    ]
    return [Vocabulary(tuple(_SHORT.split()), " "), Vocabulary(_LETTERS, ""), *made_up]


async def find_vocabulary(count: Count) -> Vocabulary:
    """Raises: ConfigurationError when no words can be found whose tokens add up."""
    for candidate in _candidates():
        kept = await _one_token_words(candidate, count)
        if len(kept) < _LEAST_WORDS:
            continue
        found = Vocabulary(tuple(kept), candidate.joint)
        if await _adds_up(found, count):
            return found
    raise ConfigurationError(_NONE)


_NONE = "no words were found that are one token each for this engine, so prompts of exact lengths cannot be made"


async def _one_token_words(candidate: Vocabulary, count: Count) -> list[str]:
    words = candidate.words
    whole = candidate.text(words)
    once, twice = await count(whole), await count(candidate.text((*words, *words)))
    always = 2 * once - twice
    if not len(words) <= once - always <= _MOST_TOKENS_OF_A_WORD * len(words):
        return []  # several are a token, or most of them are more than one
    kept: list[str] = []
    open_groups = [words]
    looked_at = 0
    while open_groups and looked_at < _MOST_GROUPS:
        looked_at += 1
        group = open_groups.pop()
        tokens = await count(candidate.text(group)) - always
        if tokens == len(group):
            kept += group
        elif len(group) > 1:
            middle = len(group) // 2
            open_groups += [group[middle:], group[:middle]]
    return kept


async def _adds_up(vocabulary: Vocabulary, count: Count) -> bool:
    """Whether texts by chance grow by one token a word."""
    chance = random.Random(1)
    found = []
    for length in _PROOF_WORDS:
        found.append(await count(vocabulary.text(chance.choices(vocabulary.words, k=length))) - length)
    return len(set(found)) == 1


def unique_name(number: int, turn: int, place: int) -> str:
    return f"{number}.{turn}.{place}"
