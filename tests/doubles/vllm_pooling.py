"""The routes of vLLM 0.32 that make no tokens: embeddings, rerank, score, tokenize and detokenize, as a real engine answers."""

from __future__ import annotations

import base64
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.doubles import vllm_shapes as shapes
from tests.doubles.script import Usage
from tests.doubles.vllm_answers import prompts_of
from tests.doubles.vllm_errors import VllmError, dump, room_tokens

Body = dict[str, Any]

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
RERANK_V2 = "/v2/rerank"
SCORE = "/v1/score"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
DIMENSIONS = 16
_NO_CONVERSATION = "Cannot apply chat template to an empty conversation. Provide at least one message."


@dataclass(frozen=True)
class Made:
    """A whole answer, and what of its usage the engine knows."""

    body: bytes
    usage: Usage | None = None
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request with what the answer depends on."""

    body: Body
    models: Sequence[str]
    max_model_len: int
    request_id: str
    usage: Usage | None
    """What the script wants to be told."""

    @property
    def model(self) -> str:
        return str(self.body.get("model") or self.models[0])

    def check_model(self, *, lists_aliases: bool) -> None:
        """The pooling routes do not list what there is."""
        if self.model not in self.models:
            aliases = f" Valid aliases: {', '.join(self.models)}." if lists_aliases else ""
            raise VllmError(404, f"The model `{self.model}` does not exist.{aliases}", param="model" if lists_aliases else None)

    def used(self, prompts: Sequence[bytes]) -> Usage:
        """Raises: VllmError when a prompt is too long."""
        for prompt in prompts:
            if len(prompt) > self.max_model_len:
                room_tokens(len(prompt), self.max_model_len)
        return self.usage or Usage(prompt_tokens=sum(map(len, prompts)), completion_tokens=0)


@dataclass(frozen=True)
class WholeSurface:
    """One route: which of the engine's tasks it needs (None: any), and its answer. Raises: VllmError."""

    task: str | None
    answer: Callable[[Asked], Made]


def _usage(usage: Usage) -> Body:
    counts: Body = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens, "completion_tokens": 0}
    return counts | {"prompt_tokens_details": None, "completion_tokens_details": None}


def _vector(prompt: bytes, size: int) -> list[float]:
    return [(sum(prompt) * (place + 1) % 997 - 498) / 512 for place in range(size)]


