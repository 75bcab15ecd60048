"""Who may talk to whom: the policies of a release, asked as a network plug-in would ask them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.conftest import MIXED_POOLS, VALUES
from tests.doubles.tools import Helm, only, pod_templates

pytestmark = pytest.mark.chart
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
Peer = dict[str, Any]


def selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(peer: Peer, labels: dict[str, str] | None, namespace: dict[str, str] | None) -> bool:
    """Whether a rule's peer is a pod of the release (`labels`) or of another namespace (`namespace`)."""
    if "ipBlock" in peer:
        return labels is None and namespace is None
    if "namespaceSelector" in peer:
        return namespace is not None and selected(peer["namespaceSelector"], namespace)
    return labels is not None and selected(peer["podSelector"], labels)


class Network:
    """The policies of a release; a connection is allowed when both ends' policies allow it."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]

    def allows(self, direction: str, own: dict[str, str], port: Any, **peer: Any) -> bool:
        policies = [p for p in self._policies if selected(p["podSelector"], own) and direction.capitalize() in p["policyTypes"]]
        if not policies:
            return True
        side = "from" if direction == "ingress" else "to"
        for policy in policies:
            for rule in policy.get(direction, []):
                ports = [each["port"] for each in rule.get("ports", [])]
                if ports and port not in ports:
                    continue
                if side not in rule or any(is_peer(each, peer.get("labels"), peer.get("namespace")) for each in rule[side]):
                    return True
        return False


def labels(objects: list[dict[str, Any]], kind: str, name: str, part: int = 0) -> dict[str, str]:
    return dict(pod_templates(only(objects, kind, name))[part]["metadata"]["labels"])


@pytest.fixture
def objects(helm_4: Helm) -> list[dict[str, Any]]:
    return helm_4.template({"pools": MIXED_POOLS})


def test_gateways_reach_engines_and_nobody_else_does(objects: list[dict[str, Any]]) -> None:
    network = Network(objects)
    gateway = labels(objects, "Deployment", "-gateway")
    engines = {name: labels(objects, kind, f"-{name}") for name, kind in (("mi355x", "Deployment"), ("epyc", "Deployment"))}
    for engine in engines.values():
        assert network.allows("egress", gateway, "http", labels=engine)
        assert network.allows("ingress", engine, "http", labels=gateway)
        assert network.allows("ingress", engine, "http", namespace=MONITORING)
        assert not network.allows("ingress", engine, "http", namespace={"kubernetes.io/metadata.name": "default"})
        assert not network.allows("ingress", engine, 22, labels=gateway)
    assert not network.allows("ingress", engines["mi355x"], "http", labels=engines["epyc"])
    assert not network.allows("egress", engines["mi355x"], "http", labels=engines["epyc"])
    assert not network.allows("ingress", engines["epyc"], "http", labels={"app": "another"})


def test_the_ranks_of_an_engine_talk_to_each_other(objects: list[dict[str, Any]]) -> None:
    network = Network(objects)
    leader, worker = (labels(objects, "LeaderWorkerSet", "-h100", part) for part in (0, 1))
    for one, other in ((leader, worker), (worker, leader)):
        assert network.allows("egress", one, 29501, labels=other) and network.allows("ingress", other, 29501, labels=one)
    assert not network.allows("ingress", worker, 29501, labels=labels(objects, "Deployment", "-b200"))


def test_engines_reach_the_hub_only_where_they_fetch(helm_4: Helm) -> None:
    pool = {"name": "cpu", "profile": "smollm2-135m-cpu"}
    for given, reaches in (
        ({}, True),
        ({"fetch": False, "weights": {"node": {"path": "/m"}}}, False),
        ({"engine": "sim"}, False),
    ):
        objects = helm_4.template({"pools": [{**pool, **given}]})
        network, engine = Network(objects), labels(objects, "Deployment", "-cpu")
        assert network.allows("egress", engine, 443) is reaches, given
        assert network.allows("egress", engine, 53), "names are always asked for"
        assert not network.allows("egress", engine, 80)


def test_clients_reach_gateways_and_scrapers_their_metrics(objects: list[dict[str, Any]]) -> None:
    network, gateway = Network(objects), labels(objects, "Deployment", "-gateway")
    anybody = {"kubernetes.io/metadata.name": "default"}
    assert network.allows("ingress", gateway, "http", namespace=anybody)
    assert network.allows("ingress", gateway, "operators", namespace=MONITORING)
    assert not network.allows("ingress", gateway, "operators", namespace=anybody)
    test = labels(objects, "Pod", "-test")
    assert network.allows("egress", test, "http", labels=gateway) and not network.allows("egress", test, 443)


def test_gateways_reach_each_other_and_nobody_else_reaches_them_so(objects: list[dict[str, Any]]) -> None:
    network, gateway = Network(objects), labels(objects, "Deployment", "-gateway")
    engine = labels(objects, "Deployment", "-epyc")
    for direction in ("ingress", "egress"):
        assert network.allows(direction, gateway, "peers", labels=gateway)
        assert not network.allows(direction, gateway, "peers", labels=engine)
        assert not network.allows(direction, gateway, "peers", namespace=MONITORING)
    (protocol,) = {
        port["protocol"]
        for policy in objects
        if policy["kind"] == "NetworkPolicy"
        for rule in (*policy["spec"].get("ingress", []), *policy["spec"].get("egress", []))
        for port in rule.get("ports", [])
        if port["port"] == "peers"
    }
    assert protocol == "UDP"


def test_named_clients_are_the_only_ones(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["closed-network"])
    network, gateway = Network(objects), labels(objects, "Deployment", "-gateway")
    assert network.allows("ingress", gateway, "http", namespace={"team": "a"})
    assert not network.allows("ingress", gateway, "http", namespace={"team": "b"})
    assert network.allows("ingress", gateway, "http", labels=labels(objects, "Pod", "-test")), "helm test is a client, too"
    assert network.allows("egress", gateway, 6379, labels={"app": "redis"})


@pytest.mark.parametrize(
    ("gateway", "port"),
    [
        ({"discovery": "kubernetes"}, 443),
        ({"discovery": "kubernetes"}, 6443),
        ({"database": {"existingSecret": "db"}, "keys": {"existingSecret": "keys"}}, 5432),
        ({"limitStore": {"existingSecret": "redis"}}, 6379),
        ({"settings": {"tracing": {"endpoint": "http://collector:4318/v1/traces"}}}, 4318),
    ],
)
def test_gateways_reach_what_they_use_and_nothing_else(helm_4: Helm, gateway: dict[str, Any], port: int) -> None:
    without = helm_4.template({"gateway": {"discovery": "dns"}})
    own = labels(without, "Deployment", "-gateway")
    places: tuple[dict[str, Any], ...] = ({}, {"labels": {"app": "redis"}}, {"namespace": {"team": "data"}})
    network = Network(helm_4.template({"gateway": {"discovery": "dns", **gateway}}))
    for place in places:
        assert network.allows("egress", own, port, **place)
        assert not Network(without).allows("egress", own, port, **place)
    assert not network.allows("egress", labels(without, "Deployment", "-cpu"), port, labels={"app": "redis"})


def test_what_gateways_use_may_be_narrowed(helm_4: Helm) -> None:
    peers = {"to": [{"podSelector": {"matchLabels": {"app": "redis"}}}], "ports": [6380]}
    objects = helm_4.template({"gateway": {"limitStore": {"existingSecret": "redis"}}, "networkPolicy": {"limitStore": peers}})
    network, gateway = Network(objects), labels(objects, "Deployment", "-gateway")
    assert network.allows("egress", gateway, 6380, labels={"app": "redis"})
    assert not network.allows("egress", gateway, 6380, labels={"app": "another"})
    assert not network.allows("egress", gateway, 6379, labels={"app": "redis"})


def test_without_the_switch_there_is_no_policy(helm: Helm) -> None:
    assert not [each for each in helm.template(VALUES["open-network"]) if each["kind"] == "NetworkPolicy"]
