"""Reads what an engine thinks of each token of a text (`prompt_logprobs`), a few short texts at a time.

An engine keeps the logits of all tokens that it scores in one step: about 14 bytes x tokens x vocabulary. So no request
asks for more than `tokens_at_once`, and requests follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from serving.gate.address import Address, Garbage
from serving.gate.collected import Passage, Rendering, Top
from serving.gate.passages import ChatPassage, TextPassage

TOP = 20
"""As many as an engine gives without `--max-logprobs`."""
BYTES_PER_TOKEN = 2.5
"""A careful guess of how long tokens are, for keeping requests small."""
IMPOSSIBLE = -9000.0
"""vLLM writes -9999 for minus infinity."""
MEMORY_BYTES_PER_LOGIT = 14
"""Logits in bf16, and their log-softmax in fp32 with a copy; measured on the CPU."""
_FIXED_DATE = {"date_string": "26 Jul 2024"}
"""For templates that would write today's date, so that renderings of two days are the same."""


def batches(passages: Sequence[TextPassage], tokens_at_once: int) -> Iterator[list[TextPassage]]:
    """In order; each of at most so many tokens, or of one passage."""
    batch: list[TextPassage] = []
    room = float(tokens_at_once)
    for passage in passages:
        tokens = len(passage.text.encode()) / BYTES_PER_TOKEN
        if batch and tokens > room:
            yield batch
            batch, room = [], float(tokens_at_once)
        batch.append(passage)
        room -= tokens
    if batch:
        yield batch


def score_texts(address: Address, batch: Sequence[TextPassage]) -> list[Passage]:
    """Raises: EngineTrouble."""
    data = address.ask("/v1/completions", {"prompt": [passage.text for passage in batch], **_SCORE})
    choices = data.get("choices")
    if not isinstance(choices, list) or len(choices) != len(batch):
        raise Garbage(f"/v1/completions: {len(batch)} prompts, and no such number of choices")
    ordered = sorted(choices, key=lambda choice: int(choice["index"]))
    return [
        _passage(given.name, given.kind, choice.get("prompt_token_ids"), choice.get("prompt_logprobs"))
        for given, choice in zip(batch, ordered, strict=True)
    ]


def score_ids(address: Address, name: str, ids: Sequence[int]) -> Passage:
    """Raises: EngineTrouble."""
    data = address.ask("/v1/completions", {"prompt": list(ids), **_SCORE})
    return _passage(name, "ids", list(ids), data["choices"][0].get("prompt_logprobs"))


def score_chat(address: Address, chat: ChatPassage) -> Passage:
    """Raises: EngineTrouble."""
    body = {
        "messages": chat.body(),
        "add_generation_prompt": False,
        "chat_template_kwargs": _FIXED_DATE,
        "max_tokens": 1,
        **{key: value for key, value in _SCORE.items() if key != "max_tokens"},
    }
    data = address.ask("/v1/chat/completions", body)
    return _passage(chat.name, "chat", data.get("prompt_token_ids"), data.get("prompt_logprobs"))


def render(address: Address, name: str, probe: dict[str, Any]) -> Rendering:
    """A conversation's tokens, without running the model. Raises: EngineTrouble."""
    body = {**probe, "add_generation_prompt": True, "return_token_strs": True, "chat_template_kwargs": _FIXED_DATE}
    data = address.ask("/tokenize", body)
    ids = data.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids):
        raise Garbage("/tokenize: answered without tokens")
    texts = data.get("token_strs")
    return Rendering(name=name, ids=tuple(ids), texts=tuple(map(readable, texts)) if isinstance(texts, list) else ())


def readable(token: Any) -> str:
    """A token's name in a byte-level vocabulary, with the space and the line break that it stands for."""
    return str(token).replace("\u0120", " ").replace("\u010a", "\n").replace("\u2581", " ")


_SCORE: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP, "return_token_ids": True}


def _passage(name: str, kind: str, ids: Any, entries: Any) -> Passage:
    """Raises: Garbage for numbers that are none, and for columns that are not equally long."""
    if not isinstance(ids, list) or not isinstance(entries, list):
        raise Garbage(f"{name}: answered without prompt_logprobs or prompt_token_ids; is it vLLM 0.10 or later?")
    if len(ids) != len(entries):
        raise Garbage(f"{name}: {len(ids)} tokens have {len(entries)} entries of prompt_logprobs")
    words: dict[str, str] = {}
    logprobs: list[float | None] = []
    tops: list[Top | None] = []
    for token, entry in zip(ids, entries, strict=True):
        if entry is None:
            logprobs.append(None)
            tops.append(None)
            continue
        own = entry.get(str(token))
        if own is None:
            raise Garbage(f"{name}: the token {token} has no log probability of its own")
        listed = sorted(
            ((int(key), value) for key, value in entry.items() if value["rank"] <= TOP), key=lambda pair: int(pair[1]["rank"])
        )[:TOP]
        top = Top(ids=tuple(key for key, _ in listed), logprobs=tuple(finite(name, value["logprob"]) for _, value in listed))
        logprobs.append(finite(name, own["logprob"]))
        tops.append(top)
        words[str(token)] = str(own.get("decoded_token") or "")
        if listed:
            words[str(listed[0][0])] = str(listed[0][1].get("decoded_token") or "")
    _plausible(name, tops)
    return Passage(name=name, kind=kind, ids=tuple(ids), logprobs=tuple(logprobs), tops=tuple(tops), words=words)


def finite(name: str, value: Any) -> float:
    """A log probability. Raises: Garbage for none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise Garbage(f"{name}: a log probability is {value!r}")
    return float(value)


def _plausible(name: str, tops: Iterable[Top | None]) -> None:
    """Raises: Garbage where the most likely tokens are together more than certain, or impossible."""
    for place, top in enumerate(tops):
        if top is None:
            continue
        if not top.ids:
            raise Garbage(f"{name}: position {place} has no likely tokens at all")
        total = sum(map(math.exp, top.logprobs))
        if total > 1.05 or top.logprobs[0] < IMPOSSIBLE:
            raise Garbage(f"{name}: the likeliest tokens at position {place} have a probability of {total:.3g} in all")
