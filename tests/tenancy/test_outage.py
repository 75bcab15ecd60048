"""What one gateway of several may let through while the store is away: its part of what was left, and no more."""

from __future__ import annotations

import math

from serving.tenancy.outage import Others, Outage, others_of
from serving.tenancy.quotas import Claim, Limits, LocalQuotas
from tests.tenancy.test_quotas import Time

LIMITS = Limits(40, 4000, 10, 1_000_000)
GATEWAYS = 4


def known(now: float, requests: int = 0, tokens: int = 0, open_: int = 0, nano_dollars: int = 0, day: int = 0) -> Others:
    others = Others(open=open_, day=day, nano_dollars=nano_dollars)
    others.requests.add(now, requests)
    others.tokens.add(now, tokens)
    return others


def book(time: Time) -> LocalQuotas:
    return LocalQuotas(time, time)


def test_each_has_its_part_of_what_is_left() -> None:
    time = Time(1000.0)
    quotas = book(time)
    for _ in range(6):
        quotas.take("a", Claim(1, 100, 1000))
    outage = Outage(time.now, GATEWAYS, {"a": known(990.0, 10, 1000, 2, 94_000)}, quotas.all_open())
    most = outage.limits("a", LIMITS, quotas.own("a"), time.now)
    # Of this second nobody knows what was before the loss, so that it counts as after it.
    assert most.requests == (40 - 10) // GATEWAYS
    time.now = 1001.5
    outage = Outage(time.now, GATEWAYS, {"a": known(990.0, 10, 1000, 2, 94_000)}, quotas.all_open())
    most = outage.limits("a", LIMITS, quotas.own("a"), time.now)
    assert most.requests == 6 + (40 - 10 - 6) // GATEWAYS
    assert most.tokens == 600 + (4000 - 1000 - 600) // GATEWAYS
    assert most.concurrency == 6 + (10 - 2 - 6) // GATEWAYS
    assert most.nano_dollars == 6000 + (1_000_000 - 94_000 - 6000) // GATEWAYS


def test_all_gateways_together_never_pass_the_limit() -> None:
    """Whatever each of them had used before, all of them ask for as much as they can, each second for three minutes."""
    for used in ((40, 0, 0, 0), (10, 10, 10, 10), (0, 3, 0, 20), (0, 0, 0, 0)):
        time = Time(1000.0)
        books = [book(time) for _ in used]
        for quotas, count in zip(books, used, strict=True):
            for _ in range(count):
                quotas.take("a", Claim(1, 0))
        time.now += 5.0
        outages = []
        for place, quotas in enumerate(books):
            others = known(1000.0, sum(used) - used[place])
            outages.append(Outage(time.now, GATEWAYS, {"a": others}, quotas.all_open()))
        taken = [(1000.0, sum(used))]
        limits = Limits(40)
        for _ in range(180):
            for quotas, outage in zip(books, outages, strict=True):
                while True:
                    most = outage.limits("a", limits, quotas.own("a"), time.now)
                    verdict = quotas.reserve("a", most, Claim(1, 0))
                    if verdict.reservation is None:
                        break
                    taken.append((time.now, 1))
            assert sum(count for when, count in taken if when > time.now - 60.0) <= 40
            time.now += 1.0
        assert sum(count for when, count in taken if when > 1060.0) >= 40, "nobody is shut out"


def test_a_tenant_that_nobody_has_seen_here_begins_with_nothing_and_has_its_share_in_a_minute() -> None:
    time = Time(1000.0)
    quotas = book(time)
    outage = Outage(time.now, GATEWAYS, {}, {})
    shares = []
    for seconds in (0, 30, 60, 120):
        time.now = 1000.0 + seconds
        shares.append(outage.limits("a", LIMITS, quotas.own("a"), time.now).requests)
    assert shares == [0, 5, 10, 10]
    assert outage.limits("a", Limits(2), quotas.own("a"), time.now).requests == 1, "at least one"


def test_before_the_store_was_ever_there_each_has_its_share() -> None:
    time = Time(1000.0)
    quotas = book(time)
    outage = Outage(-math.inf, GATEWAYS, {}, {})
    assert outage.limits("a", LIMITS, quotas.own("a"), time.now) == Limits(10, 1000, 2, 250_000)
    quotas.take("a", Claim(10, 0))
    assert outage.limits("a", LIMITS, quotas.own("a"), time.now).requests == 10


def test_how_long_to_wait_is_told() -> None:
    time = Time(1000.0)
    quotas = book(time)
    outage = Outage(time.now, GATEWAYS, {"a": known(965.0, 40)}, {})
    assert outage.wait_seconds("a", LIMITS, quotas.own("a"), time.now, 1, 0) == 30.0
    assert outage.wait_seconds("a", Limits(40, 400), quotas.own("a"), time.now, 1, 4000) == 60.0


def test_of_what_the_store_says_this_gateways_own_is_no_others() -> None:
    time = Time(1000.2)
    quotas = book(time)
    held = [quotas.take("a", Claim(1, 50, 500)) for _ in range(3)]
    quotas.settle(held[0], Claim(1, 20, 200))
    own = quotas.own("a")
    others = others_of(f"5 {own.day} 9200 r 1 4 r 9 2 t 1 330 t 9 70", own, time.now)
    assert (others.requests.total, others.tokens.total) == (3, 280)
    assert (others.open, others.nano_dollars) == (3, 8000)
    others.hear(own, time.now, 8, 430, 9500, 4)
    assert (others.requests.total, others.tokens.total, others.open, others.nano_dollars) == (5, 310, 2, 8300)
    assert others_of("0 0 0", own, time.now).requests.total == 0
