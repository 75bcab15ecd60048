"""Log probabilities in vLLM's two forms; their values are made up from the tokens, the same for the same answer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from serving.sim.errors import Body

_OTHERS = tuple(f"~{number}" for number in range(20))
"""What stands in place of the tokens that were less likely."""


def chat_logprobs(tokens: Sequence[str], top: int) -> Body:
    """`logprobs` of a choice of the chat."""
    return {"content": [_entry(token) | {"top_logprobs": _top(token, top)} for token in tokens]}


def completion_logprobs(tokens: Sequence[str], top: int, offset: int) -> Body:
    """`logprobs` of a choice of completions; `offset` is where the first token stands in the text."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(token) for token in tokens],
        "tokens": list(tokens),
        "top_logprobs": [{entry["token"]: entry["logprob"] for entry in _top(token, max(1, top))} for token in tokens],
    }


def _top(token: str, count: int) -> list[Body]:
    first = _logprob(token)
    others = [
        {"token": other, "logprob": first - 1.0 - place, "bytes": list(other.encode())} for place, other in enumerate(_OTHERS)
    ]
    return [_entry(token), *others][:count]


def _entry(token: str) -> Body:
    return {"token": token, "logprob": _logprob(token), "bytes": list(token.encode())}


def _logprob(token: str) -> float:
    return -(zlib.crc32(token.encode()) % 3000) / 1000 - 0.001
