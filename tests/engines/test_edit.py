"""The edit changes what it should and not one byte more."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.edit import edited

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "b", "priority", "stream_options", 'q"\\', "é", "", "{", ","])
BLANKS = st.text(alphabet=" \t\r\n", max_size=2)


def spelt(draw: st.DrawFn, name: str) -> str:
    """The name as JSON, some characters by escape."""
    text = json.dumps(name)[1:-1]
    if name and draw(st.booleans()) and name[0].isalpha():
        text = f"\\u{ord(name[0]):04x}" + json.dumps(name[1:])[1:-1]
    return f'"{text}"'


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """The text of an object, names repeated and spelt in any way, and its members in order."""
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    parts = []
    for name, value in members:
        value_text = draw(
            st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1)])
        )
        parts.append(f"{draw(BLANKS)}{spelt(draw, name)}{draw(BLANKS)}:{draw(BLANKS)}{value_text}{draw(BLANKS)}")
    text = f"{draw(BLANKS)}{{{','.join(parts) or draw(BLANKS)}}}{draw(BLANKS)}"
    return text.encode(), members


@given(objects(), st.sets(NAMES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=2))
def test_the_result_is_the_object_without_and_with(
    given_object: tuple[bytes, list[tuple[str, Any]]], drop: set[str], put: dict[str, Any]
) -> None:
    body, members = given_object
    result = edited(body, orjson.loads(body), drop=drop, put={name: orjson.dumps(value) for name, value in put.items()})
    left: list[tuple[str, Any]] = json.loads(result, object_pairs_hook=list)
    flat = [(name, json.loads(json.dumps(value))) for name, value in members if name not in drop and name not in put]
    assert [name for name, _ in left] == [name for name, _ in flat] + list(put)
    assert json.loads(result) == dict(flat) | put


@given(objects())
def test_nothing_to_do_changes_nothing(given_object: tuple[bytes, list[tuple[str, Any]]]) -> None:
    body, _ = given_object
    assert edited(body, orjson.loads(body), drop={"absent"}, put={}) is body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1, "priority" : {"x":[1,"}"]} ,"b":1.0}', b'{"a":1 ,"b":1.0}'),
        (b'{"priority":1,"a":"\\"priority\\":2"}', b'{"a":"\\"priority\\":2"}'),
        (b'{"\\u0070riority":1,"priority":2,"a":9007199254740993}', b'{"a":9007199254740993}'),
        (b'{ "priority": 1 }', b"{}"),
        (b'{"a":{"priority":1}}', b'{"a":{"priority":1}}'),
    ],
)
def test_only_the_outermost_members_go(body: bytes, expected: bytes) -> None:
    assert edited(body, orjson.loads(body), drop={"priority"}, put={}) == expected
