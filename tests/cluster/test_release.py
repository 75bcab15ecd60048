"""A release in a real cluster: install, test, upgrade, rollback, uninstall, with Helm 3 and 4.

Where nodes are made up and have accelerators, all of a kind are taken, so that an upgrade that wanted more at once would hang.
Images, probes, volumes and containers are seen only where nodes have kubelets, and then need the images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import ACCELERATORS, EVERYTHING_ON
from tests.cluster.conftest import Kubectl
from tests.doubles.tools import CHART, Helm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
WAIT = ("--wait", "--timeout", os.environ.get("SERVING_TEST_CLUSTER_TIMEOUT", "5m"))
SETTLE_SECONDS = 120.0
MANAGED = "app.kubernetes.io/instance=x"


def fitting(target: dict[str, Any], nodes: list[dict[str, Any]]) -> int:
    """How many engines of 8 accelerators fit on the nodes of a target."""
    place = target["nodes"]
    matching = [node for node in nodes if place["selector"].items() <= node["metadata"]["labels"].items()]
    return sum(int(node["status"]["allocatable"].get(place["resource"], 0)) // 8 for node in matching)


def full_pools(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A pool that fills its nodes for each made-up target that there is, and one on the CPU."""
    pools: list[dict[str, Any]] = [{"name": "cpu", "profile": "smollm2-135m-cpu", "nodeSelector": {}}]
    for name, target in ACCELERATORS.items():
        count = fitting(target, nodes)
        if count:
            pools.append({"name": name, "profile": name, "replicas": count})
    return pools


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


def test_install_test_upgrade_rollback_uninstall(kubectl: Kubectl, helm: Helm, chart: Path, nodes: list[dict[str, Any]]) -> None:
    place = ("--namespace", kubectl.namespace)
    before = kubectl.everything()
    pools = full_pools(nodes)
    helm.run("install", "x", str(chart), *place, *WAIT, values={"pools": with_argument(pools, "1")})
    rolled_out(kubectl)
    wanted = {pool["name"]: ["1"] * pool.get("replicas", 1) for pool in pools}
    assert engines(kubectl) == wanted
    numbers = {f"x-serving-{pool['name']}": pool.get("replicas", 1) for pool in pools}
    eventually(lambda: {name: n for name, wanted_n in numbers.items() if (n := ready_addresses(kubectl, name)) != wanted_n})
    helm.run("test", "x", *place)
    first = secret(kubectl)

    helm.run("upgrade", "x", str(chart), *place, *WAIT, values={"pools": with_argument(pools, "2")})
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
        pool = {"name": "cpu", "profile": "smollm2-135m-cpu", "nodeSelector": {}, "replicas": replicas}
        helm.run(verb, "x", str(CHART), *place, *WAIT, values={"pools": [pool]})
        rolled_out(kubectl)
        eventually(lambda replicas=replicas: (found := engines(kubectl)["cpu"]) and len(found) != replicas and found)
    helm.run("uninstall", "x", *place, *WAIT)


def test_two_releases_in_one_namespace(kubectl: Kubectl, helm: Helm) -> None:
    place = ("--namespace", kubectl.namespace)
    values = {"pools": [{"name": "cpu", "profile": "smollm2-135m-cpu", "nodeSelector": {}}], "gateway": {"replicas": 1}}
    for release in ("x", "y"):
        helm.run("install", release, str(CHART), *place, *WAIT, values=values)
    rolled_out(kubectl)
    for release in ("x", "y"):
        name = f"{release}-serving-cpu"
        eventually(lambda name=name: (found := ready_addresses(kubectl, name)) != 1 and f"{name} has {found} addresses")
    for release in ("x", "y"):
        helm.run("uninstall", release, *place, *WAIT)


def test_monitors_need_their_definitions(kubectl: Kubectl, helm: Helm) -> None:
    """Where the operator is, its API server takes what we render; elsewhere the switch is off and nothing is missed."""
    if "monitoring.coreos.com" not in kubectl.run("api-versions"):
        pytest.skip("this cluster has no PodMonitor and PrometheusRule")
    place = ("--namespace", kubectl.namespace)
    helm.run("install", "x", str(CHART), *place, values={"pools": [], "monitoring": EVERYTHING_ON})
    assert len(kubectl.items("podmonitors", "--selector", MANAGED)) == 2
    helm.run("uninstall", "x", *place)