def _embeddings(asked: Asked) -> Made:
    body = shapes.EMBEDDINGS.read(asked.body)
    asked.check_model(lists_aliases=False)
    prompts = _embedded(body)
    usage = asked.used(prompts)
    size = body.dimensions or DIMENSIONS
    if size > DIMENSIONS:
        raise VllmError(400, f"Dimensions must be at most {DIMENSIONS}.", param="dimensions")
    vectors = [_vector(prompt, size) for prompt in prompts]
    about: Body = {"id": f"embd-{asked.request_id}", "created": int(time.time()), "model": asked.model}
    form = body.encoding_format
    if form in ("bytes", "bytes_only"):
        return _bytes(vectors, usage, about, tells=form == "bytes")
    shown = [base64.b64encode(_packed(v)).decode() if form == "base64" else v for v in vectors]
    data = [{"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(shown)]
    head: Body = {"id": about["id"], "object": "list", "created": about["created"], "model": about["model"]}
    return Made(dump({**head, "data": data, "usage": _usage(usage)}), usage)


def _embedded(body: shapes.Embedded) -> list[bytes]:
    if isinstance(body, shapes.EmbeddedTurns):
        conversations = body.conversations()
        if not all(conversations):
            raise VllmError(400, _NO_CONVERSATION)
        return [prompt for turns in conversations for prompt in prompts_of({"messages": turns}, is_chat=True)]
    assert isinstance(body, shapes.EmbeddedTexts)
    if body.input == []:
        raise VllmError(400, "You must pass at least one prompt")
    prompts = prompts_of({"prompt": body.input}, is_chat=False)
    if not all(prompts):
        raise VllmError(400, "The decoder prompt cannot be empty")
    return prompts


def _packed(vector: list[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)


def _bytes(vectors: list[list[float]], usage: Usage, about: Body, *, tells: bool) -> Made:
    items, at = [], 0
    for index, vector in enumerate(vectors):
        end = at + 4 * len(vector)
        kind = {"embed_dtype": "float32", "endianness": "native"}
        items.append({"index": index, **kind, "start": at, "end": end, "shape": [len(vector)]})
        at = end
    told = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    metadata = dump({**about, "data": items, "usage": told}).decode()
    return Made(
        b"".join(map(_packed, vectors)),
        usage,
        "application/octet-stream",
        (("metadata", metadata),) if tells else (),
    )


def _texts(value: Any) -> list[bytes]:
    items = value if isinstance(value, list) else [value]
    return [item.encode() if isinstance(item, str) else dump(item) for item in items]


def _likeness(left: bytes, right: bytes) -> float:
    return 1.0 if left == right else len(set(left) & set(right)) / 256


def _scored(asked: Asked, left: Any, right: Any) -> tuple[list[float], Usage]:
    """As an embedding model does it: each text is embedded once."""
    asked.check_model(lists_aliases=False)
    lefts, rights = _texts(left), _texts(right)
    if not lefts:
        raise VllmError(400, "At least one text element must be given")
    if not rights:
        raise VllmError(400, "At least one text_pair element must be given")
    if len(lefts) not in (1, len(rights)):
        raise VllmError(400, "Input lengths must be either 1:1, 1:N or N:N")
    usage = asked.used([*lefts, *rights])
    pairs = zip(lefts * len(rights) if len(lefts) == 1 else lefts, rights, strict=True)
    return [_likeness(*pair) for pair in pairs], usage


def _rerank(asked: Asked) -> Made:
    body = shapes.RERANK.read(asked.body)
    scores, usage = _scored(asked, body.query, body.documents)
    documents = body.documents if isinstance(body.documents, list) else [body.documents]
    results: list[Body] = [
        {"index": index, "document": _shown(document), "relevance_score": score}
        for index, (document, score) in enumerate(zip(documents, scores, strict=True))
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    told = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    head = {"id": f"score-{asked.request_id}", "model": asked.model, "usage": told}
    return Made(dump({**head, "results": results[: body.top_n or None]}), usage)


def _shown(document: Any) -> Body:
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    return {"text": None, "multi_modal": document.get("content", [])}


def _score(asked: Asked) -> Made:
    scores, usage = _scored(asked, *shapes.SCORE.read(asked.body).sides())
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    head: Body = {"id": f"score-{asked.request_id}", "object": "list", "created": int(time.time()), "model": asked.model}
    return Made(dump({**head, "data": data, "usage": _usage(usage)}), usage)


_VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = [*_VISIBLE, *(byte for byte in range(256) if byte not in _VISIBLE)]
"""In the order of the tiny model's vocabulary, which has three tokens before them; the first of these begins a chat."""
_TOKENS = {byte: token for token, byte in enumerate(_BYTES, start=3)} | {0: 0}


def _tokenize(asked: Asked) -> Made:
    body = shapes.TOKENIZE.read(asked.body)
    asked.check_model(lists_aliases=True)
    if isinstance(body, shapes.TokenizedChat) and not body.messages:
        raise VllmError(400, _NO_CONVERSATION)
    (prompt,) = prompts_of(body.model_dump(), isinstance(body, shapes.TokenizedChat))
    strings = [chr(byte) for byte in prompt] if body.return_token_strs else None
    counted = {"count": len(prompt), "max_model_len": asked.max_model_len}
    return Made(dump({**counted, "tokens": [_TOKENS[byte] for byte in prompt], "token_strs": strings}))


def _detokenize(asked: Asked) -> Made:
    tokens = shapes.DETOKENIZE.read(asked.body).tokens
    asked.check_model(lists_aliases=True)
    data = bytes(_BYTES[token - 3] for token in tokens if 3 <= token < len(_BYTES) + 3)
    return Made(dump({"prompt": data.decode(errors="replace")}))


def new_id() -> str:
    return uuid.uuid4().hex[:16]


WHOLE_SURFACES = {
    EMBEDDINGS: WholeSurface("embed", _embeddings),
    RERANK: WholeSurface("score", _rerank),
    RERANK_V2: WholeSurface("score", _rerank),
    SCORE: WholeSurface("score", _score),
    TOKENIZE: WholeSurface(None, _tokenize),
    DETOKENIZE: WholeSurface(None, _detokenize),
}
