"""Pools with a gate: their pods, their updates, the controller and its rights; and that a pool without one is as before."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from serving.gatekeeper.pods import CONDITION, gated_pod
from serving.gatekeeper.settings import GatekeeperSettings
from tests.chart.conftest import COMMIT, VALUES
from tests.chart.test_network import MONITORING, Network, labels
from tests.doubles.tools import CHART, Helm, Refused, container, only, pod_templates

pytestmark = pytest.mark.chart
GATE = {"arguments": ["--matched", "/reports/matched.json"]}
POOL = {"name": "cpu", "profile": "smollm2-135m-cpu", "replicas": 2, "gate": GATE}
WORKLOADS = ("Deployment", "LeaderWorkerSet")


def test_without_a_gate_nothing_of_it_is_there(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["mixed"])
    assert not [each for each in objects if each["metadata"]["name"].endswith("-gate")]
    for each in objects:
        if each["kind"] in WORKLOADS:
            for template in pod_templates(each):
                assert "readinessGates" not in template["spec"]
                assert not {"serving/gated", "serving/checkpoint"} & {
                    *template["metadata"]["labels"],
                    *template["metadata"].get("annotations", {}),
                }


def test_a_gated_pod_is_one_that_the_controller_knows(helm: Helm) -> None:
    objects = helm.template({"pools": [POOL]})
    template = pod_templates(only(objects, "Deployment", "-cpu"))[0]
    metadata = {**template["metadata"], "name": "x", "uid": "u"}
    pod = gated_pod({"metadata": metadata, "spec": template["spec"], "status": {"podIP": "10.0.0.1"}})
    assert pod is not None and pod.pool == "cpu" and pod.url == "http://10.0.0.1:8000"
    configuration = pod.configuration
    assert configuration.is_known and configuration.target == "cpu-epyc"
    assert "@" in configuration.checkpoint
    assert configuration.argv == tuple(container(only(objects, "Deployment", "-cpu"))["command"])
    assert not [name for name in configuration.environment if "SECRET" in name]
    settings = yaml.safe_load(only(objects, "ConfigMap", "-gate")["data"]["gate.yaml"])
    selector = dict(pair.split("=") for pair in settings["selector"].split(","))
    assert selector.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"podAnnotations": {"a": "b"}}, True),
        ({"drainSeconds": 60}, False),
        ({"extraArguments": ["--seed", "2"]}, False),
        ({"environment": {"VLLM_SOMETHING": "1"}}, False),
        ({"revision": COMMIT}, False),
        ({"image": {"tag": "v0.33.0"}}, False),
    ],
)
def test_what_changes_answers_changes_the_digest(helm_4: Helm, change: dict[str, Any], same: bool) -> None:
    def digest(pool: dict[str, Any]) -> str:
        template = pod_templates(only(helm_4.template({"pools": [pool]}), "Deployment", "-cpu"))[0]
        pod = gated_pod({**template, "metadata": {**template["metadata"], "name": "x", "uid": "u"}})
        assert pod is not None
        return pod.digest

    assert (digest(POOL) == digest({**POOL, **change})) is same


def test_an_update_takes_one_engine_at_a_time(helm_4: Helm) -> None:
    def strategy(**pool: Any) -> dict[str, Any]:
        return dict(only(helm_4.template({"pools": [{**POOL, **pool}]}), "Deployment", "-cpu")["spec"]["strategy"])

    assert strategy()["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    surging = strategy(replicas=1, gate={**GATE, "spareNode": True})
    assert surging == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert strategy(replicas=1, gate={**GATE, "allowOutage": True})["type"] == "Recreate"


def test_only_the_leader_of_several_nodes_is_judged(helm_4: Helm) -> None:
    pool = {"name": "h100", "profile": "deepseek-r1-fp8-h100", "revision": COMMIT, "replicas": 2, "gate": GATE}
    group = only(helm_4.template({"pools": [pool]}), "LeaderWorkerSet", "-h100")
    leader, worker = pod_templates(group)
    assert leader["spec"]["readinessGates"] == [{"conditionType": CONDITION}]
    assert "readinessGates" not in worker["spec"] and "serving/gated" not in worker["metadata"]["labels"]
    assert group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"replicas": 1}, "gate.spareNode: true where a node is free for one more, gate.allowOutage: true, or two replicas"),
        ({"replicas": None, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}, "gate.allowOutage: true"),
        ({"gate": {**GATE, "spareNode": True, "allowOutage": True}}, "leave out one of the two"),
        ({"maxUnavailable": 2, "replicas": 4}, "maxUnavailable: must be 1 with gate"),
        ({"gate": {}}, "arguments"),
        ({"gate": {**GATE, "argument": []}}, "argument"),
    ],
)
def test_what_would_be_an_outage_is_refused(helm: Helm, pool: dict[str, Any], message: str) -> None:
    given = {key: value for key, value in {**POOL, **pool}.items() if value is not None}
    values = {"pools": [given], "autoscaling": {"prometheus": {"address": "http://prometheus:9090"}}}
    with pytest.raises(Refused, match=message):
        helm.template(values)


def test_names_cannot_tell_that_an_engine_was_taken_out(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"gateway\.discovery: must be kubernetes where a pool has a gate"):
        helm.template({"pools": [POOL], "gateway": {"discovery": "dns"}})


def test_the_controllers_settings_are_ones_that_it_takes(helm: Helm) -> None:
    objects = helm.template(VALUES["gated"])
    settings = GatekeeperSettings.model_validate(yaml.safe_load(only(objects, "ConfigMap", "-gate")["data"]["gate.yaml"]))
    assert settings.pools["cpu"] == ("--profile", "smollm2-135m-cpu", "--matched", "/reports/matched.json")
    assert settings.owner == settings.name == only(objects, "Deployment", "-gate")["metadata"]["name"]


def test_gateways_watch_gated_pools(helm: Helm) -> None:
    def quality(values: dict[str, Any]) -> Any:
        return yaml.safe_load(only(helm.template(values), "ConfigMap", "-gateway")["data"]["gateway.yaml"]).get("quality")

    assert quality({}) is None
    assert quality({"pools": [POOL]}) == {"enabled": True}
    path = "/etc/serving/quality/cpu/probes.json"
    assert quality(VALUES["gated"]) == {"enabled": True, "references": {"cpu": path}, "eject": True}
    gateway = container(only(helm.template(VALUES["gated"]), "Deployment", "-gateway"))
    assert {"name": "probes-cpu", "mountPath": "/etc/serving/quality/cpu", "readOnly": True} in gateway["volumeMounts"]
    given = {"pools": [POOL], "gateway": {"settings": {"quality": {"period_seconds": 20}}}}
    assert quality(given) == {"enabled": True, "period_seconds": 20}
    with pytest.raises(Refused, match=r"gate\.eject: needs"):
        helm.template({"pools": [POOL], "gate": {"eject": True}})
    with pytest.raises(Refused, match="references"):
        helm.template({"pools": [POOL], "gateway": {"settings": {"quality": {"references": {"cpu": "x"}}}}})


def test_the_controller_has_the_rights_that_it_uses(helm_4: Helm) -> None:
    rules = only(helm_4.template({"pools": [POOL]}), "Role", "-gate")["rules"]
    rights = {
        (resource, verb): rule.get("resourceNames") for rule in rules for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert rights == {
        ("pods", "list"): None,
        ("pods", "watch"): None,
        ("pods/status", "patch"): None,
        ("configmaps", "list"): None,
        ("configmaps", "watch"): None,
        ("configmaps", "create"): None,
        ("configmaps", "get"): ["x-serving-gate"],
        ("events", "create"): None,
        ("leases", "get"): ["x-serving-gate"],
        ("leases", "update"): ["x-serving-gate"],
    }
    for other in ("-gateway",):
        found = only(helm_4.template({"pools": [POOL]}), "Role", other)["rules"]
        assert "configmaps" not in str(found) and "pods" not in str(found)


def test_the_controller_reaches_engines_and_the_api_server(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["gated"])
    network = Network(objects)
    gate, engine = labels(objects, "Deployment", "-gate"), labels(objects, "Deployment", "-cpu")
    assert network.allows("egress", gate, "http", labels=engine) and network.allows("ingress", engine, "http", labels=gate)
    assert network.allows("egress", gate, 443) and network.allows("egress", gate, 8000, labels={"app": "reference"})
    assert not network.allows("egress", gate, 8000, labels={"app": "another"})
    assert network.allows("ingress", gate, "operators", namespace=MONITORING)
    assert not network.allows("ingress", gate, "operators", labels=engine)
    plain = helm_4.template({"pools": [{k: v for k, v in POOL.items() if k != "gate"}]})
    assert not Network(plain).allows("ingress", labels(plain, "Deployment", "-cpu"), "http", labels=gate)


def test_the_notes_say_where_to_look(helm_4: Helm) -> None:
    shown = helm_4.run("install", "x", str(CHART), "--dry-run=client", "--namespace", "ns", values=VALUES["gated"])
    notes = shown.partition("NOTES:")[2]
    assert "--namespace ns exec deploy/x-serving-gate -- serving gate verdicts" in notes
    assert "Pool cpu: its engines are ready when the gate has passed them, one after another." in notes
    assert "Pool spare: its engines are ready when the gate has passed them, each before an old one goes." in notes


def test_a_rollout_is_given_the_time_of_the_gate(helm_4: Helm) -> None:
    def seconds(values: dict[str, Any]) -> int:
        return int(only(helm_4.template(values), "Deployment", "-cpu")["spec"]["progressDeadlineSeconds"])

    without = seconds({"pools": [{key: value for key, value in POOL.items() if key != "gate"}]})
    assert seconds({"pools": [POOL], "gate": {"runSeconds": 7200}}) == without + 7200
