from __future__ import annotations

import pytest

from serving.core.errors import ConfigurationError
from serving.replay.words import Vocabulary, Wording, find_vocabulary
from tests.replay.tokenizers import counting, merging, of_bytes, of_words


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8])
async def test_words_are_one_token_where_a_token_is_so_many_bytes(size: int) -> None:
    vocabulary = await find_vocabulary(counting(of_bytes(size)))
    for words in (vocabulary.words[:9], vocabulary.words[3:20]):
        assert of_bytes(size)(vocabulary.text(words)) == len(words)


async def test_words_that_are_two_tokens_are_left_out() -> None:
    vocabulary = await find_vocabulary(counting(of_words("the", "cup", "old")))
    assert not {"the", "cup", "old"} & set(vocabulary.words)
    assert len(vocabulary.words) > 100


async def test_a_tokenizer_that_merges_words_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no words were found"):
        await find_vocabulary(counting(merging))


def test_a_text_goes_on_as_it_began_and_another_nonce_shares_nothing() -> None:
    vocabulary = Vocabulary(tuple("abcdefghijklmnop"), "")
    one, other = Wording(vocabulary, "one"), Wording(vocabulary, "other")
    assert one.words("group 1", 50) == one.words("group 1", 200)[:50]
    beginnings = {tuple(wording.words(name, 8)) for wording in (one, other) for name in ("group 1", "group 2", "0.0.0")}
    assert len(beginnings) == 6
