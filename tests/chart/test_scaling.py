"""Who scales what, and by which demand; and what an upgrade or a drained node may take away."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings import Settings
from tests.chart.conftest import COMMIT, MIXED_POOLS, VALUES, outside_the_pod
from tests.doubles.tools import Helm, container, only, tool

pytestmark = pytest.mark.chart
KUBERNETES_LIMIT_SECONDS = 3600
"""The longest stabilisation window that an autoscaler may have."""


@pytest.fixture
def scaled(helm_4: Helm) -> list[dict[str, Any]]:
    return helm_4.template(VALUES["mixed and scaled"], namespace="ns")


def test_what_is_scaled_says_no_number_of_replicas(scaled: list[dict[str, Any]]) -> None:
    for pool in MIXED_POOLS:
        found = [each for each in scaled if each["metadata"]["name"] == f"x-serving-{pool['name']}"]
        (target,) = [each for each in found if each["kind"] in ("Deployment", "LeaderWorkerSet")]
        (scaler,) = [each for each in found if each["kind"] == "ScaledObject"]
        assert "replicas" not in target["spec"]
        reference = scaler["spec"]["scaleTargetRef"]
        assert reference == {"apiVersion": target["apiVersion"], "kind": target["kind"], "name": target["metadata"]["name"]}
        if target["kind"] == "Deployment":
            assert target["spec"]["strategy"]["type"] == "RollingUpdate"
    assert only(scaled, "Deployment", "-gateway")["spec"]["replicas"] == 2


def test_scaling_down_waits_longer_than_a_load(scaled: list[dict[str, Any]]) -> None:
    workload = only(scaled, "Deployment", "-epyc")
    probe = container(workload)["startupProbe"]
    load = probe["periodSeconds"] * (probe["failureThreshold"] - 1)
    scaler = only(scaled, "ScaledObject", "-epyc")["spec"]
    down = scaler["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert min(load, KUBERNETES_LIMIT_SECONDS) < down["stabilizationWindowSeconds"] <= KUBERNETES_LIMIT_SECONDS
    assert down["policies"][0]["periodSeconds"] <= 1800, "the API server takes no more"
    assert scaler["cooldownPeriod"] > workload["spec"]["progressDeadlineSeconds"]
    assert (scaler["minReplicaCount"], scaler["fallback"]["replicas"]) == (0, 1)


def test_a_very_large_model_stays_within_what_kubernetes_takes(helm_4: Helm) -> None:
    pool = {
        "name": "a",
        "profile": "smollm2-135m-cpu",
        "startupSeconds": 7200,
        "autoscaling": {"minReplicas": 0, "maxReplicas": 2},
    }
    values = {"pools": [pool], "autoscaling": {"prometheus": {"address": "http://p:9090"}}}
    spec = only(helm_4.template(values), "ScaledObject", "-a")["spec"]
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert (down["stabilizationWindowSeconds"], down["policies"][0]["periodSeconds"]) == (3600, 1800)
    assert spec["cooldownPeriod"] > 7200


def query(objects: list[dict[str, Any]], name: str) -> str:
    (trigger,) = only(objects, "ScaledObject", name)["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    return str(trigger["metadata"]["query"])


DEMAND = """
tests:
  - interval: 15s
    input_series:
      - series: 'serving_running_requests{namespace="ns",pod="x-serving-gateway-a",model="MODEL",pool="epyc"}'
        values: "0x20 5x20"
      - series: 'serving_running_requests{namespace="ns",pod="x-serving-gateway-b",model="MODEL",pool="epyc"}'
        values: "0x20 2x20"
      - series: 'serving_queued_requests{namespace="ns",pod="x-serving-gateway-b",model="MODEL",pool="epyc"}'
        values: "0x20 3x20"
      - series: 'serving_running_requests{namespace="ns",pod="y-serving-gateway-a",model="MODEL",pool="epyc"}'
        values: "100x60"
      - series: 'serving_requests_total{namespace="ns",pod="x-serving-gateway-a",model="MODEL",outcome="unavailable"}'
        values: "0x8 1x60"
    promql_expr_test:
      - {expr: 'QUERY', eval_time: 1m, exp_samples: [{labels: '{}', value: 0}]}
      - {expr: 'QUERY > bool 0', eval_time: 3m, exp_samples: [{labels: '{}', value: 1}]}
      - {expr: 'QUERY', eval_time: 8m, exp_samples: [{labels: '{}', value: 10}]}
  - interval: 15s
    promql_expr_test:
      - {expr: 'QUERY', eval_time: 1m, exp_samples: []}
