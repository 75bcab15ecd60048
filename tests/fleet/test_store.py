"""The fleet is read as an immutable snapshot; each change makes a new one."""

from __future__ import annotations

import pytest

from serving.fleet.store import Endpoint, EndpointState, Fleet

READY, UNREADY, UNKNOWN = EndpointState.READY, EndpointState.UNREADY, EndpointState.UNKNOWN


def endpoint(name: str, model: str = "m") -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", model, "default", "cpu")


E1, E2, OTHER = endpoint("e1"), endpoint("e2"), endpoint("other", "n")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet([E1, E2, OTHER])


def test_an_endpoint_that_was_not_asked_is_unknown_and_not_ready(fleet: Fleet) -> None:
    assert {status.state for status in fleet.snapshot.statuses.values()} == {UNKNOWN}
    assert not fleet.snapshot.ready("m")
    assert not fleet.snapshot.any_ready


def test_unknown_endpoints_are_candidates_until_one_is_ready(fleet: Fleet) -> None:
    assert fleet.snapshot.candidates("m") == (E1, E2)
    fleet.record("e2", READY, "ready")
    assert fleet.snapshot.candidates("m") == (E2,)


def test_an_unready_endpoint_is_no_candidate(fleet: Fleet) -> None:
    fleet.record("e1", UNREADY, "refused")
    assert fleet.snapshot.candidates("m") == (E2,)
    fleet.record("e2", UNREADY, "refused")
    assert fleet.snapshot.candidates("m") == ()


def test_endpoints_of_other_models_are_no_candidates(fleet: Fleet) -> None:
    fleet.record("other", READY, "ready")
    assert fleet.snapshot.candidates("n") == (OTHER,)
    assert not fleet.snapshot.ready("m")
    assert fleet.snapshot.any_ready


def test_an_unknown_model_has_no_candidates(fleet: Fleet) -> None:
    assert fleet.snapshot.candidates("nope") == ()
    assert not fleet.snapshot.ready("nope")


def test_a_model_stays_known_while_all_its_endpoints_are_away(fleet: Fleet) -> None:
    fleet.record("other", UNREADY, "refused")
    assert "n" in fleet.snapshot.by_model


def test_recording_says_whether_the_state_changed(fleet: Fleet) -> None:
    assert fleet.record("e1", READY, "ready")
    assert not fleet.record("e1", READY, "ready")
    assert fleet.record("e1", UNREADY, "refused")
    assert not fleet.record("e1", UNREADY, "another reason")
    assert fleet.snapshot.statuses["e1"].reason == "another reason"


def test_a_snapshot_in_hand_does_not_change(fleet: Fleet) -> None:
    before = fleet.snapshot
    fleet.record("e1", READY, "ready")
    assert before.statuses["e1"].state is UNKNOWN
    assert fleet.snapshot is not before


def test_a_snapshot_cannot_be_written_to(fleet: Fleet) -> None:
    with pytest.raises(TypeError):
        fleet.snapshot.statuses["e1"] = fleet.snapshot.statuses["e2"]  # type: ignore[index]
    with pytest.raises(TypeError):
        del fleet.snapshot.by_model["m"]  # type: ignore[attr-defined]


def test_recording_what_is_known_already_makes_no_new_snapshot(fleet: Fleet) -> None:
    fleet.record("e1", READY, "ready")
    before = fleet.snapshot
    fleet.record("e1", READY, "ready")
    assert fleet.snapshot is before


def test_a_fleet_of_nothing_is_not_ready() -> None:
    assert not Fleet([]).snapshot.any_ready


def test_an_adapter_is_a_model_of_the_engines_that_list_it() -> None:
    fleet = Fleet([E1, E2, OTHER], adapters={"sql": "m", "poet": "n"})
    assert fleet.snapshot.candidates("sql") == (), "no engine has said that it has it"
    for name in ("e1", "e2", "other"):
        fleet.record(name, READY, "ready")
        fleet.record_adapters(name, ["sql", "unknown"])
    assert fleet.snapshot.candidates("sql") == (E1, E2), "an adapter of that name elsewhere belongs to another model"
    assert fleet.snapshot.candidates("m") == (E1, E2)
    assert (fleet.snapshot.ready("sql"), fleet.snapshot.ready("poet")) == (True, False)
    assert fleet.snapshot.tasks("sql") == fleet.snapshot.tasks("poet") == ("generate",)
    fleet.forget_adapter("e1", "sql")
    assert (fleet.snapshot.candidates("sql"), fleet.snapshot.candidates("m")) == ((E2,), (E1, E2))
    fleet.record("e2", UNREADY, "refused")
    assert fleet.snapshot.candidates("sql") == ()
    before = fleet.snapshot
    fleet.record_adapters("e1", [])
    assert fleet.snapshot is before


def test_a_pool_that_may_be_empty_takes_requests_when_it_is_known_to_be() -> None:
    fleet = Fleet([], may_be_empty=["default"])
    assert not fleet.takes_requests, "nobody has looked yet"
    fleet.replace("another", [])
    assert not fleet.takes_requests
    fleet.replace("default", [])
    assert fleet.takes_requests, "the request that is refused wakes one"
    fleet.replace("default", [E1])
    assert not fleet.takes_requests, "it has an engine, which does not answer"
    fleet.record("e1", READY, "ready")
    assert fleet.takes_requests
    fleet.replace("default", [])
    assert fleet.takes_requests


def test_an_empty_pool_is_a_fault_where_nothing_scales_it() -> None:
    fleet = Fleet([])
    fleet.replace("default", [])
    assert not fleet.takes_requests
