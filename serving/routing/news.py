"""What gateways tell each other about routing, and what becomes of it: several gateways see the load and the caches as one does.

Five kinds of records, each a letter and numbers:

    L  what the gateway has under way at some endpoints; told in each period, so that what is lost is said again
    A  how many requests for some models it has got so far
    F  all its requests before this number are over
    B  a request began: its number, where, and the hashes that are new there, behind the hash that comes before them
    E  that request is over, and so many bytes of its answer are in the engine's cache; B is told again before it

Endpoints and models have numbers that all gateways make alike. Hashes are salted for each isolation group (routing/question), so
that a prompt of one has nothing in common with another's, here as in the engines.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from serving.core.clock import Clock
from serving.fleet.report import PeerReport
from serving.fleet.seal import RECORD_BYTES
from serving.fleet.store import Endpoint
from serving.routing.peer_load import LOAD_BYTES, NOTHING, PeerLoad, unpacked
from serving.routing.prefix import STRIDE, Cache, Hold, PrefixIndex
from serving.routing.work import Choice, Work

if TYPE_CHECKING:
    from serving.routing.choose import Arrivals

FULL_SHARE = 1 / 3
"""Of the time after which a silent gateway counts as gone, this part passes before its load begins to count less."""
IDLE_PERIODS = 10
"""That there is nothing any more is told so often, since a single datagram may be lost."""
PENDING_BYTES = 128 * 1024
"""Of begun and ended requests, between two periods; more is dropped."""
MOST_ENDPOINTS = 4096
MOST_MODELS = 1024
"""Of one peer."""
MOST_HOLDS = 16_384
"""Requests of one peer that are taken to be running; of more the oldest are let go of."""
MOST_REST_BYTES = 1 << 26
_BEGIN = struct.Struct("!cQQQH")
_END = struct.Struct("!cQI")
_FLOOR = struct.Struct("!cQ")
_ARRIVALS = struct.Struct("!Qd")
_MOST_HASHES = (RECORD_BYTES - _BEGIN.size) // 8 // STRIDE * STRIDE
_LOADS_EACH = (RECORD_BYTES - 1) // LOAD_BYTES
_ARRIVALS_EACH = (RECORD_BYTES - 1) // _ARRIVALS.size


def number_of(endpoint: Endpoint) -> int:
    """The same on all gateways, whatever they call it. Another pod at the same address has another number."""
    return xxh3_64_intdigest("\0".join((endpoint.model, endpoint.url, endpoint.uid)).encode("utf-8", "surrogatepass"))


def number_of_model(model: str) -> int:
    return xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class _Heard:
    """What one peer said last about one endpoint, and how much of that counts now."""

    work: Work
    said: PeerLoad
    at: float
    counted: PeerLoad


@dataclass(slots=True)
class _Peer:
    loads: dict[int, _Heard] = field(default_factory=dict)
    arrivals: dict[int, float] = field(default_factory=dict)
    holds: OrderedDict[int, Hold | None] = field(default_factory=OrderedDict)
    """By number; None for a request that is over, since what it began with may be told again."""
    floor: int = 0
    """Requests before it are over."""


@dataclass(slots=True)
class NewsCounts:
    """Of news about prefixes, how many came to what."""

    told: int = 0
    dropped: int = 0
    """Not told, for want of room."""
    taken: int = 0
    unknown_beginning: int = 0
    """Heard, but their beginning is not known here, since news of it were lost: of no use."""

    def by_result(self) -> Iterable[tuple[str, int]]:
        return (
            ("told", self.told),
            ("dropped", self.dropped),
            ("taken", self.taken),
            ("unknown_beginning", self.unknown_beginning),
        )


class Desk:
    """Writes down what happens here for the other gateways, and takes what they say into the chooser's books."""

    def __init__(
        self, index: PrefixIndex, arrivals: Mapping[str, Arrivals], clock: Clock, *, silence_seconds: float = 1.0
    ) -> None:
        self._index = index
        self._arrivals = arrivals
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._works: dict[int, Work] = {}
        self._idle: dict[int, int] = {}
        """Periods in which an endpoint with nothing under way is still told of."""
        self._told: dict[int, float] = {}
        """Of each endpoint, the prefill that was told last."""
        self._arrivals_told: dict[str, float] = {}
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._again: list[bytes] = []
        """What was told in the last period: each record is told twice, since a datagram may be lost."""
        self._number = 0
        self._open: dict[int, None] = {}
        """Numbers of the requests that are not over, the oldest first."""
        self._floors = (0, 0)
        """Before which number all requests were over two periods ago, and one: what is told of them has then been told twice."""
        self._peers: dict[bytes, _Peer] = {}
        self._hearing: dict[bytes, Callable[[_Peer, bytes], None]] = {
            b"L": self._hear_loads,
            b"A": self._hear_arrivals,
            b"F": self._hear_floor,
            b"B": self._hear_begin,
            b"E": self._hear_end,
        }
        self.counts = NewsCounts()
        self.loads_heard = 0
        """How often what other gateways have under way has changed here."""

    # What the chooser says

    def meet(self, work: Work) -> None:
        """An endpoint is there from now on."""
        work.number = number_of(work.endpoint)
        self._works[work.number] = work

    def part(self, work: Work) -> None:
        """It has left."""
        if self._works.get(work.number) is work:
            del self._works[work.number]

    def begin(self, choice: Choice) -> None:
        """A request whose prefix is held begins."""
        self._number += 1
        choice.news = self._number
        self._open[self._number] = None
        assert choice.hold is not None
        stamps = choice.hold.stamps
        # Behind a hash by which others find it.
        choice.news_from = stamps[0][0] // STRIDE * STRIDE if stamps else 0
        self._tell_prefix(choice)

    def end(self, choice: Choice, rest_bytes: int) -> None:
        """It is over, and its hold was released with so many bytes."""
        if self._open.pop(choice.news, self) is self:
            return
        self._tell_prefix(choice, [_END.pack(b"E", choice.news, min(max(rest_bytes, 0), MOST_REST_BYTES))])

    def _tell_prefix(self, choice: Choice, end: Sequence[bytes] = ()) -> None:
        chain, at = choice.question.chain, choice.news_from
        records = []
        while True:
            part = chain[at : at + _MOST_HASHES]
            head = _BEGIN.pack(b"B", choice.news, choice.work.number, chain[at - 1] if at else 0, at)
            records.append(head + struct.pack(f"!{len(part)}Q", *part))
            at += len(part)
            if at >= len(chain):
                break
        records += end
        size = sum(map(len, records))
        if self._pending_bytes + size > PENDING_BYTES:
            self.counts.dropped += 1
            return
        self.counts.told += 1
        self._pending += records
        self._pending_bytes += size

    # What is told

    def records(self) -> Iterator[bytes]:
        """One period's news, the load first. What others said longer ago counts less from now on."""
        now = self._clock()
        self._fade(now)
        pending, again = self._pending, self._again
        self._pending, self._pending_bytes, self._again = [], 0, pending
        yield from _joined(b"L", self._loads(now), _LOADS_EACH)
        yield from _joined(b"A", self._new_arrivals(), _ARRIVALS_EACH)
        yield _FLOOR.pack(b"F", self._floors[0])
        self._floors = (self._floors[1], next(iter(self._open), self._number + 1))
        yield from pending
        yield from again

    def _loads(self, now: float) -> Iterator[bytes]:
        idle, told = self._idle, self._told
        for number, work in list(self._works.items()):
            if work.waiting:
                work.advance(now)
            own = work.own_requests
            if own or work.own_prefilled != told.get(number, 0.0):
                idle[number] = IDLE_PERIODS
            elif idle.get(number, 0):
                idle[number] -= 1
            else:
                continue
            told[number] = work.own_prefilled
            yield work.own_load().packed(number)

    def _new_arrivals(self) -> Iterator[bytes]:
        for model, arrivals in self._arrivals.items():
            if arrivals.count != self._arrivals_told.get(model):
                self._arrivals_told[model] = arrivals.count
                yield _ARRIVALS.pack(number_of_model(model), arrivals.count)

    def _fade(self, now: float) -> None:
        silence = self._silence_seconds
        full = FULL_SHARE * silence
        for peer in self._peers.values():
            for number, heard in list(peer.loads.items()):
                age = now - heard.at
                if age <= full:
                    continue
                share = 1.0 - (age - full) / (silence - full)
                counts = heard.said.scaled(share) if share > 0.0 else NOTHING
                heard.work.hear(heard.counted, counts, now)
                heard.counted = counts
                self.loads_heard += 1
                if share <= 0.0:
                    del peer.loads[number]

    # What is heard

    @property
    def gateways(self) -> int:
        """Those that have said something lately, and this one."""
        return 1 + len(self._peers)

    @property
    def peers(self) -> dict[bytes, tuple[int, int]]:
        """By the names of those that have said something: requests under way by their last word, and prefixes held for them."""
        return {
            name: (sum(heard.counted.requests for heard in peer.loads.values()), sum(map(bool, peer.holds.values())))
            for name, peer in self._peers.items()
        }

    def hear(self, peer: bytes, record: bytes) -> None:
        """Take a record of another gateway. Raises: ValueError."""
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Peer()
        hear = self._hearing.get(record[:1])
        if hear is None:
            raise ValueError("no such kind of record")
        hear(known, record)

    def forget(self, peer: bytes) -> None:
        """That gateway is silent: what it had under way counts no more; what it brought into caches is there."""
        known = self._peers.pop(peer, None)
        if known is None:
            return
        now = self._clock()
        self.loads_heard += 1
        for heard in known.loads.values():
            heard.work.hear(heard.counted, NOTHING, now)
        for hold in known.holds.values():
            if hold is not None:
                self._index.release(hold, 0)

    def _hear_loads(self, peer: _Peer, record: bytes) -> None:
        if len(record) % LOAD_BYTES != 1:
            raise ValueError("no whole number of loads")
        now = self._clock()
        self.loads_heard += 1
        for at in range(1, len(record), LOAD_BYTES):
            number, load = unpacked(record, at)
            work, heard = self._works.get(number), peer.loads.get(number)
            if work is None:
                continue
            if heard is None or heard.work is not work:
                if len(peer.loads) >= MOST_ENDPOINTS:
                    raise ValueError("too many endpoints")
                work.hear(NOTHING, load, now, begun=load.waiting_seconds)
                peer.loads[number] = _Heard(work, load, now, load)
                continue
            if heard.said == heard.counted == load:
                heard.at = now  # nothing happened there, as in most periods
                continue
            done = load.prefilled_seconds - heard.said.prefilled_seconds
            if done < 0.0:
                continue  # a datagram that was overtaken by a newer one
            begun = load.waiting_seconds - heard.said.waiting_seconds + done
            work.hear(heard.counted, load, now, begun=max(0.0, begun), done=done)
            heard.said, heard.counted, heard.at = load, load, now

    def _hear_arrivals(self, peer: _Peer, record: bytes) -> None:
        models = {number_of_model(model): arrivals for model, arrivals in self._arrivals.items()}
        for at in range(1, len(record) - _ARRIVALS.size + 1, _ARRIVALS.size):
            number, count = _ARRIVALS.unpack_from(record, at)
            if not 0.0 <= count < 2**53 or len(peer.arrivals) >= MOST_MODELS:
                raise ValueError("arrivals that cannot be")
            new = count - peer.arrivals.get(number, count)
            peer.arrivals[number] = max(count, peer.arrivals.get(number, 0.0))
            arrivals = models.get(number)
            if arrivals is not None and new > 0.0:
                arrivals.note(self._clock(), new)

    def _hear_floor(self, peer: _Peer, record: bytes) -> None:
        if len(record) != _FLOOR.size:
            raise ValueError("no number")
        peer.floor = max(peer.floor, _FLOOR.unpack(record)[1])
        holds = peer.holds
        while holds and next(iter(holds)) < peer.floor:
            self._drop_oldest(peer)

    def _hear_begin(self, peer: _Peer, record: bytes) -> None:
        count, odd = divmod(len(record) - _BEGIN.size, 8)
        if count < 0 or odd:
            raise ValueError("no whole number of hashes")
        _, number, endpoint, parent, start = _BEGIN.unpack_from(record)
        held, work = peer.holds.get(number, _NOT_YET), self._works.get(endpoint)
        if work is None or held is None or held.end >= start + count or number < peer.floor:
            return
        hashes = struct.unpack_from(f"!{count}Q", record, _BEGIN.size)
        hold = self._index.extend(work.cache, start, parent, hashes)
        if hold is None:
            self.counts.unknown_beginning += 1
            return
        self.counts.taken += 1
        if not start:
            work.cold_at = self._clock()
        if held is not _NOT_YET:
            self._index.release(held, 0)
        peer.holds[number] = hold
        if len(peer.holds) > MOST_HOLDS:
            self._drop_oldest(peer)

    def _hear_end(self, peer: _Peer, record: bytes) -> None:
        if len(record) != _END.size:
            raise ValueError("no end of a request")
        _, number, rest_bytes = _END.unpack(record)
        hold = peer.holds.get(number)
        if hold is not None:
            peer.holds[number] = None
            self._index.release(hold, min(rest_bytes, MOST_REST_BYTES))

    def _drop_oldest(self, peer: _Peer) -> None:
        hold = peer.holds.popitem(last=False)[1]
        if hold is not None:
            self._index.release(hold, 0)


_NOT_YET = Hold(Cache(PrefixIndex(0), 0.0), None, [])


def peer_reports(heard: Mapping[bytes, float], desk: Desk) -> tuple[PeerReport, ...]:
    """Of each gateway that was heard, how many seconds ago."""
    known = desk.peers
    return tuple(PeerReport(peer.hex(), round(age, 3), *known.get(peer, (0, 0))) for peer, age in sorted(heard.items()))


def _joined(kind: bytes, rows: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Records with up to so many rows each; none where there are none."""
    packed: list[bytes] = []
    for row in rows:
        packed.append(row)
        if len(packed) == most:
            yield kind + b"".join(packed)
            packed = []
    if packed:
        yield kind + b"".join(packed)
