"""Fair between tenants in tokens, by urgency, nobody for ever, and bounded."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tenancy.fair_queue import FairQueue, Waiting

INTERACTIVE, STANDARD, BATCH = 0, 1, 2


def queue(**bounds: Any) -> FairQueue:
    return FairQueue(**{"most_requests": 1000, "most_body_bytes": 10**9, "turn": 20} | bounds)


def waiting(tenant: str, cost_tokens: int = 10, *, urgency: int = STANDARD, since: float = 0.0, body_bytes: int = 1) -> Waiting:
    return Waiting(tenant, cost_tokens, body_bytes, urgency, since)


def jain(shares: list[float]) -> float:
    """1 when all are equal, 1/n when one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_tenants_take_turns_by_tokens_and_not_by_requests() -> None:
    line = queue()
    for number in range(40):
        line.add(waiting("small", 10, since=number))
        line.add(waiting("large", 40, since=number))
    taken = [line.take() for _ in range(25)]
    served = Counter(each.tenant for each in taken if each is not None)
    assert served == {"small": 20, "large": 5}


def test_of_one_tenant_the_oldest_of_a_class_is_next() -> None:
    line = queue()
    for number in range(3):
        line.add(waiting("a", since=number))
    assert [each.since for _ in range(3) if (each := line.take())] == [0, 1, 2]
    assert line.take() is None


def test_time_away_is_no_credit() -> None:
    line = queue()
    for _ in range(50):
        line.add(waiting("busy"))
    for _ in range(20):
        line.take()
    for _ in range(30):
        line.add(waiting("back"))
    taken = Counter(each.tenant for _ in range(20) if (each := line.take()))
    assert taken["busy"] >= 9, "level from now on, and not 20 requests behind"


def test_what_was_served_without_waiting_counts_while_others_wait() -> None:
    line = queue()
    line.add(waiting("a"))
    line.charge("b", 100)
    line.add(waiting("b"))
    first, second = line.take(), line.take()
    assert first is not None and second is not None
    assert (first.tenant, second.tenant) == ("a", "b")


def test_the_most_urgent_class_is_next_and_none_starves() -> None:
    line = queue(turn=3)
    for number in range(40):
        for tenant, urgency in (("i", INTERACTIVE), ("s", STANDARD), ("b", BATCH)):
            line.add(waiting(tenant, urgency=urgency, since=number))
    taken = "".join(each.tenant for _ in range(40) if (each := line.take()))
    assert taken.startswith("iiib") and taken.count("i") > 20
    assert all(tenant in taken[start : start + 6] for tenant in "sb" for start in range(35))


def test_a_flood_that_waits_for_long_is_not_before_another_tenant() -> None:
    line = queue()
    for number in range(100):
        line.add(waiting("flood", since=number))
    for _ in range(10):
        line.take()
    line.add(waiting("quiet", since=1000.0))
    assert "quiet" in [each.tenant for _ in range(2) if (each := line.take())]


def test_a_full_queue_gives_way_to_who_has_less() -> None:
    line = queue(most_requests=10)
    for _ in range(10):
        assert line.add(waiting("flood"))[0]
    assert line.add(waiting("flood")) == (False, []), "not to itself"
    is_in, left = line.add(waiting("quiet"))
    assert is_in and [each.tenant for each in left] == ["flood"] and len(line) == 10
    others = [line.add(waiting(f"t{number}"))[0] for number in range(8)]
    assert all(others), "each has one, and none had to leave for it but the flood's"
    assert Counter(each.tenant for each in line)["flood"] == 1
    assert line.add(waiting("t9")) == (False, []), "everybody has one"


def test_a_queue_full_of_bytes_gives_way_to_who_has_less() -> None:
    line = queue(most_body_bytes=1000)
    for _ in range(2):
        assert line.add(waiting("large", body_bytes=450))[0]
    is_in, left = line.add(waiting("small", body_bytes=200))
    assert is_in and [each.body_bytes for each in left] == [450]
    assert not line.add(waiting("other", body_bytes=2000))[0], "larger than all of it"
    assert line.body_bytes == 650


steps = st.lists(
    st.tuples(st.sampled_from(("add", "take", "leave", "charge")), st.integers(0, 4), st.integers(1, 50), st.integers(0, 2)),
    max_size=120,
)


@given(steps)
def test_nothing_is_lost_or_made(walk: list[tuple[str, int, int, int]]) -> None:
    line = queue(most_requests=12, most_body_bytes=300)
    here: list[Waiting] = []
    for now, (what, tenant, amount, urgency) in enumerate(walk):
        if what == "add":
            new = waiting(f"t{tenant}", amount, urgency=urgency, since=float(now), body_bytes=amount)
            is_in, left = line.add(new)
            here = [each for each in here if each not in left] + ([new] if is_in else [])
        elif what == "take":
            taken = line.take()
            assert (taken is None) == (not here)
            here = [each for each in here if each is not taken]
        elif what == "leave" and here:
            line.remove(here.pop(amount % len(here)))
        elif what == "charge":
            line.charge(f"t{tenant}", amount - 25)
        assert sorted(map(id, line)) == sorted(map(id, here))
        assert len(line) == len(here) <= 12
        assert line.body_bytes == sum(each.body_bytes for each in here) <= 300
        assert line.tokens == sum(each.cost_tokens for each in here)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(2, 50))
def test_tenants_that_always_want_more_share_equally(seed: int, tenants: int) -> None:
    """However different their requests are; each keeps three waiting, and what they were guessed at is corrected."""
    chance = random.Random(seed)
    sizes = {f"t{number}": chance.choice((10, 100, 1000)) for number in range(tenants)}
    line, served = queue(), Counter[str]()
    for name, size in sizes.items():
        for _ in range(3):
            line.add(waiting(name, size))
    for _ in range(tenants * 100):
        taken = line.take()
        assert taken is not None
        truth = max(1, round(taken.cost_tokens * chance.uniform(0.5, 1.5)))
        line.charge(taken.tenant, truth - taken.cost_tokens)
        served[taken.tenant] += truth
        line.add(waiting(taken.tenant, sizes[taken.tenant]))
    spread = max(served.values()) - min(served[name] for name in sizes)
    assert spread <= 4 * max(sizes.values()), "no further apart than a few requests"
