"""A simulated prefix cache: which leading blocks of a prompt were seen before."""

from __future__ import annotations


class SimulatedPrefixCache:
    """Remembers prompts in blocks; the byte tokenizer of the tiny model makes one byte one token.

    Like vLLM it never reports the whole prompt as cached: the last token is always computed.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._blocks: set[tuple[str, bytes]] = set()

    def clear(self) -> None:
        self._blocks.clear()

    def take(self, prompt: bytes, salt: str = "") -> tuple[int, int]:
        """Look the prompt up and remember it.

        Returns:
            tokens that were cached, tokens of the blocks that are new in the cache
        """
        size = self.block_tokens
        prefixes = [(salt, prompt[: end + size]) for end in range(0, len(prompt) - size + 1, size)]
        held = 0
        while held < len(prefixes) and prefixes[held] in self._blocks:
            held += 1
        cached_tokens = min(held, max(0, len(prompt) - 1) // size) * size
        created_tokens = (len(prefixes) - held) * size
        self._blocks.update(prefixes)
        return cached_tokens, created_tokens
