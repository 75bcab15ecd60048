"""The decode path: what an engine says while it generates, held against what it says of the same tokens as a prompt.

`prompt_logprobs` never runs the kernels that generate (small batches, paged attention, graphs). And a long prompt is looked at
by its next tokens, whose log probabilities cost no memory, other than those of the prompt itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from serving.gate.address import Address, Garbage
from serving.gate.collected import DecodeRun, Passage, Top
from serving.gate.passages import task_words
from serving.gate.scoring import TOP, finite, score_ids

DECODE_TOKENS = 32
DECODE_PROMPTS = (
    "The capital of France is",
    "Once upon a time there was",
    "def add(a, b):\n    return",
    "En un lugar de la Mancha",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "SELECT name FROM users WHERE",
)
LONG_POINTS = 12
"""Prompts of a long context, each longer than the one before."""
LONG_NEXT_TOKENS = 4
LONG = "long"
"""Kind of the passages behind a long context."""


def decode_run(address: Address, name: str, prompt: str) -> DecodeRun:
    """Generate greedily, then score the same ids. Raises: EngineTrouble."""
    body = {"prompt": prompt, "max_tokens": DECODE_TOKENS, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    choice = address.ask("/v1/completions", {**body, "return_token_ids": True})["choices"][0]
    head, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
    told = (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(head, list) or not isinstance(ids, list) or not isinstance(told, list) or len(ids) != len(told):
        raise Garbage(f"{name}: answered without token_ids and as many logprobs")
    decoded = tuple(finite(name, value) for value in told)
    scored = score_ids(address, name, [*head, *ids])
    prefilled = [value for value in scored.logprobs[len(head) :] if value is not None]
    tops = scored.tops[len(head) :]
    first = sum(top is not None and _is_first(top, token) for token, top in zip(ids, tops, strict=True))
    return DecodeRun(name=name, ids=tuple(ids), decoded=decoded, prefilled=tuple(prefilled), first_ranks=first)


def _is_first(top: Top, token: int) -> bool:
    """Also with a tie."""
    return token in top.ids and top.logprobs[top.ids.index(token)] == top.logprobs[0]


def long_passages(address: Address, context_tokens: int, seed: int = 7) -> list[Passage]:
    """Next-token distributions behind long prompts, as passages whose only scored tokens are the generated ones.

    Prompts grow, so that each finds the one before it in the prefix cache: they also look at what the cache holds.
    Raises: EngineTrouble.
    """
    sentences: list[str] = list(task_words()["filler"])
    chance = random.Random(seed)
    text: list[str] = []
    found = []
    for place in range(LONG_POINTS):
        wanted_bytes = context_tokens * 4 * (place + 1) / LONG_POINTS
        while sum(map(len, text)) < wanted_bytes:
            text.append(chance.choice(sentences))
        found.append(_after(address, f"long-{place + 1}", " ".join(text), seed + place))
    return found


def _after(address: Address, name: str, text: str, seed: int) -> Passage:
    """Behind the text the beginning of one of its sentences, word by word; one that reads its context knows how it goes on.

    What the engine finds likeliest is its own, so that these passages have no tokens of their own to compare.
    """
    sentences: Sequence[str] = task_words()["filler"]
    words = sentences[seed % len(sentences)].split()
    tops = [_next(address, name, f"{text} {' '.join(words[: shown + 1])}") for shown in range(LONG_NEXT_TOKENS)]
    return Passage(name=name, kind=LONG, ids=tuple(range(len(tops))), logprobs=(None,) * len(tops), tops=tuple(tops))


def _next(address: Address, name: str, prompt: str) -> Top:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": TOP}
    choice = address.ask("/v1/completions", {**body, "return_tokens_as_token_ids": True})["choices"][0]
    listed = ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0]
    pairs = []
    for key, value in listed.items():
        mark, _, number = key.partition("token_id:")
        if mark or not number.isdigit():
            raise Garbage(f"{name}: top_logprobs has the token {key!r}, not token_id:…")
        pairs.append((int(number), finite(name, value)))
    if not pairs:
        raise Garbage(f"{name}: answered without top_logprobs")
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return Top(ids=tuple(number for number, _ in pairs[:TOP]), logprobs=tuple(value for _, value in pairs[:TOP]))
