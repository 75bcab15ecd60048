"""The stand-in for kubelets in tests/cluster, as far as it can be seen without a cluster: it writes what Kubernetes knows."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from tests.chart.conftest import MIXED_POOLS
from tests.cluster.made_up_nodes import NODES, MadeUpNodes, node, node_status, pod_status, readiness_patch
from tests.cluster.test_release import ACCELERATORS, fitting, full_pools
from tests.doubles.tools import Helm, pod_templates, rendered_profile

NEWEST = kubernetes_validate.latest_version()


class Recorded:
    """Takes what would go to a cluster, and shows pods as one."""

    def __init__(self, pods: list[dict[str, Any]]) -> None:
        self.pods = pods
        self.calls: list[tuple[str, ...]] = []

    def run(self, *words: str, given: str | None = None) -> str:
        self.calls.append(words)
        return json.dumps({"items": self.pods}) if words[0] == "get" else ""


def made() -> list[dict[str, Any]]:
    return [{**node(name, **what), "status": node_status(what.get("resource"))} for name, what in NODES.items()]


def test_made_up_nodes_are_nodes() -> None:
    for each in made():
        kubernetes_validate.validate(each, NEWEST, strict=True)


def test_pods_may_be_scheduled_onto_them() -> None:
    """The API server's admission taints every new node as not ready; only the taint of its devices is left."""
    cluster = Recorded([])
    with MadeUpNodes(cluster):
        pass
    patched = {
        words[2]: json.loads(words[-1])["spec"]["taints"]
        for words in cluster.calls
        if words[:2] == ("patch", "node") and "--subresource=status" not in words
    }
    assert patched.keys() == NODES.keys()
    assert {name: [taint["key"] for taint in taints] for name, taints in patched.items()} == {
        name: [what["resource"]] if "resource" in what else [] for name, what in NODES.items()
    }


def test_the_pools_fill_them() -> None:
    assert {pool["name"]: pool.get("replicas", 1) for pool in full_pools(made())} == {
        "cpu": 1,
        "mi355x": 2,
        "mi300x": 1,
        "b200": 1,
    }


@pytest.mark.chart
def test_every_pod_has_room_on_its_node(helm_4: Helm) -> None:
    for name, profile in ACCELERATORS.items():
        rendered = rendered_profile(profile)
        assert fitting(rendered, made()) >= 1, name
        assert int(rendered["resources"]["requests"]["memory"].removesuffix("Mi")) < 1536 * 1024
        assert rendered["resources"]["requests"]["cpu"] <= 192


def test_a_gated_pod_is_ready_when_its_condition_says_so() -> None:
    gates = [{"conditionType": "serving/quality"}]
    spec = {"nodeName": "epyc-0", "readinessGates": gates, "containers": [{"name": "engine", "image": "i"}]}
    pod: dict[str, Any] = {"metadata": {"name": "a", "namespace": "ns", "uid": "1"}, "spec": spec, "status": {"phase": "Pending"}}
    pod["status"] = pod_status(pod, "10.244.0.1")
    ready = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    assert (ready["ContainersReady"], ready["Ready"]) == ("True", "False")
    assert readiness_patch(pod) is None
    pod["status"]["conditions"].append({"type": "serving/quality", "status": "True"})
    cluster = Recorded([pod])
    nodes = MadeUpNodes(cluster)
    nodes._seen.add("1")
    nodes._look_at(pod)
    (call,) = cluster.calls
    assert call[:3] == ("patch", "pod", "a") and "--type=strategic" in call
    said = json.loads(call[-1])["status"]["conditions"]
    assert {each["type"]: each["status"] for each in said} == {"ContainersReady": "True", "Ready": "True"}


@pytest.mark.chart
def test_pods_become_ready_and_tests_end(helm_4: Helm) -> None:
    templates = [template for each in helm_4.template({"pools": MIXED_POOLS[-1:]}) for template in pod_templates(each)]
    pods = []
    for number, template in enumerate(templates):
        metadata = {"name": f"pod-{number}", "namespace": "ns", "uid": str(number)}
        spec = {**template["spec"], "nodeName": "epyc-0"}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        found = {**pods[-1], "status": pod_status(pods[-1], "10.244.0.1")}
        kubernetes_validate.validate(found, NEWEST, strict=True)
        assert found["status"]["phase"] == ("Succeeded" if spec.get("restartPolicy") == "Never" else "Running")
    leaving = {
        "metadata": {"name": "old", "namespace": "ns", "uid": "x", "deletionTimestamp": "now"},
        "spec": {"nodeName": "epyc-0"},
    }
    foreign = {"metadata": {"name": "else", "namespace": "ns", "uid": "y"}, "spec": {"nodeName": "a-real-one"}, "status": {}}
    cluster = Recorded([*pods, leaving, foreign])
    nodes = MadeUpNodes(cluster)
    for _ in range(2):
        for pod in cluster.pods:
            nodes._look_at(pod)
    assert [words[:3] for words in cluster.calls if words[0] == "patch"] == [
        ("patch", "pod", f"pod-{n}") for n in range(len(pods))
    ]
    assert {words[:3] for words in cluster.calls if words[0] != "patch"} == {("delete", "pod", "old")}
