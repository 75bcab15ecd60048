"""A release in a real cluster: install, test, upgrade, rollback, uninstall, with Helm 3 and 4.

Where nodes are made up and have accelerators, all of a kind are taken, so that an upgrade that wanted more at once would hang.
Images, probes, volumes and containers are seen only where nodes have kubelets, and then need the images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.chart.conftest import COMMIT, EVERYTHING_ON
from tests.cluster.conftest import Kubectl
from tests.doubles.tools import CHART, Helm, Refused, rendered_profile

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
WAIT = ("--wait", "--timeout", os.environ.get("SERVING_TEST_CLUSTER_TIMEOUT", "5m"))
SETTLE_SECONDS = 120.0
MANAGED = "app.kubernetes.io/instance=x"


ACCELERATORS = {
    "mi355x": "glm-5.2-mxfp4-mi355x",
    "mi300x": "deepseek-r1-fp8-mi300x",
    "b200": "glm-5.2-nvfp4-b200",
}
CPU = {"name": "cpu", "profile": "smollm2-135m-cpu", "nodeSelector": {}}


def fitting(profile: dict[str, Any], nodes: list[dict[str, Any]]) -> int:
    """How many engines of a profile have devices on the nodes that it selects."""
    device = profile["device"]
    matching = [node for node in nodes if profile["nodeSelector"].items() <= node["metadata"]["labels"].items()]
    return sum(int(node["status"]["allocatable"].get(device["resource"], 0)) // device["count"] for node in matching)


def pool_on(name: str, replicas: int) -> dict[str, Any]:
    return {"name": name, "profile": ACCELERATORS[name], "revision": COMMIT, "replicas": replicas}


def full_pools(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A pool that fills its nodes for each kind of accelerator that there is, and one on the CPU."""
    counts = {name: fitting(rendered_profile(profile), nodes) for name, profile in ACCELERATORS.items()}
    return [CPU, *(pool_on(name, count) for name, count in counts.items() if count)]


