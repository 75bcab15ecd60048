"""The number by which all turns of a conversation are known, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from serving.routing.chain import FIRST_PIECE_BYTES, chain_of, first_turn_of, render

SEED = 7


def first_turn(*messages: tuple[str, str], **fields: Any) -> int:
    document = {"messages": [{"role": role, "content": content} for role, content in messages], **fields}
    rendering = render(document)
    text = rendering.text()
    return first_turn_of(text, rendering.turn_bytes, chain_of(text, SEED), SEED)


@pytest.mark.parametrize("size_bytes", [0, 1, 2, *range(FIRST_PIECE_BYTES - 16, FIRST_PIECE_BYTES + 3), 4000, 5_000_000])
def test_later_turns_have_the_number_of_the_first(size_bytes: int) -> None:
    begun = (("system", "s" * size_bytes), ("user", "Hi"))
    alone = first_turn(*begun)
    assert alone == first_turn(*begun, ("assistant", "Yes?"), ("user", "Nothing. " * 100))
    if size_bytes < 5_000_000:  # what is beyond the text that is looked at tells nothing
        assert alone != first_turn(begun[0], ("user", "Ho"))
    assert alone != first_turn(("system", "t" * size_bytes + "t"), ("user", "Hi"))


def test_without_a_turn_of_a_user_there_is_none() -> None:
    assert first_turn(("system", "s" * 1000)) == 0
