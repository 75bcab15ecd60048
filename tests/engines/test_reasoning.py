"""The reasoning's field is renamed by its place, and nothing else changes by one byte."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.reasoning import LINE_BYTES, WHOLE_BYTES, ReasoningLines, WholeReasoning, with_reasoning
from serving.engines.view import HiddenUsage

TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        '"reasoning":"x"',
        '{"delta":{"reasoning":"x"}}',
        "\\",
        '\\"reasoning\\":',
        "data: [DONE]\n\n",
        "é🌍",
        "\u2028",
        '","reasoning":"',
    ]
)
"""What models say, and what would fool a search in the bytes."""


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def renamed(value: Any, field: str) -> Any:
    """The same for parsed values."""
    for choice in value.get("choices", []):
        for place in ("delta", "message"):
            message = choice.get(place)
            if isinstance(message, dict) and "reasoning" in message and "reasoning_content" not in message:
                if field == "both" and isinstance(message["reasoning"], list):
                    # No engine says it so; there it is renamed only.
                    message["reasoning_content"] = message.pop("reasoning")
                    continue
                message["reasoning_content"] = message["reasoning"]
                if field != "both":
                    del message["reasoning"]
    return value


# One document


@pytest.mark.parametrize(
    ("text", "as_content", "as_both"),
    [
        (
            b'{"choices":[{"index":0,"delta":{"reasoning":"a \\" \\u00e9 \xc3\xa9"},"x":null}],"seed":9007199254740993}',
            b'{"choices":[{"index":0,"delta":{"reasoning_content":"a \\" \\u00e9 \xc3\xa9"},"x":null}],"seed":9007199254740993}',
            b'{"choices":[{"index":0,"delta":{"reasoning_content":"a \\" \\u00e9 \xc3\xa9","reasoning":"a \\" \\u00e9 \xc3\xa9"},'
            b'"x":null}],"seed":9007199254740993}',
        ),
        (
            b' {"choices" : [ {"message" : {"role":"a", "reasoning" : null , "content":"x"}} , {"message":{"reasoning":"y"}}]}',
            b' {"choices" : [ {"message" : {"role":"a", "reasoning_content" : null , "content":"x"}} , '
            b'{"message":{"reasoning_content":"y"}}]}',
            b' {"choices" : [ {"message" : {"role":"a", "reasoning_content" : null,"reasoning" : null , "content":"x"}} , '
            b'{"message":{"reasoning_content":"y","reasoning":"y"}}]}',
        ),
    ],
)
def test_the_member_is_renamed_or_said_again(text: bytes, as_content: bytes, as_both: bytes) -> None:
    assert with_reasoning(text, "reasoning_content") == as_content
    assert with_reasoning(text, "both") == as_both


@pytest.mark.parametrize(
    "text",
    [
        b'{"choices":[{"delta":{"content":"\\"reasoning\\":\\"x\\""}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":{"reasoning":"x"}}}]}}]}',
        b'{"reasoning":"x","choices":[{"reasoning":"y","delta":{"content":"z"}}]}',
        b'{"choices":[],"usage":{"reasoning":1}}',
        b'{"choices":[{"delta":{"reasoning":"x","reasoning_content":"x"}}]}',
        b'{"choices":[{"delta":{"a\\"reasoning":"x"}}]}',
        b'{"choices":[{"delta":{"\\"reasoning":"x"}}]}',
        b'{"choices":[{"delta":{"x":"reasoning"}}]}',
        b'{"choices":{"delta":{"reasoning":"x"}}}',
        b'{"choices":[["reasoning"],"reasoning",null,{"delta":["reasoning"]}]}',
        b'{"error":{"message":"no \\"reasoning\\""}}',
        b'["reasoning"]',
        b'"reasoning"',
        b'{"choices":[{"delta":{"reasoning":"\xff"}}]}',
        b'{"choices":[{"delta":{"reasoning":"x"}}]',
        b"[DONE]",
        b"",
        b'{"choices":[{"delta":{"reasoning":' + b"[" * 5000 + b"]" * 5000 + b"}}]}",
    ],
    ids=lambda text: text[:40].decode("latin-1"),
)
def test_what_is_no_reasoning_keeps_its_bytes(text: bytes) -> None:
    for field in ("reasoning_content", "both"):
        assert with_reasoning(text, field) == text


documents = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 9)},
                optional={
                    place: st.dictionaries(
                        st.sampled_from(["reasoning", "content", "role", "reasoning_content", 'a"reasoning']) | TEXTS,
                        TEXTS | st.none() | st.lists(TEXTS, max_size=2),
                        max_size=4,
                    )
                    for place in ("delta", "message")
                },
            ),
            max_size=3,
        )
    },
    optional={"reasoning": TEXTS, "usage": st.dictionaries(TEXTS, st.integers(0, 9), max_size=2)},
)


@given(documents, st.sampled_from(["reasoning_content", "both"]), st.booleans(), st.sampled_from([None, 1]))
def test_a_document_says_the_same_with_the_name_changed(document: Any, field: str, escapes: bool, indent: int | None) -> None:
    text = json.dumps(document, ensure_ascii=escapes, indent=indent).encode("utf-8", "surrogatepass")
    assert json.loads(with_reasoning(text, field)) == renamed(json.loads(text), field)


# A stream


def stream_of(documents: list[dict[str, Any]], *, escapes: bool = False, end: bytes = b"\n\n") -> bytes:
    events = [b"data: " + json.dumps(document, ensure_ascii=escapes, separators=(",", ":")).encode() for document in documents]
    return end.join([*events, b": keep-alive", b"data: [DONE]", b""])


def fed(edit: ReasoningLines | WholeReasoning, pieces: list[bytes]) -> list[bytes]:
    return [edit.feed(piece, last=False) for piece in pieces] + [edit.feed(b"", last=True)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


deltas = st.dictionaries(st.sampled_from(["reasoning", "content", "role"]), TEXTS, max_size=3)


@given(
    st.lists(deltas, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from(["reasoning_content", "both"]),
    st.booleans(),
    st.sampled_from([b"\n\n", b"\r\n\r\n"]),
)
def test_a_stream_split_anywhere_gives_the_same_bytes(
    messages: list[dict[str, str]], places: list[int], field: str, escapes: bool, end: bytes
) -> None:
    chunks = [chunk(**message) for message in messages]
    stream = stream_of(chunks, escapes=escapes, end=end)
    out = b"".join(fed(ReasoningLines(field, None), cut(stream, places)))
    assert out == stream_of([renamed_in_order(chunk(**message), field) for message in messages], escapes=escapes, end=end)


def renamed_in_order(value: dict[str, Any], field: str) -> dict[str, Any]:
    """As the edit does it: the new name stands where the old one stood, before what is kept of it."""
    choice = value["choices"][0]
    delta: dict[str, Any] = {}
    for name, text in choice["delta"].items():
        if name == "reasoning":
            delta["reasoning_content"] = text
        if name != "reasoning" or field == "both":
            delta[name] = text
    choice["delta"] = delta
    return value


def test_bytes_one_by_one_come_out_line_by_line() -> None:
    stream = stream_of([chunk(reasoning="ä🌍"), chunk(content="x")])
    out = fed(ReasoningLines("reasoning_content", None), [bytes([byte]) for byte in stream])
    assert all(piece == b"" or piece.endswith(b"\n") for piece in out)
    assert b"".join(out) == stream_of([chunk(reasoning_content="ä🌍"), chunk(content="x")])


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"data: ", b'"reasoning"', b"{", b"}"]), max_size=20))
def test_bytes_that_are_no_chunks_pass_unchanged(pieces: list[bytes]) -> None:
    assert b"".join(fed(ReasoningLines("both", None), pieces)) == b"".join(pieces)


@pytest.mark.parametrize("beyond", [-20, -3, 0, 1, 5000])
@pytest.mark.parametrize("step", [997, 4096, 40_000])
def test_a_line_beyond_the_bound_passes_as_it_is_and_the_next_is_edited(beyond: int, step: int) -> None:
    long = b"data: " + b"x" * (LINE_BYTES + beyond) + b'"reasoning"'
    stream = long + b"\n\n" + stream_of([chunk(reasoning="r")])
    edit = ReasoningLines("reasoning_content", None)
    held = 0
    out = b""
    for at in range(0, len(stream), step):
        out += edit.feed(stream[at : at + step], last=False)
        held = max(held, at + step - len(out))
    out += edit.feed(b"", last=True)
    assert out == long + b"\n\n" + stream_of([renamed(chunk(reasoning="r"), "reasoning_content")])
    assert held <= LINE_BYTES + step


def test_the_usage_event_is_still_taken_out() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 1}}
    stream = stream_of([chunk(reasoning="r"), usage])
    for step in (1, 7, 10_000):
        edit = ReasoningLines("reasoning_content", HiddenUsage())
        out = fed(edit, [stream[at : at + step] for at in range(0, len(stream), step)])
        assert b"".join(out) == stream_of([renamed(chunk(reasoning="r"), "reasoning_content")])


# A whole answer


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_a_whole_answer_comes_at_its_end(places: list[int]) -> None:
    body = orjson.dumps({"choices": [{"message": {"reasoning": "ä", "content": '"reasoning":"x"'}}]})
    out = fed(WholeReasoning("reasoning_content"), cut(body, places))
    assert out == [b""] * (len(out) - 1) + [body.replace(b'"reasoning":"\xc3', b'"reasoning_content":"\xc3')]


def test_a_whole_answer_beyond_the_bound_passes_as_it_is() -> None:
    piece = b"x" * (WHOLE_BYTES // 4)
    edit = WholeReasoning("both")
    out = [edit.feed(piece, last=False) for _ in range(6)]
    assert [len(part) // len(piece) for part in out] == [0, 0, 0, 0, 5, 1]
    assert edit.feed(b"", last=True) == b""