"""
"""At nothing; one refused request; then running and queued. Without any gateway the answer is nothing, and not zero."""


@pytest.mark.parametrize("prometheus", ["prometheus-2", "prometheus-3"])
def test_the_demand_is_what_gateways_say(scaled: list[dict[str, Any]], tmp_path: Path, prometheus: str) -> None:
    path = tmp_path / "demand.yaml"
    path.write_text(DEMAND.replace("MODEL", "smollm2-135m-instruct").replace("QUERY", query(scaled, "-epyc").replace("'", "''")))
    done = subprocess.run([str(tool(prometheus, "promtool")), "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_gateway_names_what_the_demand_asks_for() -> None:
    from serving.observability.metrics import Metrics
    from serving.observability.series.fleet import RUNNING_REQUESTS

    metrics = Metrics()
    metrics.watch(RUNNING_REQUESTS, lambda: [(("m", "p"), 1.0)])
    metrics.requests.add(("m", "chat", "unavailable"))
    metrics.in_flight.set(1)
    text = metrics.exposition()[0].decode()
    for series in ('serving_running_requests{model="m",pool="p"}', 'serving_requests_total{model="m",outcome="unavailable"'):
        assert series in text
    assert "serving_in_flight_requests 1" in text


def test_gateways_wait_for_no_engine_of_a_pool_that_is_scaled_to_nothing(helm: Helm) -> None:
    """A gateway that is not ready gets no request from its Service, so that nothing would ever be woken."""
    pools = [
        {"name": "asleep", "profile": "smollm2-135m-cpu", "autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
        {"name": "awake", "profile": "smollm2-135m-cpu", "autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
        {"name": "off", "profile": "smollm2-135m-cpu", "replicas": 0},
        {"name": "on-its-own", "profile": "smollm2-135m-cpu"},
    ]
    prometheus = {"autoscaling": {"prometheus": {"address": "http://p:9090"}}}
    for discovery in ("kubernetes", "dns"):
        objects = helm.template({"pools": pools, "gateway": {"discovery": discovery}, **prometheus})
        settings = yaml.safe_load(only(objects, "ConfigMap", "-gateway")["data"]["gateway.yaml"])
        found = {pool.name: pool.may_be_empty for pool in Settings.model_validate(outside_the_pod(settings)).pools}
        assert found == {"asleep": True, "awake": False, "off": True, "on-its-own": False}


def test_helms_test_knows_which_models_may_sleep(helm_4: Helm) -> None:
    asleep = {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}
    pools = [
        {"name": "a", "profile": "smollm2-135m-cpu"},
        {"name": "b", "profile": "smollm2-135m-epyc-9005", **asleep},
        {"name": "c", "profile": "qwen3-0.6b-cpu", "revision": COMMIT, **asleep},
    ]
    prometheus = {"autoscaling": {"prometheus": {"address": "http://p:9090"}}}
    args = only(helm_4.template({"pools": pools, **prometheus}), "Pod", "-test")["spec"]["containers"][0]["args"]
    assert args[2:] == ["120", "smollm2-135m-instruct", "--may-sleep", "qwen3-0.6b"]


def test_gateways_are_scaled_by_one_thing_only(helm: Helm) -> None:
    for by, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        values = {"gateway": {"autoscaling": {"by": by}}, "autoscaling": {"prometheus": {"address": "http://p:9090"}}}
        objects = helm.template(values)
        assert "replicas" not in only(objects, "Deployment", "-gateway")["spec"]
        scalers = [each["kind"] for each in objects if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
        assert scalers == [kind]
        assert only(objects, kind, "-gateway")["spec"]["scaleTargetRef"]["name"] == "x-serving-gateway"


def test_budgets_let_nodes_be_drained(scaled: list[dict[str, Any]]) -> None:
    budgets = [each for each in scaled if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == len(MIXED_POOLS) + 1
    for each in budgets:
        assert each["spec"]["maxUnavailable"] >= 1 and "minAvailable" not in each["spec"]
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
