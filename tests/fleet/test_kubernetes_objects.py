"""What is read out of EndpointSlices and pods, and what of them is one engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fleet.kubernetes_objects import Sighting, members, sightings_in_pod, sightings_in_slice
from serving.settings import PoolSettings

POOL = PoolSettings.model_validate({"name": "cpu", "model": "tiny", "target": "x", "kubernetes": {"service": "engines"}})
READY: dict[str, Any] = {"ready": True, "serving": True, "terminating": False}


def a_slice(
    conditions: dict[str, Any] | None, *, address: str = "10.0.0.1", ports: Any = None, uid: str = "u-1"
) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"addresses": [address], "targetRef": {"kind": "Pod", "name": "e-1", "uid": uid}}
    if conditions is not None:
        endpoint["conditions"] = conditions
    return {
        "metadata": {"name": "s"},
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": 8000}] if ports is None else ports,
    }


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (READY, ""),
        (None, ""),  # absent is unknown, and to be taken for ready
        ({"ready": None}, ""),
        ({"ready": False, "serving": True, "terminating": True}, "terminating"),
        ({"ready": True, "serving": True, "terminating": True}, "terminating"),
        ({"ready": False}, "not ready"),
        ({"ready": True, "serving": False}, "not ready"),  # a Service that publishes addresses that are not ready
    ],
)
def test_the_conditions_of_a_slice(conditions: dict[str, Any] | None, reason: str) -> None:
    assert [each.reason for each in sightings_in_slice(a_slice(conditions), None)] == [reason]


@pytest.mark.parametrize(
    ("port", "ports", "expected"),
    [
        (None, [{"name": "http", "port": 8000}], [8000]),
        (None, [{"port": 8000}], [8000]),
        (None, [{"name": "http", "port": 8000}, {"name": "m", "port": 9}], []),
        ("m", [{"name": "http", "port": 8000}, {"name": "m", "port": 9}], [9]),
        ("other", [{"name": "http", "port": 8000}], []),
        (7000, [{"name": "http", "port": 8000}], [7000]),
        (None, None, [8000]),
        (None, [{"name": "http", "port": True}], []),
        (None, [{"name": "http", "port": 70000}], []),
    ],
)
def test_the_port_of_a_slice(port: int | str | None, ports: Any, expected: list[int]) -> None:
    found = members(POOL, sightings_in_slice(a_slice(READY, ports=ports), port))[0]
    assert [each.url for each in found] == [f"http://10.0.0.1:{number}" for number in expected]


@pytest.mark.parametrize(
    ("port", "ports", "reason"),
    [
        (None, [{"name": "http", "port": 8000}, {"port": 9}], "its Service has 2 ports; name one as kubernetes.port"),
        (None, [{"name": "http", "port": 70000}], "its Service has no port"),
        ("other", [{"name": "http", "port": 8000}], "its Service has no port other"),
    ],
)
def test_operators_see_why_a_pod_without_a_port_gets_nothing(port: str | None, ports: Any, reason: str) -> None:
    withheld = members(POOL, sightings_in_slice(a_slice(READY, ports=ports), port))[1]
    assert [(each.pod, each.reason) for each in withheld] == [("e-1", reason)]


def test_a_port_that_another_slice_tells_is_the_pods() -> None:
    """Pods of one Service may have different ports under a name: then each has a slice of its own kind."""
    without = sightings_in_slice(a_slice(READY, ports=[{"name": "m", "port": 9}]), "http")
    endpoints, withheld = members(POOL, [*without, *sightings_in_slice(a_slice(READY), 8000)])
    assert ([each.url for each in endpoints], withheld) == (["http://10.0.0.1:8000"], [])


def a_pod(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "e-1", "uid": "u-1"} | changes.pop("metadata", {})
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]} | changes
    spec = {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]}
    return {"metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod(), [""]),
        (a_pod(conditions=[{"type": "Ready", "status": "False"}]), ["not ready"]),
        (a_pod(conditions=[{"type": "Ready", "status": "Unknown"}]), ["not ready"]),
        (a_pod(conditions=[]), ["not ready"]),
        (a_pod(metadata={"deletionTimestamp": "2026-11-30T00:00:00Z"}), ["terminating"]),
        (a_pod(podIP=None), []),
        (a_pod(phase="Failed"), []),
        (a_pod(podIP="not an address"), []),
    ],
)
def test_a_pod(pod: dict[str, Any], expected: list[str]) -> None:
    assert [each.reason for each in sightings_in_pod(pod, "http")] == expected
    assert [each.port for each in sightings_in_pod(pod, 9000)] == [9000] * len(expected)
    reasons = [each.reason for each in members(POOL, sightings_in_pod(pod, "other"))[1]]
    assert reasons == [reason or "it has no port other" for reason in expected]


def test_a_pod_with_two_addresses_is_one_engine() -> None:
    """A Service of two families has a slice for each."""
    found = [*sightings_in_slice(a_slice(READY, address="fd00::1"), None), *sightings_in_slice(a_slice(READY), None)]
    endpoints, withheld = members(POOL, found)
    assert [(each.name, each.url, each.pod, each.uid) for each in endpoints] == [
        ("cpu-10.0.0.1-u-1", "http://10.0.0.1:8000", "e-1", "u-1")
    ]
    assert withheld == []


def test_a_pod_in_two_slices_is_out_when_one_says_so() -> None:
    found = [*sightings_in_slice(a_slice(READY), None), *sightings_in_slice(a_slice({"ready": False}), None)]
    endpoints, withheld = members(POOL, found)
    assert (endpoints, [(each.pod, each.reason) for each in withheld]) == ([], [("e-1", "not ready")])


def test_identity_is_uid_address_and_model() -> None:
    def one(address: str, uid: str, model: str = "tiny") -> Any:
        pool = POOL.model_copy(update={"model": model})
        return members(pool, [Sighting(address, 8000, "e-1", uid, "")])[0][0]

    same = one("10.0.0.1", "11111111-a")
    assert same == one("10.0.0.1", "11111111-a")
    others = [one("10.0.0.1", "22222222-a"), one("10.0.0.2", "11111111-a"), one("10.0.0.1", "11111111-a", "other")]
    assert all(same != other for other in others)
    assert len({same.name, *(other.name for other in others[:2])}) == 3
    assert one("10.0.0.1", "").name == "cpu-10.0.0.1"  # a slice that somebody writes by hand


def test_an_ipv6_address_is_a_url() -> None:
    (endpoint,), _ = members(POOL, [Sighting("fd00::1", 8000, "e", "u", "")])
    assert (endpoint.name, endpoint.url) == ("cpu-fd00--1-u", "http://[fd00::1]:8000")


KEYS = (
    *("metadata", "name", "uid", "endpoints", "addresses", "conditions", "ready", "ports", "port"),
    *("status", "podIP", "spec", "containers", "targetRef"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "endpoints", "ports", "status", "spec"]), json_values))
def test_nonsense_is_nothing(document: dict[str, Any]) -> None:
    for port in (None, 8000, "http"):
        members(POOL, sightings_in_slice(document, port))
        if port is not None:
            members(POOL, sightings_in_pod(document, port))
