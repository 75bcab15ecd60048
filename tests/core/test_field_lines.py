"""Header lines: the ordinary ones are read as RFC 9112 says, all others are left to a full parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.field_lines import KnownLines, field_of


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"Host: gateway", (b"host", b"gateway")),
        (b"X-A:b", (b"x-a", b"b")),
        (b"x-a: \t b c\t d", (b"x-a", b"b c\t d")),
        ("x-a: ü".encode(), (b"x-a", "ü".encode())),
    ],
)
def test_an_ordinary_line_is_a_name_and_a_value(line: bytes, field: tuple[bytes, bytes]) -> None:
    assert field_of(line) == field


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b": a", b"x :a", b" x: a", b"x: a ", b"x: a\t", b"x:", b"x: ", b"x: a\x00b", b"x: a\rb", b"x: a\nb", b"x: a\x7f"],
)
def test_all_else_is_not(line: bytes) -> None:
    assert field_of(line) is None


@given(st.lists(st.integers(0, 5000), max_size=3000))
def test_what_is_remembered_is_bounded(numbers: list[int]) -> None:
    lines = KnownLines(lambda name, value: (name, value))
    for number in numbers:
        line = b"x-%d: %d" % (number, number)
        assert (lines.known.get(line) or lines.learn(line)) == (b"x-%d" % number, b"%d" % number)
    assert len(lines.known) <= 2048


def test_a_long_line_is_not_remembered() -> None:
    lines = KnownLines(lambda name, value: value)
    assert lines.learn(b"x: " + b"a" * 1000) == b"a" * 1000
    assert not lines.known


def test_what_is_no_ordinary_field_is_not_remembered() -> None:
    lines = KnownLines(lambda name, value: None)
    assert lines.learn(b"x: a") is None
    assert not lines.known
