"""Nothing is taken on that cannot be given back, and it is given back exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.errors import Overloaded
from serving.settings import LimitSettings
from serving.tenancy.limits import Admission


def admission(ceiling: int) -> Admission:
    return Admission(LimitSettings(in_flight=ceiling))


def test_a_lease_is_open_until_it_is_closed() -> None:
    gate = admission(1)
    lease = gate.admit()
    assert lease.open
    assert gate.open_leases == 1
    lease.close()
    assert not lease.open
    assert gate.open_leases == 0


def test_closing_a_lease_twice_gives_it_back_once() -> None:
    gate = admission(2)
    first, _second = gate.admit(), gate.admit()
    first.close()
    first.close()
    assert gate.open_leases == 1


def test_one_more_than_the_ceiling_is_told_when_to_come_back() -> None:
    gate = admission(2)
    gate.admit()
    gate.admit()
    with pytest.raises(Overloaded) as caught:
        gate.admit()
    assert (caught.value.status, caught.value.retry_after_seconds) == (429, 1)
    assert gate.open_leases == 2, "a refused request holds nothing"


def test_a_lease_given_back_makes_room() -> None:
    gate = admission(1)
    gate.admit().close()
    assert gate.admit().open


@given(st.integers(1, 5), st.lists(st.integers(-3, 3), max_size=60))
def test_open_leases_are_those_that_were_not_closed(ceiling: int, steps: list[int]) -> None:
    gate = admission(ceiling)
    leases = []
    for step in steps:
        if step >= 0:
            try:
                leases.append(gate.admit())
            except Overloaded:
                assert sum(lease.open for lease in leases) == ceiling
        elif leases:
            leases[step % len(leases)].close()
        assert gate.open_leases == sum(lease.open for lease in leases) <= ceiling
