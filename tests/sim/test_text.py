"""Tokens without a tokenizer: equal beginnings are equal tokens, and an answer comes back as the tokens that were made."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.text import Words, answer_length, chat_prompt, content_text, plain_prompt, text_of, token_numbers

TURNS = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello, you"}]


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.integers(1, 8), st.integers(1, 80))
def test_a_conversation_goes_on_with_the_tokens_it_had(text: str, token_bytes: int, answer_tokens: int) -> None:
    turns = [*TURNS, {"role": "user", "content": text}]
    first = chat_prompt(turns, token_bytes)
    words = Words(first, token_bytes)
    said = words.text(0, answer_tokens)
    assert words.data(0, answer_tokens) == said.encode()
    then = chat_prompt([*turns, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}], token_bytes)
    assert then.data.startswith(first.data + said.encode())
    assert len(first.data) % token_bytes == 0


def test_tokens_are_counted_and_turned_back() -> None:
    prompt = plain_prompt("hello, world", 4)
    assert prompt.tokens == 3 and text_of(token_numbers(prompt)) == "hello, world"
    assert plain_prompt([1, 2, 3], 4).tokens == 3
    assert plain_prompt([1, 70_000], 1).data != plain_prompt([1, 70_000 % 256], 1).data


def test_an_answer_depends_on_prompt_and_choice_and_on_being_wrong() -> None:
    one, other = plain_prompt("a", 4), plain_prompt("b", 4)
    texts = [
        Words(one, 4).text(0, 9),
        Words(one, 4).text(0, 9),
        Words(other, 4).text(0, 9),
        Words(one, 4, choice=1).text(0, 9),
        Words(one, 4, is_wrong=True).text(0, 9),
    ]
    assert texts[0] == texts[1] and len(set(texts)) == 4
    assert all(len(text) == 36 and text.isascii() for text in texts)


def test_lengths_spread_around_their_mean() -> None:
    lengths = [answer_length(plain_prompt(f"{number}", 1), 100, 7) for number in range(2000)]
    assert 90 < sum(lengths) / len(lengths) < 112 and min(lengths) >= 1
    assert answer_length(plain_prompt("x", 1), 100, 7) == answer_length(plain_prompt("x", 1), 100, 7)


def test_parts_that_are_no_text_have_none() -> None:
    assert content_text([{"type": "text", "text": "a"}, {"type": "image_url"}, 7]) == "a\n"
    assert content_text(None) == "" and content_text(5) == ""
