"""A prompt as a chain of hashes: two prompts that begin alike have chains that begin alike.

Each hash covers everything up to the end of its piece, so that one number stands for a whole prefix. Pieces grow with their
distance from the beginning: a long prompt has few more than a short one, and none is cut more coarsely than to a few per cent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

FIRST_PIECE_BYTES = 256
GROWTH = 64
"""A piece is at most this part of the text before it, from there on where that is more than the first piece."""
LONGEST_BYTES = 4 * 1024 * 1024
"""Text beyond this is not looked at: about a million tokens."""
IMAGE_BYTES = 4096
"""What an image counts like, in bytes of text: about a thousand tokens."""


def _ends() -> tuple[int, ...]:
    ends, at = [], 0
    while at < LONGEST_BYTES:
        at += max(FIRST_PIECE_BYTES, at // GROWTH)
        ends.append(at)
    return tuple(ends)


ENDS = _ends()
"""Where pieces end, in bytes; the same for all prompts."""
START = (0, *ENDS)
"""Where the piece of each place in a chain begins; `START[n]` bytes are covered by the first n hashes."""


def chain_of(text: bytes, seed: int) -> list[int]:
    """The hashes of all whole pieces of a text."""
    digest = seed
    return [digest := xxh3_64_intdigest(piece, digest) for piece in _cut(covered_pieces(len(text))).unpack_from(text)]


@lru_cache(maxsize=len(ENDS) + 1)
def _cut(pieces: int) -> Struct:
    """Cuts the beginning of a text into so many pieces, in one call."""
    return Struct("".join(f"{end - begin}s" for begin, end in zip(START, ENDS[:pieces], strict=False)))


def seed_of(*parts: str) -> int:
    """What a chain begins with: equal texts with different seeds have nothing in common."""
    return xxh3_64_intdigest("\0".join(parts).encode("utf-8", "surrogatepass"))


def covered_pieces(size_bytes: int) -> int:
    """How many whole pieces a text of that size has."""
    return bisect_right(ENDS, size_bytes)


class Rendering:
    """The text of a request about as a chat template lays it out: what stands first in the prompt stands first here."""

    __slots__ = ("_left", "parts", "turn_bytes")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._left = LONGEST_BYTES
        self.turn_bytes = 0
        """Where the first turn of a user ends; 0 where there is none."""

    def add(self, text: str) -> None:
        if self._left > 0:
            piece = text.encode("utf-8", "surrogatepass")
            self.parts.append(piece)
            self._left -= len(piece) + 1

    def add_image(self, reference: str) -> None:
        digest = f"{xxh3_64_intdigest(reference.encode('utf-8', 'surrogatepass')):016x}"
        self.add(digest * (IMAGE_BYTES // 16))

    def end_of_first_turn(self) -> None:
        if not self.turn_bytes:
            self.turn_bytes = LONGEST_BYTES - self._left

    def text(self) -> bytes:
        return b"\n".join(self.parts)


def render(document: dict[str, Any]) -> Rendering:
    """The prompt of a request of any route; what is not understood is left out, which only makes a prediction worse."""
    rendering = Rendering()
    tools = document.get("tools")
    if isinstance(tools, list) and tools:
        rendering.add(orjson.dumps(tools).decode())
    for name in ("instructions", "system"):
        if (value := document.get(name)) is not None:
            _add_content(rendering, value)
    messages = document.get("messages")
    if messages is None:
        messages = document.get("input")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                _add_message(rendering, message)
            elif isinstance(message, str):
                rendering.add(message)
    elif isinstance(messages, str):
        rendering.add(messages)
    else:
        _add_prompt(rendering, document.get("prompt"))
    return rendering


def _add_message(rendering: Rendering, message: dict[str, Any]) -> None:
    role = message.get("role")
    if isinstance(role, str):
        rendering.add(role)
    content = message.get("content")
    if isinstance(content, str):
        rendering.add(content)
    elif content is not None:
        _add_content(rendering, content)
    for name in ("tool_calls", "arguments", "output"):
        if (value := message.get(name)) is not None:
            rendering.add(value if isinstance(value, str) else _written(value))
    if role == "user":
        rendering.end_of_first_turn()


def _add_content(rendering: Rendering, content: Any) -> None:
    if isinstance(content, str):
        rendering.add(content)
        return
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        text = part.get("text")
        if isinstance(text, str):
            rendering.add(text)
            continue
        image = part.get("image_url") or part.get("source")
        reference = image.get("url") or image.get("data") if isinstance(image, dict) else image
        rendering.add_image(reference) if isinstance(reference, str) else rendering.add(_written(part))


def _add_prompt(rendering: Rendering, prompt: Any) -> None:
    if isinstance(prompt, str):
        rendering.add(prompt)
    elif isinstance(prompt, list) and prompt:
        # Several prompts, or one as token ids: the first decides.
        first = prompt[0]
        rendering.add(first if isinstance(first, str) else _written(prompt))


def _written(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""  # more depth can be read than written


def turn_pieces_of(chain: Sequence[int], turn_bytes: int) -> int:
    """How many pieces of a chain belong to all turns of the conversation: those through the first turn of its user."""
    return min(covered_pieces(turn_bytes), len(chain))


def first_turn_of(text: bytes, turn_bytes: int, chain: Sequence[int], seed: int) -> int:
    """One number for a conversation's text through the first turn of its user, to the byte; 0 where it has no such turn.

    A system prompt that all conversations have in common fills many whole pieces, and a short first turn none.
    """
    if not turn_bytes:
        return 0
    # Behind the turn there is a line's end when another follows, which is no part of it.
    end = min(turn_bytes - 1, LONGEST_BYTES)
    pieces = min(covered_pieces(end), len(chain))
    return xxh3_64_intdigest(text[START[pieces] : end], chain[pieces - 1] if pieces else seed)
