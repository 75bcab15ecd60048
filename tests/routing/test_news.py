"""Several gateways route as one: what each says of its load and of prompts that are cached counts at the others, as long as it is
heard, and nothing that is lost, late or senseless does harm."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import Usage
from serving.fleet.seal import RECORD_BYTES
from serving.fleet.store import Endpoint
from serving.routing.chain import chain_of
from serving.routing.choose import Chooser
from serving.routing.news import MOST_HOLDS, Desk, number_of
from serving.routing.peer_load import NOTHING, PeerLoad
from serving.routing.prefix import PrefixIndex
from serving.routing.question import Question
from serving.routing.work import Ticket, Work
from tests.routing.asking import Clock, chosen, endpoints, question, text

TWO = endpoints(2)
SILENCE_SECONDS = 1.0


class Gateway:
    """A chooser with its desk, on a clock that all gateways of a test share."""

    def __init__(self, name: bytes, clock: Clock, candidates: tuple[Endpoint, ...] = TWO) -> None:
        self.name = name
        self.clock = clock
        self.candidates = candidates
        self.chooser = Chooser(clock=clock, seed=name[0])
        self.desk: Desk = self.chooser.join(silence_seconds=SILENCE_SECONDS)
        self.chooser.know(candidates)

    def work(self, name: str) -> Work:
        return self.chooser._works[name]

    def ask(self, asked: Question) -> Ticket:
        return chosen(self.chooser, self.candidates, asked)

    def finish(self, ticket: Ticket, usage: Usage = Usage(), *, seconds: float = 0.1) -> None:  # noqa: B008 (frozen)
        self.chooser.first_token(ticket)
        self.clock.now += seconds
        self.chooser.end(ticket)
        self.chooser.learn(ticket, usage, self.clock.now)

    def tell(self, *others: Gateway, lost: set[bytes] = frozenset()) -> list[bytes]:  # type: ignore[assignment]
        """One period's news; those of the kinds in `lost` do not arrive."""
        records = list(self.desk.records())
        for record in records:
            assert len(record) <= RECORD_BYTES
            for other in others:
                if record[:1] not in lost:
                    other.desk.hear(self.name, record)
        return records


@pytest.fixture
def pair() -> tuple[Gateway, Gateway]:
    clock = Clock()
    return Gateway(b"a", clock), Gateway(b"b", clock)


PROMPT = question(text(80_000, "a prompt"))
assert len(PROMPT.chain) > RECORD_BYTES // 8


