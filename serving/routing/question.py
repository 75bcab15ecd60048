"""What routing looks at in a request: the hashes of its prompt, its size, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_intdigest

from serving.core.context import RequestContext
from serving.routing.chain import FIRST_PIECE_BYTES, chain_of, first_turn_of, render, seed_of, turn_pieces_of

_SESSIONS = ("prompt_cache_key", "user", "safety_identifier")
"""Fields in which clients say who asks, the closest to a session first."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(slots=True)
class Question:
    model: str
    tenant: str
    chain: Sequence[int] = ()
    """Empty where the prompt is too short to matter, or cannot be cached."""
    text_bytes: int = 0
    turn_pieces: int = 0
    """So many pieces of the chain are the same in all turns of a conversation; 0: there is nothing to go by."""
    output_limit: int | None = None
    """The most tokens of its answer; 0 where there are none."""
    silent: bool = False
    """The answer is no stream, so that its first token cannot be seen."""
    session: int = 0
    """What the client says that its requests belong to; 0: nothing."""
    first_turn: int = 0
    """One number for all that stands up to the end of the user's first turn, however short; 0: there is none."""

    @property
    def conversation(self) -> int:
        """One number for all turns of a conversation, and for others that begin alike in all but the last piece; 0: there is
        nothing to go by."""
        return self.chain[self.turn_pieces - 1] if self.turn_pieces else 0


_seeds: dict[tuple[str, str], int] = {}
_SEEDS_KEPT = 8192


def _session_of(document: dict[str, Any]) -> int:
    for name in _SESSIONS:
        value = document.get(name)
        if isinstance(value, str) and value:
            return xxh3_64_intdigest(value.encode("utf-8", "surrogatepass"))
    return 0


def question_of(ctx: RequestContext, isolation: str | None) -> Question:
    """`isolation` is what keeps the engine's cache of this request apart from others'."""
    route, document = ctx.route, ctx.document
    silent = not ctx.stream
    if not route.runs_model:
        return Question(ctx.model, ctx.tenant, output_limit=0, silent=silent)
    if route.form or route.dialect.output_key is None:
        return Question(ctx.model, ctx.tenant, text_bytes=ctx.body_bytes, output_limit=0, silent=silent)
    limit = None
    for name in _LIMITS:
        value = document.get(name)
        if type(value) is int and value > 0:
            limit = value
            break
    key = (ctx.model, isolation or "")
    seed = _seeds.get(key)
    if seed is None:
        if len(_seeds) >= _SEEDS_KEPT:
            _seeds.clear()
        seed = _seeds[key] = seed_of(*key)
    rendering = render(document)
    text = rendering.text()
    session = _session_of(document)
    if ctx.body_bytes < FIRST_PIECE_BYTES:
        first_turn = first_turn_of(text, rendering.turn_bytes, (), seed)
        return Question(ctx.model, ctx.tenant, (), ctx.body_bytes, 0, limit, silent, session, first_turn)
    chain = chain_of(text, seed)
    turn_pieces = turn_pieces_of(chain, rendering.turn_bytes)
    first_turn = first_turn_of(text, rendering.turn_bytes, chain, seed)
    return Question(ctx.model, ctx.tenant, chain, len(text), turn_pieces, limit, silent, session, first_turn)
