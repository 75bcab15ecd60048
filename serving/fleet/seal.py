"""Datagrams that only gateways of the same release can write, and that are believed once.

    format, sender, number, wall seconds | records, each behind its length | signature

The signature is a keyed hash over everything before it. The sender's name is made anew with each start and its number only grows,
so that a datagram that was believed cannot be played again. The time is for those who do not know the sender yet, after a start
of their own: what was caught more than a minute ago is worth nothing.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest

from serving.core.clock import Clock, wall_seconds

DATAGRAM_BYTES = 1200
"""Goes through any network in one piece; a longer one is not even looked at."""
CLOCK_SECONDS = 60.0
"""Datagrams that are older or newer than this are not believed; the clocks of one cluster are closer than that."""
_HEAD = struct.Struct("!4s8sQd")
_LENGTH = struct.Struct("!H")
_FORMAT = b"SPG1"
_SIGNATURE_BYTES = 16
_ROOM_BYTES = DATAGRAM_BYTES - _HEAD.size - _SIGNATURE_BYTES
RECORD_BYTES = _ROOM_BYTES - _LENGTH.size
"""The most that one record can have."""
WINDOW = 256
"""Of one sender, so many datagrams may overtake another one; it is believed all the same, and once."""


class Refusal(StrEnum):
    """Why a datagram was not believed."""

    SIZE = "size"
    FORMAT = "format"
    SIGNATURE = "signature"
    CLOCK = "clock"
    OLD = "old"
    TOO_MANY = "too_many"


class Seal:
    """Packs records into signed datagrams, and opens those of others."""

    def __init__(self, secret: bytes, clock: Clock = wall_seconds) -> None:
        self._key = blake2b(secret, digest_size=32, person=b"serving-peers").digest()
        self._clock = clock
        self.own = secrets.token_bytes(8)
        """This gateway's name, new with each start."""
        self._number = 0

    def pack(self, records: Iterable[bytes], most: int) -> tuple[list[bytes], int]:
        """At most so many datagrams with the records, in their order, and how many bytes of records found no room.

        One datagram at least, since silence means death.
        """
        datagrams: list[bytes] = []
        packed: list[bytes] = []
        room, left_bytes = _ROOM_BYTES, 0
        for record in records:
            size = len(record) + _LENGTH.size
            if size > room and len(datagrams) + 1 < most:
                datagrams.append(self._sealed(packed))
                packed, room = [], _ROOM_BYTES
            if size > room:
                left_bytes += len(record)
                continue
            packed += (_LENGTH.pack(len(record)), record)
            room -= size
        datagrams.append(self._sealed(packed))
        return datagrams, left_bytes

    def _sealed(self, packed: Iterable[bytes]) -> bytes:
        self._number += 1
        text = _HEAD.pack(_FORMAT, self.own, self._number, self._clock()) + b"".join(packed)
        return text + self._signature(text)

    def open(self, datagram: bytes) -> tuple[bytes, int, list[bytes]] | Refusal:
        """Sender, number and records of a datagram, or why it is not believed."""
        if len(datagram) > DATAGRAM_BYTES:
            return Refusal.SIZE
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
            begin = at + _LENGTH.size
            end = begin + int.from_bytes(text[at:begin], "big")
            if begin > len(text) or end > len(text):
                return Refusal.FORMAT
            records.append(text[begin:end])
            at = end
        return sender, number, records

    def _signature(self, text: bytes) -> bytes:
        return blake2b(text, digest_size=_SIGNATURE_BYTES, key=self._key).digest()


class Window:
    """Which of one sender's numbers were seen: the newest, and a bit for each of those shortly before it."""

    __slots__ = ("_newest", "_seen")

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0

    def take(self, number: int) -> bool:
        """Whether this is the first time. One that is older than the window counts as seen."""
        ahead = number - self._newest
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & _ALL if ahead < WINDOW else 1
            self._newest = number
            return True
        bit = 1 << -ahead if ahead > -WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


_ALL = (1 << WINDOW) - 1
