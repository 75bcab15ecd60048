"""Gateways hear each other: what is signed and new is believed, and who is silent counts no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from pydantic import ValidationError

from serving.core.errors import ConfigurationError
from serving.fleet.dns import LookupFailed
from serving.fleet.peers import MOST_PEERS, Peers
from serving.fleet.seal import RECORD_BYTES, Refusal
from serving.peer_settings import PeerSettings
from tests.doubles.settling import HANG_SECONDS

SECRET = "a secret of the whole release"
SELDOM = {"period_seconds": 60, "silence_seconds": 300}
"""So that nothing is said but what a test lets be said."""


class Diary:
    """News that are told once, and all that was heard."""

    def __init__(self) -> None:
        self.untold: list[bytes] = []
        self.heard: list[tuple[bytes, bytes]] = []
        self.forgotten: list[bytes] = []
        self.something = asyncio.Event()
        self.senseless = b""

    def records(self) -> Iterable[bytes]:
        told, self.untold = self.untold, []
        return told

    def hear(self, peer: bytes, record: bytes) -> None:
        if record and record == self.senseless:
            raise ValueError("no sense")
        self.heard.append((peer, record))
        self.something.set()

    def forget(self, peer: bytes) -> None:
        self.forgotten.append(peer)


class Gateway:
    """One side, with a clock that stands until it is set and a name that leads to the other side."""

    def __init__(self, *others: str, secret: str = SECRET, **fields: object) -> None:
        self.now = 0.0
        self.diary = Diary()
        settings = PeerSettings.model_validate(
            {"addresses": others or ("127.0.0.1:9",), "port": 0, "secret": secret, **SELDOM, **fields}
        )
        self.peers = Peers(settings, self.diary, clock=lambda: self.now)

    @property
    def refusals(self) -> dict[Refusal, int]:
        """Bytes of what was refused, by reason."""
        return {reason: size for reason, size in self.peers.tally.refused.items() if size}

    def lead_to(self, other: Gateway) -> None:
        self.peers.targets = (("127.0.0.1", other.peers.port),)

    def datagram(self, *records: bytes) -> bytes:
        """What it would send."""
        (datagram,), _ = self.peers._seal.pack(records, 1)
        return datagram


async def settled(diary: Diary) -> None:
    await asyncio.wait_for(diary.something.wait(), HANG_SECONDS)
    diary.something.clear()


async def test_news_reach_the_other_gateway() -> None:
    one, other = Gateway(), Gateway()
    async with one.peers, other.peers:
        one.lead_to(other)
        one.diary.untold = [b"first", b"second"]
        one.peers.speak()
        await settled(other.diary)
        assert [record for _, record in other.diary.heard] == [b"first", b"second"]
        assert (one.peers.heard, list(other.peers.heard)) == ({}, [one.peers.own])


async def test_a_gateway_does_not_hear_itself() -> None:
    one = Gateway()
    async with one.peers:
        one.lead_to(one)
        one.peers.datagram_received(one.datagram(b"own news"), None)
        assert one.diary.heard == []
        assert (one.peers.heard, one.refusals) == ({}, {})


def test_who_is_silent_counts_no_more_and_cannot_be_played_again() -> None:
    one, other = Gateway(), Gateway()
    datagrams = [one.datagram(b"old news"), one.datagram(b"news")]
    for datagram in datagrams:
        other.peers.datagram_received(datagram, None)
    other.now = 299.0
    other.peers.speak()
    assert other.peers.heard == {one.peers.own: 299.0}
    other.now = 301.0
    other.peers.speak()
    assert (other.peers.heard, other.diary.forgotten) == ({}, [one.peers.own])
    for datagram in datagrams:
        other.peers.datagram_received(datagram, None)
    assert other.refusals == {Refusal.OLD: sum(map(len, datagrams))}
    assert [record for _, record in other.diary.heard] == [b"old news", b"news"]


def test_datagrams_may_overtake_each_other() -> None:
    one, other = Gateway(), Gateway()
    first, second = one.datagram(b"first"), one.datagram(b"second")
    for datagram in (second, first, first, second):
        other.peers.datagram_received(datagram, None)
    assert [record for _, record in other.diary.heard] == [b"second", b"first"]


def hostile(one: Gateway) -> dict[str, tuple[bytes, Refusal]]:
    """What an attacker who hears and sends everything has, besides what the gateway `one` has really sent."""
    signed = one.datagram(b"news")
    stranger = Gateway(secret="a secret of another release")
    return {
        "unsigned": (signed[:-16] + bytes(16), Refusal.SIGNATURE),
        "changed": (signed.replace(b"news", b"nows"), Refusal.SIGNATURE),
        "another release's": (stranger.datagram(b"news"), Refusal.SIGNATURE),
        "oversized": (signed + bytes(60_000), Refusal.SIZE),
        "garbage": (b"GET / HTTP/1.1", Refusal.FORMAT),
        "nothing": (b"", Refusal.FORMAT),
    }


@pytest.mark.parametrize("kind", hostile(Gateway()))
def test_what_an_attacker_sends_changes_nothing(kind: str) -> None:
    one, other = Gateway(), Gateway()
    datagram, refusal = hostile(one)[kind]
    other.peers.datagram_received(datagram, None)
    assert (other.diary.heard, other.peers.heard) == ([], {})
    assert list(other.peers.tally.refused) == list(Refusal)
    assert other.peers.tally.refused[refusal] == len(datagram)
    assert other.peers.tally.received == 0


def test_news_that_make_no_sense_are_refused_and_the_next_are_heard() -> None:
    one, other = Gateway(), Gateway()
    other.diary.senseless = b"of another version"
    odd = one.datagram(b"of another version")
    other.peers.datagram_received(odd, None)
    other.peers.datagram_received(one.datagram(b"news"), None)
    assert other.refusals == {Refusal.FORMAT: len(odd)}
    assert [record for _, record in other.diary.heard] == [b"news"]


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    one = Gateway(datagrams_per_period=2)
    async with one.peers:
        one.lead_to(one)
        one.diary.untold = [bytes(RECORD_BYTES)] * 5
        one.peers.speak()
        assert one.peers.tally.dropped == 3 * RECORD_BYTES
        assert 2 * RECORD_BYTES < one.peers.tally.sent < 3 * RECORD_BYTES


async def test_news_that_fail_once_are_told_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    one = Gateway(period_seconds=0.1)
    told = asyncio.Event()

    def records() -> Iterable[bytes]:
        if caplog.records:
            told.set()
            return []
        raise RuntimeError("a fault of the router")

    one.diary.records = records  # type: ignore[method-assign]
    async with one.peers:
        await asyncio.wait_for(told.wait(), HANG_SECONDS)
    assert "could not be sent" in caplog.text


def test_no_crowd_of_strangers_takes_memory() -> None:
    one = Gateway()
    for _ in range(3 * MOST_PEERS):
        one.peers.datagram_received(Gateway().datagram(), None)
    assert len(one.peers.heard) == MOST_PEERS
    assert one.refusals == {Refusal.TOO_MANY: 2 * MOST_PEERS * len(Gateway().datagram())}


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
    await asyncio.wait_for(asked.wait(), HANG_SECONDS)
    find.cancel()
    assert peers.targets == (("127.0.0.1", 8002),)


@pytest.mark.parametrize(
    ("bind_host", "found", "reached", "told"),
    [
        ("127.0.0.1", ["10.0.0.7"], [], True),
        ("127.0.0.1", ["127.0.0.2", "10.0.0.7"], ["127.0.0.2"], False),
        ("0.0.0.0", ["10.0.0.7", "fd00::7"], ["10.0.0.7"], False),
        ("0.0.0.0", ["fd00::7"], [], True),
        ("0.0.0.0", [], [], False),
        ("::1", ["fd00::7"], [], True),
        ("localhost", ["10.0.0.7"], ["10.0.0.7"], False),
    ],
)
async def test_gateways_that_cannot_be_told_anything_are_named_once(
    caplog: pytest.LogCaptureFixture, bind_host: str, found: list[str], reached: list[str], told: bool
) -> None:
    looked_up = asyncio.Event()
    count = 0

    async def resolve(host: str) -> list[str]:
        nonlocal count
        count += 1
        if count == 3:
            looked_up.set()
        return found

    fields = {"host": "gateways.test", "port": 8002, "lookup_seconds": 0.01, "secret": SECRET, "bind_host": bind_host}
    peers = Peers(PeerSettings.model_validate(fields), Diary(), resolve=resolve)
    finding = asyncio.create_task(peers._find())
    await looked_up.wait()
    assert peers.targets == tuple((address, 8002) for address in reached)
    finding.cancel()
    assert sum("peers.bind_host" in record.message for record in caplog.records) == told


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
        ({"period_seconds": 1.0}, "silence_seconds: must be at least 5 times"),
        ({"addresses": ["a b:1"], "secret": SECRET}, "valid host name"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        PeerSettings.model_validate(fields)
    assert SECRET not in str(caught.value.errors(include_input=False))