def with_argument(pools: list[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    return [{**pool, "extraArguments": ["--seed", word]} for pool in pools]


def engines(kubectl: Kubectl) -> dict[str, list[str]]:
    """Pool → the last word of each ready engine's command."""
    found: dict[str, list[str]] = {}
    for pod in kubectl.items("pods", "--selector", f"{MANAGED},app.kubernetes.io/component=engine"):
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        if ready and "deletionTimestamp" not in pod["metadata"]:
            pool = pod["metadata"]["labels"]["serving/pool"]
            found.setdefault(pool, []).append(pod["spec"]["containers"][0]["command"][-1])
    return found


def rolled_out(kubectl: Kubectl) -> None:
    for deployment in kubectl.items("deployments", "--selector", MANAGED):
        kubectl.run("rollout", "status", f"deployment/{deployment['metadata']['name']}", "--timeout=300s")


def secret(kubectl: Kubectl) -> str:
    (one,) = kubectl.items("secrets", "--selector", MANAGED)
    return str(one["data"]["engine-secret"])


def misplaced(kubectl: Kubectl, nodes: list[dict[str, Any]], pools: list[dict[str, Any]]) -> list[str]:
    """Engines that are on other nodes than their profile's."""
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    wanted = {pool["name"]: pool.get("nodeSelector", rendered_profile(pool["profile"])["nodeSelector"]) for pool in pools}
    found = kubectl.items("pods", "--selector", f"{MANAGED},app.kubernetes.io/component=engine")
    return [
        f"{pod['metadata']['name']} on {pod['spec']['nodeName']}"
        for pod in found
        if not wanted[pod["metadata"]["labels"]["serving/pool"]].items() <= labels[pod["spec"]["nodeName"]].items()
    ]


def test_install_test_upgrade_rollback_uninstall(kubectl: Kubectl, helm: Helm, nodes: list[dict[str, Any]]) -> None:
    place = ("--namespace", kubectl.namespace)
    before = kubectl.everything()
    pools = full_pools(nodes)
    helm.run("install", "x", str(CHART), *place, *WAIT, values={"pools": with_argument(pools, "1")})
    rolled_out(kubectl)
    wanted = {pool["name"]: ["1"] * pool.get("replicas", 1) for pool in pools}
    assert engines(kubectl) == wanted
    assert misplaced(kubectl, nodes, pools) == []
    numbers = {f"x-serving-{pool['name']}": pool.get("replicas", 1) for pool in pools}
    eventually(lambda: {name: n for name, wanted_n in numbers.items() if (n := ready_addresses(kubectl, name)) != wanted_n})
    helm.run("test", "x", *place)
    first = secret(kubectl)

    helm.run("upgrade", "x", str(CHART), *place, *WAIT, values={"pools": with_argument(pools, "2")})
    rolled_out(kubectl)
    assert engines(kubectl) == {name: ["2"] * len(words) for name, words in wanted.items()}
    assert secret(kubectl) == first, "engines and gateways read the secret when they start: it must outlive an upgrade"

    helm.run("rollback", "x", "1", *place, *WAIT)
    rolled_out(kubectl)
    assert engines(kubectl) == wanted
    assert secret(kubectl) == first

    helm.run("uninstall", "x", *place, *WAIT)
    eventually(lambda: sorted(kubectl.everything() - before))


def eventually(left: Callable[[], object]) -> None:
    """Controllers follow: what a check finds wrong must be nothing in the end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(1.0)


def ready_addresses(kubectl: Kubectl, service: str) -> int:
    """How many addresses a headless Service's name resolves to."""
    slices = kubectl.items("endpointslices", "--selector", f"kubernetes.io/service-name={service}")
    return sum(bool(end["conditions"].get("ready")) for each in slices for end in each.get("endpoints") or [])


def test_another_number_of_replicas(kubectl: Kubectl, helm: Helm) -> None:
    """One replica has another strategy than several, and the way there and back is a patch that the API server must take."""
    place = ("--namespace", kubectl.namespace)
    for replicas, verb in ((1, "install"), (2, "upgrade"), (1, "upgrade")):
        pool = {**CPU, "replicas": replicas}
        helm.run(verb, "x", str(CHART), *place, *WAIT, values={"pools": [pool]})
        rolled_out(kubectl)
        eventually(lambda replicas=replicas: (found := engines(kubectl)["cpu"]) and len(found) != replicas and found)
    helm.run("uninstall", "x", *place, *WAIT)


def test_two_releases_in_one_namespace(kubectl: Kubectl, helm: Helm) -> None:
    place = ("--namespace", kubectl.namespace)
    values = {"pools": [CPU], "gateway": {"replicas": 1}}
    for release in ("x", "y"):
        helm.run("install", release, str(CHART), *place, *WAIT, values=values)
    rolled_out(kubectl)
    for release in ("x", "y"):
        name = f"{release}-serving-cpu"
        eventually(lambda name=name: (found := ready_addresses(kubectl, name)) != 1 and f"{name} has {found} addresses")
    for release in ("x", "y"):
        helm.run("uninstall", release, *place, *WAIT)


def test_too_little_hardware_stays_pending_with_a_reason(kubectl: Kubectl, helm: Helm, nodes: list[dict[str, Any]]) -> None:
    full = [pool for pool in full_pools(nodes) if pool["name"] in ACCELERATORS]
    if not full:
        pytest.skip("this cluster has no accelerators, real or made-up")
    name, there = full[0]["name"], full[0]["replicas"]
    place = ("--namespace", kubectl.namespace)
    values = {"pools": [pool_on(name, there + 1)]}
    with pytest.raises(Refused):
        helm.run("install", "x", str(CHART), *place, "--wait", "--timeout", "30s", values=values)
    resource = rendered_profile(ACCELERATORS[name])["device"]["resource"]

    def unclear() -> str:
        pods = kubectl.items("pods", "--selector", f"{MANAGED},app.kubernetes.io/component=engine")
        said = [
            condition.get("message", "")
            for pod in pods
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]
        return "" if len(said) == 1 and f"Insufficient {resource}" in said[0] else f"{len(pods)} pods: {said}"

    eventually(unclear)
    helm.run("uninstall", "x", *place, *WAIT)


def test_what_a_pool_excepts_is_refused_where_all_is_restricted(kubectl: Kubectl, helm: Helm) -> None:
    """A folder of the node is not for restricted namespaces: the pod is not made, and the reason is said."""
    place = ("--namespace", kubectl.namespace)
    pool = {**CPU, "weights": {"node": {"path": "/var/lib/serving"}}}
    helm.run("install", "x", str(CHART), *place, values={"pools": [pool]})

    def unsaid() -> str:
        (engine,) = [
            each for each in kubectl.items("deployments", "--selector", MANAGED) if each["metadata"]["name"].endswith("-cpu")
        ]
        said = [c["message"] for c in engine["status"].get("conditions", []) if c["type"] == "ReplicaFailure"]
        return "" if said and "violates PodSecurity" in said[0] and "hostPath" in said[0] else str(said)

    eventually(unsaid)
    helm.run("uninstall", "x", *place, *WAIT)


def test_a_simulated_release_needs_no_accelerators(kubectl: Kubectl, helm: Helm) -> None:
    place = ("--namespace", kubectl.namespace)
    pool = {"name": "sim", "profile": "smollm2-135m-cpu", "engine": "sim", "replicas": 2}
    helm.run("install", "x", str(CHART), *place, *WAIT, values={"pools": [pool]})
    rolled_out(kubectl)
    eventually(lambda: (found := ready_addresses(kubectl, "x-serving-sim")) != 2 and f"{found} addresses")
    helm.run("test", "x", *place)
    helm.run("uninstall", "x", *place, *WAIT)


def test_monitors_need_their_definitions(kubectl: Kubectl, helm: Helm) -> None:
    """Where the operator is, its API server takes what we render; elsewhere the switch is off and nothing is missed."""
    if "monitoring.coreos.com" not in kubectl.run("api-versions"):
        pytest.skip("this cluster has no PodMonitor and PrometheusRule")
    place = ("--namespace", kubectl.namespace)
    helm.run("install", "x", str(CHART), *place, values={"pools": [], "monitoring": EVERYTHING_ON})
    assert len(kubectl.items("podmonitors", "--selector", MANAGED)) == 2
    helm.run("uninstall", "x", *place)
