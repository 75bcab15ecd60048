"""How many slots there are, and which part of what waits belongs to which pool."""

from __future__ import annotations

from fractions import Fraction

from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.tenancy.capacity import Capacity
from serving.tenancy.slots import UNBOUNDED


def endpoint(name: str, slots: int | None, pool: str = "p") -> Endpoint:
    return Endpoint(name, f"http://{name}", "m", pool, "t", slots=slots)


def test_the_slots_are_those_of_the_endpoints_that_may_be_asked() -> None:
    fleet = Fleet([endpoint("a", 4), endpoint("b", 6)])
    capacity = Capacity(fleet, "m")
    assert capacity() == 10, "nothing is known of them yet"
    fleet.record("a", EndpointState.READY, "")
    assert capacity() == 4
    fleet.record("b", EndpointState.READY, "")
    assert capacity() == 10
    fleet.record("a", EndpointState.UNREADY, "gone")
    fleet.record("b", EndpointState.UNREADY, "gone")
    assert capacity() == UNBOUNDED, "nobody waits for what is not there"
    assert Capacity(Fleet([endpoint("a", 4), endpoint("b", None)]), "m")() == UNBOUNDED


def test_what_waits_is_divided_by_slots_and_its_sum_is_true() -> None:
    fleet = Fleet([endpoint("a", 1, "small"), endpoint("b", 2, "large")])
    pools = {"small": 1, "large": 2}
    assert Capacity(fleet, "m").by_pool(pools, 7) == {"small": Fraction(7, 3), "large": Fraction(14, 3)}
    for name in "ab":
        fleet.record(name, EndpointState.UNREADY, "gone")
    assert Capacity(fleet, "m").by_pool(pools, 3) == {"small": 1, "large": 2}, "also while no engine is there"


def test_what_others_use_of_an_engine_is_not_this_gateways() -> None:
    fleet = Fleet([endpoint("a", 4), endpoint("b", 6)])
    left, changes = {"a": 4, "b": 6}, 0
    capacity = Capacity(fleet, "m", lambda endpoint: left[endpoint.name], lambda: changes)
    assert capacity() == 10
    left["b"] = 1
    assert capacity() == 10, "nobody said that anything changed"
    changes += 1
    assert capacity() == 5
