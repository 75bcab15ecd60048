"""What gateways say to each other is believed when it is signed, of this time and new, and not otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fleet.seal import CLOCK_SECONDS, DATAGRAM_BYTES, RECORD_BYTES, WINDOW, Refusal, Seal, Window

SECRET = b"a secret of the whole release"


@given(st.lists(st.binary(max_size=RECORD_BYTES), max_size=20), st.integers(1, 30))
def test_what_is_packed_comes_out_again_in_datagrams_that_fit_any_network(records: list[bytes], most: int) -> None:
    ours, theirs = Seal(SECRET), Seal(SECRET)
    datagrams, left_bytes = ours.pack(records, most)
    assert 1 <= len(datagrams) <= most
    assert all(len(datagram) <= DATAGRAM_BYTES for datagram in datagrams)
    opened = [theirs.open(datagram) for datagram in datagrams]
    assert [sender for sender, _, _ in opened] == [ours.own] * len(datagrams)  # type: ignore[misc]
    found = [record for _, _, packed in opened for record in packed]  # type: ignore[misc]
    assert sum(map(len, found)) + left_bytes == sum(map(len, records))
    if not left_bytes:
        assert [record for record in found if record] == [record for record in records if record]
    numbers = [number for _, number, _ in opened]  # type: ignore[misc]
    assert numbers == sorted(set(numbers))


@given(st.data())
def test_a_datagram_that_was_changed_anywhere_is_not_believed(data: st.DataObject) -> None:
    (datagram,), _ = Seal(SECRET).pack([b"some news"], 1)
    at = data.draw(st.integers(0, len(datagram) - 1))
    changed = datagram[:at] + bytes([datagram[at] ^ data.draw(st.integers(1, 255))]) + datagram[at + 1 :]
    assert Seal(SECRET).open(changed) in (Refusal.SIGNATURE, Refusal.FORMAT)


@given(st.binary(max_size=2000))
def test_garbage_is_not_believed(garbage: bytes) -> None:
    assert isinstance(Seal(SECRET).open(garbage), Refusal)


@given(st.binary(max_size=RECORD_BYTES))
def test_what_is_signed_and_makes_no_sense_is_refused(text: bytes) -> None:
    """As from another version of this program: opening it ends in records or in a refusal."""
    seal = Seal(SECRET)
    (datagram,), _ = seal.pack([], 1)
    head = datagram[:-16] + text
    opened = Seal(SECRET).open(head + seal._signature(head))
    assert opened is Refusal.FORMAT or (
        not isinstance(opened, Refusal) and 2 * len(opened[2]) + sum(map(len, opened[2])) == len(text)
    )


def test_a_datagram_that_is_too_long_is_not_even_looked_at() -> None:
    seal = Seal(SECRET)
    text = seal.pack([bytes(RECORD_BYTES)], 1)[0][0][:-16] + bytes(1)
    assert Seal(SECRET).open(text + seal._signature(text)) is Refusal.SIZE


@pytest.mark.parametrize("away_seconds", [CLOCK_SECONDS + 1, -CLOCK_SECONDS - 1])
def test_a_datagram_from_another_time_is_not_believed(away_seconds: float) -> None:
    (datagram,), _ = Seal(SECRET, clock=lambda: 1e9).pack([b"news"], 1)
    assert Seal(SECRET, clock=lambda: 1e9 + away_seconds).open(datagram) is Refusal.CLOCK


def test_clocks_may_differ_by_less() -> None:
    (datagram,), _ = Seal(SECRET, clock=lambda: 1e9).pack([b"news"], 1)
    assert not isinstance(Seal(SECRET, clock=lambda: 1e9 + CLOCK_SECONDS - 1).open(datagram), Refusal)


def test_another_release_is_not_believed() -> None:
    (datagram,), _ = Seal(SECRET).pack([b"news"], 1)
    assert Seal(b"a secret of another release").open(datagram) is Refusal.SIGNATURE


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=200))
def test_each_number_is_taken_once_and_none_that_is_long_past(numbers: list[int]) -> None:
    window, seen, newest = Window(), set[int](), 0
    for number in numbers:
        assert window.take(number) is (number not in seen and number > newest - WINDOW)
        seen.add(number)
        newest = max(newest, number)
