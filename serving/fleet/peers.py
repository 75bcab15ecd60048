"""Gateways of one release tell each other what they have under way: small signed datagrams, none of which has to arrive.

A datagram holds records, whose meaning is the router's. It carries who sent it, when, and a number that only grows, so that
an old one cannot be played again. What is lost is lost: the next period says how things are by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest
from itertools import islice
from typing import Protocol, cast

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.core.errors import ConfigurationError
from serving.fleet.dns import LookupFailed, Resolve, resolve
from serving.peer_settings import PeerSettings

log = logging.getLogger("serving.fleet")

MOST_PEERS = 256
"""Gateways that are listened to; a release has fewer."""
DATAGRAM_BYTES = 1200
"""Goes through any network in one piece."""
CLOCK_SECONDS = 60.0
"""Datagrams that are older or newer than this are not believed; the clocks of one cluster are closer than that."""
_HEAD = struct.Struct("!4s8sQd")
"""Format, sender, number, wall seconds; then records, each behind its length, and the signature."""
_LENGTH = struct.Struct("!H")
_FORMAT = b"SPG1"
_SIGNATURE_BYTES = 16
RECORD_BYTES = DATAGRAM_BYTES - _HEAD.size - _SIGNATURE_BYTES - _LENGTH.size
"""The most that one record can have."""


class Refusal(StrEnum):
    """Why a datagram was not believed."""

    FORMAT = "format"
    SIGNATURE = "signature"
    CLOCK = "clock"
    OLD = "old"
    TOO_MANY = "too_many"


class News(Protocol):
    """What this gateway has to say, and who wants to hear the others."""

    def records(self) -> Iterable[bytes]:
        """The news since the last call, most important first, each of at most `RECORD_BYTES`."""
        ...

    def hear(self, peer: bytes, record: bytes) -> None:
        """A record of another gateway."""
        ...

    def forget(self, peer: bytes) -> None:
        """That gateway is silent: what it said no longer counts."""
        ...


class Seal:
    """Packs records into signed datagrams, and opens those of others."""

    def __init__(self, secret: bytes, clock: Clock = wall_seconds) -> None:
        self._key = blake2b(secret, digest_size=32, person=b"serving-peers").digest()
        self._clock = clock
        self.own = secrets.token_bytes(8)
        """This gateway's name, new with each start."""
        self._number = 0

    def pack(self, records: Iterable[bytes]) -> Iterable[bytes]:
        """Datagrams that hold all the records; at least one, since silence means death."""
        packed: list[bytes] = []
        room = RECORD_BYTES + _LENGTH.size
        for record in records:
            if len(record) + _LENGTH.size > room:
                yield self._sealed(packed)
                packed, room = [], RECORD_BYTES + _LENGTH.size
            packed.append(_LENGTH.pack(len(record)) + record)
            room -= len(record) + _LENGTH.size
        yield self._sealed(packed)

    def _sealed(self, packed: Sequence[bytes]) -> bytes:
        self._number += 1
        text = _HEAD.pack(_FORMAT, self.own, self._number, self._clock()) + b"".join(packed)
        return text + self._signature(text)

    def open(self, datagram: bytes) -> tuple[bytes, int, list[bytes]] | Refusal:
        """Sender, number and records of a datagram, or why it is not believed."""
        text, signature = datagram[:-_SIGNATURE_BYTES], datagram[-_SIGNATURE_BYTES:]
        if len(text) < _HEAD.size or text[:4] != _FORMAT:
            return Refusal.FORMAT
        if not compare_digest(self._signature(text), signature):
            return Refusal.SIGNATURE
        _, sender, number, sent = _HEAD.unpack_from(text)
        if not abs(self._clock() - sent) <= CLOCK_SECONDS:
            return Refusal.CLOCK
        records = []
        at = _HEAD.size
        while at < len(text):
            (length,) = _LENGTH.unpack_from(text, at)
            records.append(text[at + _LENGTH.size : at + _LENGTH.size + length])
            at += _LENGTH.size + length
        return sender, number, records

    def _signature(self, text: bytes) -> bytes:
        return blake2b(text, digest_size=_SIGNATURE_BYTES, key=self._key).digest()