def test_a_prompt_that_one_has_seen_is_sent_to_the_same_engine_by_the_other(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    first = one.ask(PROMPT)
    one.tell(other)
    one.finish(first, Usage(20_000, 0, 10))
    one.tell(other)
    assert other.ask(PROMPT).cached_tokens > 15_000
    assert other.ask(PROMPT).endpoint is first.endpoint


def test_the_next_turn_is_told_by_what_is_new_in_it(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    prompt = text(80_000, "a prompt")
    ticket = one.ask(question(prompt))
    one.finish(ticket, Usage(20_000, 0, 10))
    one.tell(other)
    one.tell(other)
    longer = question(prompt + text(4_000, "and more"), turn_bytes=len(prompt))
    one.ask(longer)
    (begun,) = [record for record in one.tell(other) if record[:1] == b"B"]
    assert len(begun) < 160
    assert other.chooser.index.match(longer.chain).known == len(longer.chain)


@pytest.mark.parametrize("lost", [{b"B"}, {b"E"}, {b"F"}, {b"L"}, {b"A"}])
def test_news_that_are_lost_once_are_told_again(pair: tuple[Gateway, Gateway], lost: set[bytes]) -> None:
    one, other = pair
    ticket = one.ask(PROMPT)
    one.finish(ticket, Usage(20_000, 0, 10))
    one.tell(other, lost=lost)
    one.tell(other)
    one.tell(other)
    assert other.chooser.index.match(PROMPT.chain).known == len(PROMPT.chain)
    work = other.work(ticket.endpoint.name)
    assert (work.in_flight, work.queued, work.peers.requests, work.context_tokens) == (0, 0, 0, pytest.approx(0.0, abs=0.01))
    assert not work.cache.pinned


def test_without_its_beginning_an_end_is_of_no_use(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    prompt = text(30_000, "a prompt")
    one.finish(one.ask(question(prompt)), Usage(7_000, 0, 10))
    one.tell()
    one.tell()
    longer = question(prompt + text(4_000, "and more"), turn_bytes=len(prompt))
    one.ask(longer)
    one.tell(other)
    assert other.desk.counts.unknown_beginning == 1
    assert other.chooser.index.match(longer.chain).known == 0


def test_a_prompt_is_pinned_elsewhere_until_it_has_ended(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    ticket = one.ask(PROMPT)
    one.tell(other)
    cache = other.work(ticket.endpoint.name).cache
    assert cache.pinned
    one.finish(ticket, Usage(20_000, 0, 1000))
    used = cache.used_bytes
    one.tell(other)
    assert not cache.pinned
    assert cache.used_bytes > used + 3000, "the answer is in the engine's cache, too"


def test_what_one_has_under_way_counts_at_the_other(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    tickets = [one.ask(question(text(8_000, number))) for number in range(6)]
    counts = Counter(ticket.endpoint.name for ticket in tickets)
    waiting = {e.name: one.work(e.name).waiting_seconds for e in TWO}
    one.tell(other)
    for each in TWO:
        work = other.work(each.name)
        assert (work.in_flight, work.queued) == (counts[each.name], counts[each.name])
        assert work.waiting_seconds == pytest.approx(waiting[each.name], rel=1e-5)
        assert work.wait_seconds(one.clock.now) == pytest.approx(waiting[each.name], rel=1e-5)
        assert other.chooser.in_flight(each.name) == 0, "slots and metrics are of this gateway's own requests"
    for ticket in tickets:
        one.finish(ticket, Usage(2_000, 0, 10), seconds=0.0)
    one.tell(other)
    assert [other.work(e.name).in_flight for e in TWO] == [0, 0]
    assert [other.work(e.name).prefill_area for e in TWO] == pytest.approx([one.work(e.name).prefill_area for e in TWO])


def test_load_elsewhere_is_kept_away_from(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    one.candidates = TWO[:1]
    for number in range(8):
        # With one candidate there is no choice, so that only their number is told.
        one.ask(question(text(8_000, number)))
    one.tell(other)
    assert {other.ask(question(text(600, number))).endpoint.name for number in range(6)} == {"e1"}


def test_both_say_only_what_is_their_own(pair: tuple[Gateway, Gateway]) -> None:
    """Else load would grow by being told to and fro."""
    one, other = pair
    for number in range(3):
        one.ask(question(text(8_000, number)))
        other.ask(question(text(8_000, -number)))
    for _ in range(5):
        one.tell(other)
        other.tell(one)
    for each in TWO:
        assert one.work(each.name).in_flight == other.work(each.name).in_flight
    assert sum(one.work(e.name).in_flight for e in TWO) == 6


def test_who_falls_silent_counts_less_and_less(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    one.candidates = TWO[:1]
    for _ in range(12):
        one.ask(PROMPT)
    one.tell(other)
    work, counted = other.work("e0"), []
    for _ in range(12):
        other.tell()
        counted.append(work.in_flight)
        one.clock.now += 0.1
    assert counted == sorted(counted, reverse=True)
    assert counted[3] == 12, "a few lost datagrams are no silence"
    assert len(set(counted)) >= 5
    assert counted[-1] == 0
    one.tell(other)
    assert work.in_flight == 12


def test_who_says_the_same_again_and_again_counts_wholly(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    one.candidates = TWO[:1]
    for _ in range(12):
        one.ask(PROMPT)
    for _ in range(24):
        one.tell(other)
        other.tell()
        assert other.work("e0").in_flight == 12
        one.clock.now += 0.1
    one.clock.now += 0.6 * SILENCE_SECONDS
    other.tell()
    assert 0 < other.work("e0").in_flight < 12
    one.tell(other)
    assert other.work("e0").in_flight == 12, "also where it is what was said last, and counted in part meanwhile"


def test_who_is_gone_holds_nothing_back(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    ticket = one.ask(PROMPT)
    one.tell(other)
    other.desk.forget(one.name)
    work = other.work(ticket.endpoint.name)
    assert (work.in_flight, work.queued, work.waiting_seconds, work.peers) == (0, 0, 0.0, NOTHING)
    assert not work.cache.pinned
    assert other.ask(PROMPT).endpoint is ticket.endpoint, "what it brought into the engine's cache is still there"
    other.desk.forget(one.name)


def test_engines_are_the_same_by_their_address_and_pod() -> None:
    (one, _) = TWO
    assert number_of(one) == number_of(replace(one, name="another-name", pool="another-pool"))
    for other in (replace(one, url="http://x:1"), replace(one, uid="another pod"), replace(one, model="n")):
        assert number_of(one) != number_of(other)


def test_an_engine_that_this_gateway_does_not_know_is_passed_over() -> None:
    clock = Clock()
    one, other = Gateway(b"a", clock, endpoints(3)), Gateway(b"b", clock, TWO)
    for number in range(9):
        one.ask(question(text(8_000, number)))
    one.tell(other)
    assert set(other.chooser._works) == {"e0", "e1"}
    other.chooser.retain({"e0"})
    one.tell(other)
    assert set(other.chooser._works) == {"e0"}


def test_tenants_that_share_no_cache_share_no_news() -> None:
    """Chains begin with the isolation group's seed, so that the same prompt of another group is another one."""
    clock = Clock()
    one, other = Gateway(b"a", clock), Gateway(b"b", clock)
    prompt = text(30_000, "a prompt")
    one.ask(question(prompt))
    one.tell(other)
    assert other.chooser.index.match(chain_of(prompt, 2)).known == 0


@given(st.lists(st.integers(0, 999), min_size=1, max_size=60), st.integers(0, 2**32))
def test_whatever_is_lost_or_late_everything_is_given_back(steps: list[int], seed: int) -> None:
    """Two gateways with requests that begin and end, over a wire that loses, delays and repeats; at its end all is told again."""
    dice = random.Random(seed)
    clock = Clock()
    gateways = [Gateway(b"a", clock), Gateway(b"b", clock)]
    running: list[tuple[Gateway, Ticket]] = []
    late: list[tuple[Gateway, bytes, bytes]] = []
    for step in steps:
        clock.now += 0.03
        gateway = gateways[step % 2]
        if step % 5 < 3:
            running.append((gateway, gateway.ask(question(text(3000 + 5 * step, step % 7)))))
        elif running:
            whose, ticket = running.pop(step % len(running))
            whose.finish(ticket, Usage(1000, step % 1000, 20), seconds=0.0)
        other = gateways[1 - step % 2]
        late += [(other, gateway.name, record) for record in gateway.desk.records() if dice.random() < 0.7]
        dice.shuffle(late)
        while late and dice.random() < 0.8:
            to, name, record = late.pop()
            to.desk.hear(name, record)
    for whose, ticket in running:
        whose.finish(ticket, Usage(1000, 0, 20), seconds=0.0)
    clock.now += SILENCE_SECONDS
    for _ in range(3):
        for gateway, other in (gateways, gateways[::-1]):
            gateway.tell(other)
    for gateway in gateways:
        for each in TWO:
            work = gateway.work(each.name)
            assert (work.in_flight, work.queued, work.peers.requests) == (0, 0, 0)
            assert work.context_tokens == pytest.approx(0.0, abs=0.1)
            assert work.waiting_seconds == pytest.approx(0.0, abs=1e-3)
            assert not work.cache.pinned


ENDPOINT = number_of(TWO[0])
SENSELESS = {
    "empty": b"",
    "an unknown kind": b"Z123",
    "half a load": b"L" + bytes(20),
    "a load that is no number": b"L" + struct.pack("!QIIdfff", ENDPOINT, 1, 1, float("nan"), 0, 0, 0),
    "an infinite load": b"L" + struct.pack("!QIIdfff", ENDPOINT, 1, 1, 0, float("inf"), 0, 0),
    "a negative load": b"L" + struct.pack("!QIIdfff", ENDPOINT, 1, 1, 0, -1.0, 0, 0),
    "more waiting than there are": b"L" + struct.pack("!QIIdfff", ENDPOINT, 1, 2, 0, 0, 0, 0),
    "half a hash": b"B" + bytes(30),
    "half an end": b"E" + bytes(3),
    "no floor": b"F",
    "arrivals that are no number": b"A" + struct.pack("!Qd", 1, float("nan")),
}


@pytest.mark.parametrize("kind", SENSELESS)
def test_senseless_news_are_refused(pair: tuple[Gateway, Gateway], kind: str) -> None:
    one, _ = pair
    with pytest.raises(ValueError, match=r"\w"):
        one.desk.hear(b"b", SENSELESS[kind])
    assert one.work("e0").peers == NOTHING


@given(st.binary(max_size=RECORD_BYTES))
def test_no_bytes_do_more_than_be_refused(record: bytes) -> None:
    one = Gateway(b"a", Clock())
    for kind in (b"L", b"A", b"F", b"B", b"E"):
        try:
            one.desk.hear(b"b", kind + record)
        except ValueError:
            continue


def begun(number: int, parent: int, start: int, hashes: list[int]) -> bytes:
    return struct.pack("!cQQQH", b"B", number, ENDPOINT, parent, start) + struct.pack(f"!{len(hashes)}Q", *hashes)


def test_a_chain_that_contradicts_itself_is_not_taken(pair: tuple[Gateway, Gateway]) -> None:
    one, _ = pair
    chain = list(range(10, 30))
    one.desk.hear(b"b", begun(1, 0, 0, chain))
    for number, record in enumerate(
        (
            begun(2, 17, 16, [99]),  # 17 is the eighth piece, and not the sixteenth
            begun(3, 17, 8, [10]),  # 10 is the first piece, and cannot come after the eighth
            begun(4, 98, 8, [99]),  # nobody knows 98
            begun(6, 25, 65528, [99]),  # no prompt is as long as that
        ),
        1,
    ):
        one.desk.hear(b"b", record)
        assert one.desk.counts.unknown_beginning == number
    assert one.chooser.index.match(chain).known == len(chain)


def test_a_peer_takes_no_more_memory_than_the_index_may_have() -> None:
    clock = Clock()
    one = Gateway(b"a", clock)
    one.chooser.index.limit_bytes = 1024 * 1024
    dice = random.Random(1)
    for number in range(2 * MOST_HOLDS):
        one.desk.hear(b"b", begun(number + 1, 0, 0, [dice.getrandbits(64) for _ in range(4)]))
    assert one.chooser.index.used_bytes <= 1024 * 1024
    ((_, holds),) = one.desk.peers.values()
    assert holds <= MOST_HOLDS


def test_news_that_find_no_room_are_dropped_and_counted(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for number in range(150):
        one.ask(question(text(80_000, number)))
    assert 0 < one.desk.counts.dropped < 150
    assert one.desk.counts.told + one.desk.counts.dropped == 150
    one.tell(other)
    assert sum(other.work(e.name).in_flight for e in TWO) == 150, "the load is told in any case"


def test_the_owner_is_looked_at_among_a_hundred() -> None:
    """Gateways that have heard nothing of each other send a conversation to the same engine."""
    hundred = endpoints(100)
    for number in range(20):
        asked = question(text(8_000, number))
        homes = set()
        for name in (b"a", b"b", b"c"):
            gateway = Gateway(name, Clock(), hundred)
            homes.add(gateway.ask(asked).endpoint.name)
        assert len(homes) == 1


def test_gateways_go_round_in_different_orders() -> None:
    """Ten that begin at once with the same small request must not all begin with the same engine."""
    ten = endpoints(10)
    firsts = Counter(Gateway(bytes([65 + n]), Clock(), ten).ask(question(b"short")).endpoint.name for n in range(10))
    assert max(firsts.values()) <= 5


def test_a_load_that_counts_in_part_is_whole_requests() -> None:
    load = PeerLoad(3, 2, 1.0, 100.0, 50.0, 9.0)
    assert load.scaled(0.5) == PeerLoad(2, 1, 0.5, 50.0, 25.0, 9.0)
    assert load.scaled(1.0) is load


def test_an_index_takes_ends_only_behind_what_it_knows() -> None:
    index = PrefixIndex(1 << 20)
    cache, other = index.cache(1e9), index.cache(1e9)
    chain = list(range(1, 21))
    hold = index.extend(cache, 0, 0, chain)
    assert hold is not None
    assert hold.end == 20
    deeper = index.extend(other, 16, 16, [17, 99])
    assert deeper is not None
    assert index.match([*chain[:17], 99]).depths() == {cache: 17, other: 18}
    assert index.extend(other, 8, 99, [98]) is None
    index.release(hold, 0)
    index.release(deeper, 0)
    assert not cache.pinned
    assert not other.pinned
