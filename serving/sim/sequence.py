"""One sequence: a prompt, the answer it will have, and how far the engine is with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["stop", "length", "abort", "error"]
TokenBytes = Callable[[int, int], bytes]
"""The bytes of an answer's tokens from the first number up to, not with, the second."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens as bytes, `token_bytes` of them each; the last token may have fewer."""

    data: bytes
    token_bytes: int = 1
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", -(-len(self.data) // self.token_bytes))


@dataclass(eq=False, slots=True)
class Sequence:
    """`answer_tokens` is known beforehand: the simulation has no model that could decide to stop."""

    prompt: Prompt
    answer_tokens: int
    answer: TokenBytes
    finish: Finish = "length"
    salt: str = ""
    adapter: str | None = None
    priority: int = 0
    limit_tokens: int | None = None
    """`max_tokens` of the request, for the metrics."""
    choices: int = 1
    """`n` of the request, for the metrics."""
    on_tokens: Callable[[int], None] = lambda count: None
    """Called with the number of tokens of each step."""
    on_finish: Callable[[Finish], None] = lambda reason: None

    number: int = 0
    arrived_seconds: float = 0.0
    queued_seconds: float = 0.0
    scheduled_seconds: float | None = None
    """When it was first scheduled."""
    first_token_seconds: float | None = None
    last_token_seconds: float = 0.0
    computed_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int | None = None
    """Found in the prefix cache when it was first scheduled."""
    created_cache_tokens: int = 0
    """Of its prompt's full blocks, those that were not held before."""
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    """Of the full blocks of prompt and answer, as far as they were needed."""
    named_blocks: int = 0
    """Leading blocks that can be found by others."""
    is_running: bool = False
    is_done: bool = False
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = self.prompt.tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens

    @property
    def is_decoding(self) -> bool:
        return self.generated_tokens > 0 and self.prompt_tokens + self.generated_tokens - self.computed_tokens == 1

    def hash_blocks(self, tokens: int, block_tokens: int) -> list[int]:
        """Hashes of the full blocks within the first `tokens` of prompt and answer, each over all that comes before it."""
        wanted = tokens // block_tokens
        hashes = self.hashes
        if len(hashes) < wanted:
            before = hashes[-1] if hashes else hash((self.salt, self.adapter))
            size = block_tokens * self.prompt.token_bytes
            data, whole = self.prompt.data, len(self.prompt.data) // size
            for number in range(len(hashes), wanted):
                held = data[number * size : (number + 1) * size] if number < whole else self._bytes(number, block_tokens)
                before = hash((before, held)) & _NOT_NEGATIVE
                hashes.append(before)
        return hashes[:wanted]

    def _bytes(self, number: int, block_tokens: int) -> bytes:
        """Of a block that holds some of the answer."""
        start, end = number * block_tokens, (number + 1) * block_tokens
        prompt_tokens, size = self.prompt_tokens, self.prompt.token_bytes
        answered = self.answer(max(0, start - prompt_tokens), end - prompt_tokens)
        return self.prompt.data[start * size :].ljust(max(0, prompt_tokens - start) * size, b"\0") + answered


_NOT_NEGATIVE = (1 << 63) - 1
