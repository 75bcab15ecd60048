"""The side view counts right however the bytes are split, and fails without effect."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import Usage
from serving.core.routes import OPENAI
from serving.engines.view import AnswerView, HiddenUsage

DONE = b"data: [DONE]\n\n"
MIB = 1024 * 1024


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def content(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None}


def usage_object(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}


ERROR = {"error": {"message": "broken", "type": "InternalServerError", "param": None, "code": 500}}
MISLEADING = ("data:", "\ndata: [DONE]\n\n", '\n\ndata: {"error"', '"usage":{"prompt_tokens":1}', '"finish_reason":"stop"', "é鍵")

texts = st.one_of(st.sampled_from(MISLEADING), st.text(max_size=20))
counts = st.integers(0, 100_000)
usages = st.builds(usage_object, counts, counts, st.none() | counts)
chunks = st.one_of(
    st.builds(content, texts),
    st.builds(lambda usage: {"choices": [], "usage": usage}, usages),
    st.builds(
        lambda reason: {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        st.sampled_from(("stop", "length", "tool_calls")),
    ),
    st.just(ERROR),
)


def fed(data: bytes, cuts: list[int] | None = None, *, is_stream: bool = True) -> AnswerView:
    """A view of the data in the pieces that the cuts make."""
    view = AnswerView(OPENAI, is_stream=is_stream)
    for piece in pieces(data, cuts or []):
        view.feed(piece)
    return view


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if start < end]


@given(st.lists(chunks, max_size=12), st.booleans(), st.lists(st.integers(0, 100_000), max_size=40))
def test_a_stream_is_seen_alike_however_it_is_split(said: list[dict[str, Any]], is_done: bool, cuts: list[int]) -> None:
    view = fed(b"".join(map(event, said)) + (DONE if is_done else b""), cuts)

    assert view.events == len(said)
    assert view.done is is_done
    assert view.failed is (ERROR in said)
    expected = next((chunk["usage"] for chunk in reversed(said) if chunk.get("usage")), None)
    if expected is None:
        assert view.usage() == Usage()
    else:
        details = expected["prompt_tokens_details"] or {"cached_tokens": None}
        assert view.usage() == Usage(expected["prompt_tokens"], details["cached_tokens"], expected["completion_tokens"])
    reasons = [c["choices"][0]["finish_reason"] for c in said if c.get("choices") and c["choices"][0]["finish_reason"]]
    assert view.finish_reason() == (reasons[-1] if reasons else "")


def test_one_byte_at_a_time_is_the_hardest_split() -> None:
    data = event(content("a")) + event(ERROR) + event({"choices": [], "usage": usage_object(7, 2, 3)}) + DONE
    view = fed(data, list(range(len(data))))
    assert (view.events, view.done, view.failed, view.usage()) == (3, True, True, Usage(7, 3, 2))


@given(texts, usages, st.lists(st.integers(0, 100_000), max_size=10))
def test_a_whole_answers_usage_is_found(text: str, usage: dict[str, Any], cuts: list[int]) -> None:
    body = {"choices": [{"message": {"content": text}, "finish_reason": "length"}], "usage": usage, "note": text}
    view = fed(json.dumps(body, separators=(",", ":")).encode(), cuts, is_stream=False)
    assert view.usage().prompt_tokens == usage["prompt_tokens"]
    assert view.finish_reason() == "length"
    assert (view.events, view.done, view.failed) == (0, False, False)


def test_done_inside_a_string_does_not_end_a_stream() -> None:
    assert not fed(event(content("\n\ndata: [DONE]\n\n"))).done


def test_done_is_the_end_once() -> None:
    view = fed(event(content("a")) + DONE + DONE)
    assert view.done
    assert view.events >= 1


# Usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (b'{"prompt_tokens":0,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}', Usage(0, 0, 0)),
        (b'{"prompt_tokens":5}', Usage(5, None, None)),
        (b'{"prompt_tokens":5,"prompt_tokens_details":null}', Usage(5, None, None)),
        (b'{"prompt_tokens":5,"prompt_tokens_details":{}}', Usage(5, None, None)),
        (b'{"prompt_tokens":5,"prompt_tokens_details":[1]}', Usage(5, None, None)),
        (b' {"prompt_tokens": 5, "completion_tokens": 2}', Usage(5, None, 2)),
        (b"{}", Usage()),
        (b"null", Usage()),
        (b"[]", Usage()),
        (b'"many"', Usage()),
        (b'{"prompt_tokens":-1,"completion_tokens":true}', Usage()),
        (b'{"prompt_tokens":1.5,"completion_tokens":"2"}', Usage()),
        (b'{"prompt_tokens":NaN}', Usage()),
        (b'{"prompt_tokens":', Usage()),
        (b'{"prompt_tokens":\xff}', Usage()),
        (b'{"prompt_tokens":' + b"9" * 4000 + b"}", Usage()),
        (b'{"prompt_tokens":5,"x":"' + b"y" * 5000 + b'"}', Usage()),
        (b'{"prompt_tokens":5,"x":' + b"[" * 4000, Usage()),
    ],
)
def test_usage_is_what_the_engine_said_or_unknown(usage: bytes, expected: Usage) -> None:
    assert fed(b'{"choices":[],"usage":' + usage + b"}", is_stream=False).usage() == expected


def test_a_later_null_does_not_hide_the_usage_before_it() -> None:
    view = fed(event({"usage": usage_object(5, 2)}) + event({"usage": None}) + DONE)
    assert view.usage() == Usage(5, None, 2)


def test_the_last_of_continuous_usages_counts() -> None:
    view = fed(b"".join(event({"usage": usage_object(5, output)}) for output in range(10)) + DONE)
    assert view.usage().output_tokens == 9


def test_usage_behind_a_long_answer_is_found() -> None:
    body = {"choices": [{"message": {"content": "x" * 3 * MIB}}], "usage": usage_object(5, 2)}
    view = fed(json.dumps(body, separators=(",", ":")).encode(), list(range(0, 3 * MIB, 4096)), is_stream=False)
    assert view.usage() == Usage(5, None, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'"finish_reason":null', ""),
        (b'"finish_reason":"stop"', "stop"),
        (b'"finish_reason":"stop"}]} "finish_reason":null', "stop"),
        (b'"finish_reason":"st', ""),
        (b'"finish_reason":"' + b"x" * 100 + b'"', ""),
        (b'"finish_reason":"\xff"', "�"),
        (b"", ""),
    ],
)
def test_the_finish_reason_is_short_or_unknown(data: bytes, reason: str) -> None:
    assert fed(data).finish_reason() == reason


def test_events_without_a_choice_are_not_counted_as_such() -> None:
    assert fed(event(content("a")) + event({"choices": [], "usage": usage_object(5, 2)}) + DONE).choice_events() == 1
    assert fed(event(content("a")) + event(content('"choices":[]')) + DONE).choice_events() == 2


# Hiding the usage event


@given(st.lists(chunks, max_size=12), st.booleans(), st.lists(st.integers(0, 100_000), max_size=40))
def test_only_the_usage_event_is_hidden_however_the_stream_is_split(
    said: list[dict[str, Any]], is_done: bool, cuts: list[int]
) -> None:
    end = DONE if is_done else b""
    hidden = HiddenUsage()
    parts = pieces(b"".join(map(event, said)) + end, cuts)
    shown = b"".join(hidden.feed(part, last=False) for part in parts) + hidden.feed(b"", last=True)
    assert shown == b"".join(event(chunk) for chunk in said if chunk.get("choices") != []) + end


def test_a_complete_event_is_never_held_back() -> None:
    hidden = HiddenUsage()
    one, two = event(content("a")), event(content("b"))
    assert hidden.feed(one + two[:9], last=False) == one
    assert hidden.feed(two[9:], last=False) == two


def test_what_is_cut_inside_an_event_comes_out_at_the_end() -> None:
    hidden = HiddenUsage()
    assert hidden.feed(b'data: {"choi', last=False) == b""
    assert hidden.feed(b"", last=True) == b'data: {"choi'


def test_an_event_without_end_is_let_through_in_time() -> None:
    hidden = HiddenUsage()
    shown = b"".join(hidden.feed(b"x" * 1000, last=False) for _ in range(1000))
    assert len(shown) >= 900_000


# Memory


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("piece_bytes", [16 * 1024, MIB])
def test_an_endless_line_is_not_kept(is_stream: bool, piece_bytes: int) -> None:
    view = AnswerView(OPENAI, is_stream=is_stream)
    tracemalloc.start()
    try:
        for _ in range(256 * MIB // piece_bytes):
            view.feed(bytes(piece_bytes))
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 256 * 1024 + 2 * piece_bytes
    assert peak_bytes < 256 * 1024 + 4 * piece_bytes


@pytest.mark.parametrize("size", [7, 4096, 100_000])
def test_the_usage_of_an_answer_is_known_however_much_follows_it(size: int) -> None:
    usage = json.dumps(usage_object(11, 12, 3)).replace(" ", "").encode()
    data = b'{"choices":[],"usage":null,"usage":%b,"prompt_token_ids":[%b]}' % (usage, b"1," * 250_000)
    for lead in (b"", b" " * 5):
        view = AnswerView(OPENAI, is_stream=False)
        text = lead + data
        for start in range(0, len(text), size):
            view.feed(text[start : start + size])
        assert view.usage() == Usage(11, 3, 12)