class Peers(asyncio.DatagramProtocol):
    """Sends news to the other gateways, hears theirs, and notices who has fallen silent."""

    def __init__(
        self,
        settings: PeerSettings,
        news: News,
        *,
        resolve: Resolve = resolve,
        clock: Clock = monotonic,
        on_refusal: Callable[[Refusal], None] = lambda refusal: None,
        on_drop: Callable[[int], None] = lambda records: None,
    ) -> None:
        self._settings = settings
        self._news = news
        self._resolve = resolve
        self._clock = clock
        self._on_refusal = on_refusal
        self._on_drop = on_drop
        self._seal = Seal(settings.signing_secret() if settings.on else b"")
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._targets: tuple[tuple[str, int], ...] = ()
        self._heard: dict[bytes, float] = {}
        """When each of the others was heard last."""
        self._newest: OrderedDict[bytes, int] = OrderedDict()
        """The number of each one's newest datagram, also of those that have fallen silent: theirs cannot be played again."""

    @property
    def count(self) -> int:
        """Other gateways that were heard lately."""
        return len(self._heard)

    @property
    def port(self) -> int:
        """Where this gateway listens."""
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    async def __aenter__(self) -> Peers:
        settings = self._settings
        if settings.on:
            bound = _bound(settings)
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)
            self._tasks = [
                asyncio.create_task(self._find(), name="peers-find"),
                asyncio.create_task(self._speak(), name="peers-speak"),
            ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._transport is not None:
            self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's but are no subclass of them.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        opened = self._seal.open(data)
        if isinstance(opened, Refusal):
            self._on_refusal(opened)
            return
        sender, number, records = opened
        if sender == self._seal.own:
            return
        if number <= self._newest.get(sender, 0):
            self._on_refusal(Refusal.OLD)
            return
        if sender not in self._heard and len(self._heard) >= MOST_PEERS:
            self._on_refusal(Refusal.TOO_MANY)
            return
        self._heard[sender] = self._clock()
        self._newest[sender] = number
        self._newest.move_to_end(sender)
        if len(self._newest) > 2 * MOST_PEERS:
            self._newest.popitem(last=False)
        for record in records:
            self._news.hear(sender, record)

    def error_received(self, exc: Exception) -> None:
        """A gateway that is gone: nothing to do, it will not be looked up again."""

    # our side

    async def _find(self) -> None:
        settings = self._settings
        failure = ""
        while True:
            try:
                self._targets = await self._look_up()
                failure = ""
            except LookupFailed as error:
                if str(error) != failure:
                    log.warning("other gateways cannot be looked up: %s", error)
                failure = str(error)
            await asyncio.sleep(settings.lookup_seconds)

    async def _look_up(self) -> tuple[tuple[str, int], ...]:
        if self._settings.host is not None:
            return tuple((address, self._settings.port) for address in await self._addresses(self._settings.host))
        found: list[tuple[str, int]] = []
        for host, port in (_parsed(address) for address in self._settings.addresses):
            with contextlib.suppress(LookupFailed):
                # One that has no address now is away, and no reason not to speak with the others.
                found += [(address, port) for address in (await self._addresses(host))[:1]]
        return tuple(found)

    async def _addresses(self, host: str) -> list[str]:
        """The addresses of a name that this socket can send to."""
        wide = ":" in self._settings.bind_host
        return [address for address in await self._resolve(host) if (":" in address) is wide]

    async def _speak(self) -> None:
        while True:
            self.speak()
            await asyncio.sleep(self._settings.period_seconds)

    def speak(self) -> None:
        """Send the news of one period, and let go of those who were silent for too long."""
        now = self._clock()
        for peer, heard in list(self._heard.items()):
            if now - heard > self._settings.silence_seconds:
                del self._heard[peer]
                self._news.forget(peer)
        records = list(self._news.records())
        transport = self._transport
        if transport is None:
            return
        sent_records = 0
        for datagram in islice(self._seal.pack(records), self._settings.datagrams_per_period):
            sent_records += _count(datagram)
            for target in self._targets:
                transport.sendto(datagram, target)
        if sent_records < len(records):
            self._on_drop(len(records) - sent_records)


def _bound(settings: PeerSettings) -> socket.socket:
    """The socket that is listened on. Raises: ConfigurationError."""
    bound = socket.socket(socket.AF_INET6 if ":" in settings.bind_host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        bound.bind((settings.bind_host, settings.port))
    except OSError as error:
        bound.close()
        where = f"{settings.bind_host}:{settings.port}"
        raise ConfigurationError(f"peers.port: {where} cannot be listened on: {error.strerror or error}") from None
    return bound


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _count(datagram: bytes) -> int:
    """How many records a datagram of ours holds."""
    count, at = 0, _HEAD.size
    while at < len(datagram) - _SIGNATURE_BYTES:
        at += _LENGTH.size + int(_LENGTH.unpack_from(datagram, at)[0])
        count += 1
    return count
