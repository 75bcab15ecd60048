"""Gateways hear each other: what is signed and new is believed, and who is silent counts no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serving.core.errors import ConfigurationError
from serving.fleet.dns import LookupFailed
from serving.fleet.peers import CLOCK_SECONDS, DATAGRAM_BYTES, MOST_PEERS, RECORD_BYTES, Peers, Refusal, Seal
from serving.peer_settings import PeerSettings

SECRET = "a secret of the whole release"


class Diary:
    """News that are told once, and all that was heard."""

    def __init__(self) -> None:
        self.untold: list[bytes] = []
        self.heard: list[tuple[bytes, bytes]] = []
        self.forgotten: list[bytes] = []
        self.something = asyncio.Event()

    def records(self) -> Iterable[bytes]:
        told, self.untold = self.untold, []
        return told

    def hear(self, peer: bytes, record: bytes) -> None:
        self.heard.append((peer, record))
        self.something.set()

    def forget(self, peer: bytes) -> None:
        self.forgotten.append(peer)


class Gateway:
    """One side, with a clock that stands until it is set and a name that leads to the other side."""

    def __init__(self, *others: str, secret: str = SECRET, **fields: object) -> None:
        self.now = 0.0
        self.refusals: list[Refusal] = []
        self.dropped = 0
        self.diary = Diary()
        settings = PeerSettings.model_validate(
            {"addresses": others or ("127.0.0.1:9",), "port": 0, "period_seconds": 60, "secret": secret, **fields}
        )
        self.peers = Peers(settings, self.diary, clock=lambda: self.now, on_refusal=self.refusals.append, on_drop=self._drop)

    def _drop(self, records: int) -> None:
        self.dropped += records

    async def lead_to(self, other: Gateway) -> None:
        self.peers._targets = (("127.0.0.1", other.peers.port),)


async def settled(diary: Diary) -> None:
    await asyncio.wait_for(diary.something.wait(), 10)
    diary.something.clear()


@given(st.lists(st.binary(max_size=RECORD_BYTES), max_size=20))
def test_what_is_packed_comes_out_again_in_datagrams_that_fit_any_network(records: list[bytes]) -> None:
    ours, theirs = Seal(SECRET.encode()), Seal(SECRET.encode())
    datagrams = list(ours.pack(records))
    assert all(len(datagram) <= DATAGRAM_BYTES for datagram in datagrams)
    opened = [theirs.open(datagram) for datagram in datagrams]
    assert [sender for sender, _, _ in opened] == [ours.own] * len(datagrams)  # type: ignore[misc]
    assert [record for _, _, found in opened for record in found] == records  # type: ignore[misc]
    numbers = [number for _, number, _ in opened]  # type: ignore[misc]
    assert numbers == sorted(set(numbers))


@given(st.data())
def test_a_datagram_that_was_changed_anywhere_is_not_believed(data: st.DataObject) -> None:
    (datagram,) = Seal(SECRET.encode()).pack([b"some news"])
    at = data.draw(st.integers(0, len(datagram) - 1))
    changed = datagram[:at] + bytes([datagram[at] ^ data.draw(st.integers(1, 255))]) + datagram[at + 1 :]
    assert Seal(SECRET.encode()).open(changed) in (Refusal.SIGNATURE, Refusal.FORMAT)


@given(st.binary(max_size=2000))
def test_garbage_is_not_believed(garbage: bytes) -> None:
    assert isinstance(Seal(SECRET.encode()).open(garbage), Refusal)


@pytest.mark.parametrize("away_seconds", [CLOCK_SECONDS + 1, -CLOCK_SECONDS - 1])
def test_a_datagram_from_another_time_is_not_believed(away_seconds: float) -> None:
    (datagram,) = Seal(SECRET.encode(), clock=lambda: 1e9).pack([b"news"])
    assert Seal(SECRET.encode(), clock=lambda: 1e9 + away_seconds).open(datagram) is Refusal.CLOCK


def test_another_release_is_not_believed() -> None:
    (datagram,) = Seal(SECRET.encode()).pack([b"news"])
    assert Seal(b"a secret of another release").open(datagram) is Refusal.SIGNATURE


async def test_news_reach_the_other_gateway() -> None:
    one, other = Gateway(), Gateway()
    async with one.peers, other.peers:
        await one.lead_to(other)
        one.diary.untold = [b"first", b"second"]
        one.peers.speak()
        await settled(other.diary)
        assert [record for _, record in other.diary.heard] == [b"first", b"second"]
        assert (one.peers.count, other.peers.count) == (0, 1)


async def test_a_gateway_does_not_hear_itself() -> None:
    one = Gateway()
    async with one.peers:
        await one.lead_to(one)
        (datagram,) = one.peers._seal.pack([b"own news"])
        one.peers.datagram_received(datagram, None)
        assert one.diary.heard == []
        assert (one.peers.count, one.refusals) == (0, [])


async def test_who_is_silent_counts_no_more_and_cannot_be_played_again() -> None:
    one, other = Gateway(), Gateway(silence_seconds=1.0)
    (old,) = one.peers._seal.pack([b"old news"])
    (new,) = one.peers._seal.pack([b"news"])
    other.peers.datagram_received(new, None)
    other.now = 0.9
    other.peers.speak()
    assert other.peers.count == 1
    other.now = 1.1
    other.peers.speak()
    assert (other.peers.count, other.diary.forgotten) == (0, [one.peers._seal.own])
    for replayed in (old, new):
        other.peers.datagram_received(replayed, None)
    assert other.refusals == [Refusal.OLD, Refusal.OLD]
    assert [record for _, record in other.diary.heard] == [b"news"]


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    one = Gateway(datagrams_per_period=2)
    async with one.peers:
        one.diary.untold = [bytes(RECORD_BYTES)] * 5
        one.peers.speak()
        assert one.dropped == 3


def test_no_crowd_of_strangers_takes_memory() -> None:
    one = Gateway()
    for _ in range(3 * MOST_PEERS):
        (datagram,) = Seal(SECRET.encode()).pack([])
        one.peers.datagram_received(datagram, None)
    assert one.peers.count == MOST_PEERS
    assert one.refusals == [Refusal.TOO_MANY] * (2 * MOST_PEERS)


async def test_gateways_find_each_other_by_a_name_and_outlive_its_server() -> None:
    answers: list[list[str] | None] = [["127.0.0.1", "::1"], None]
    asked = asyncio.Event()

    async def resolve(host: str) -> list[str]:
        assert host == "gateways.test"
        answer = answers.pop(0) if answers else None
        if not answers:
            asked.set()
        if answer is None:
            raise LookupFailed("the name server is away")
        return answer

    settings = PeerSettings.model_validate(
        {"host": "gateways.test", "port": 8002, "lookup_seconds": 0.01, "secret": SECRET, "bind_host": "127.0.0.1"}
    )
    peers = Peers(settings, Diary(), resolve=resolve)
    find = asyncio.create_task(peers._find())
    await asyncio.wait_for(asked.wait(), 10)
    find.cancel()
    assert peers._targets == (("127.0.0.1", 8002),)


async def test_a_taken_port_is_named() -> None:
    one = Gateway()
    async with one.peers:
        with pytest.raises(ConfigurationError, match=r"peers\.port: 127\.0\.0\.1:\d+ cannot be listened on"):
            await Gateway(port=one.peers.port).peers.__aenter__()


async def test_a_gateway_alone_opens_nothing() -> None:
    async with Peers(PeerSettings(), Diary()) as peers:
        assert peers._transport is None
        peers.speak()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": "g"}, "secret: is missing"),
        ({"host": "g", "secret": "short"}, "at least 16 bytes"),
        ({"host": "g", "addresses": ["a:1"], "secret": SECRET}, "host and addresses are both given"),
        ({"host": "g", "port": 0, "secret": SECRET}, "port: is 0"),
        ({"addresses": ["nowhere"], "secret": SECRET}, "must be HOST:PORT"),
        ({"host": "g", "secret": SECRET, "secret_file": "/x"}, "secret and secret_file are both given"),
        ({"host": "g", "secret_file": "/not/there"}, "cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        PeerSettings.model_validate(fields)
    assert SECRET not in str(caught.value.errors(include_input=False))
