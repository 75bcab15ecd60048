"""Helm 3 and 4 take the chart; wrong values are refused with their path; what is rendered holds what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.cost.hardware import Machines, catalog_targets, targets_of
from serving.fleet.kubernetes import _resource
from serving.fleet_settings import KubernetesPoolSettings
from serving.settings import Settings, catalog_dir
from tests.chart.conftest import EVERYTHING_ON, MIXED_POOLS, VALUES, altered_chart, outside_the_pod
from tests.doubles.tools import CHART, Helm, Refused, container, only, pod_templates, pods

pytestmark = pytest.mark.chart
POOL = {"name": "cpu", "profile": "smollm2-135m-cpu"}
SCALING = {"minReplicas": 0, "maxReplicas": 2}
SCALED = {"autoscaling": {"prometheus": {"address": "http://p:9090"}}}


def test_lint_and_package(helm: Helm, tmp_path: Path) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("serving-*.tgz")
    assert len(helm.template(chart=package)) == len(helm.template())


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_both_helms_render_the_same(values: dict[str, Any]) -> None:
    three, four = (Helm(name).template(values) for name in ("helm-3", "helm-4"))
    for objects in (three, four):
        for secret in (each for each in objects if each["kind"] == "Secret"):
            assert len(secret["data"].pop("engine-secret")) == 64  # 48 random characters
    key = lambda each: (each["kind"], each["metadata"]["name"])  # noqa: E731
    assert sorted(three, key=key) == sorted(four, key=key)


@pytest.mark.parametrize(
    ("values", "path", "words"),
    [
        ({"pool": []}, "", "pool"),
        ({"global": {"imageRegisty": "x"}}, "global", "imageRegisty"),
        ({"gateway": {"replica": 1}}, "gateway", "replica"),
        ({"gateway": {"replicas": "2"}}, "gateway.replicas", "integer"),
        ({"gateway": {"service": {"port": "http"}}}, "gateway.service.port", "integer"),
        ({"gateway": {"settings": {"limits": {"body_byte": 1}}}}, "gateway.settings.limits", "body_byte"),
        ({"gateway": {"settings": {"limits": {"in_flight": "many"}}}}, "gateway.settings.limits.in_flight", "integer"),
        ({"gateway": {"settings": {"server": {"port": 1}}}}, "gateway.settings.server", "port"),
        ({"gateway": {"settings": {"auth": {"api_key": "secret"}}}}, "gateway.settings.auth", "api_key"),
        ({"gateway": {"discovery": "consul"}}, "gateway.discovery", "kubernetes"),
        ({"gateway": {"settings": {"kubernetes": {"api_url": "x"}}}}, "gateway.settings.kubernetes", "api_url"),
        ({"rbac": {"create": "yes"}}, "rbac.create", "boolean"),
        ({"pools": [{**POOL, "acelerator": 1}]}, "pools.0", "acelerator"),
        ({"pools": [{**POOL, "replicas": "1"}]}, "pools.0.replicas", "integer"),
        ({"pools": [{**POOL, "name": "Cpu"}]}, "pools.0.name", "pattern"),
        ({"pools": [{**POOL, "startupSeconds": 60}]}, "pools.0.startupSeconds", "600"),
        ({"pools": [{"name": "cpu"}]}, "pools.0", "profile"),
        ({"pools": [{**POOL, "environment": {"A": 1}}]}, "pools.0.environment.A", "string"),
        ({"pools": [{**POOL, "image": {"digest": "latest"}}]}, "pools.0.image.digest", "pattern"),
        ({"pools": [{**POOL, "tolerations": [{"operator": "Is"}]}]}, "pools.0.tolerations.0.operator", ""),
        ({"pools": [{**POOL, "resources": {"limits": {"cpu": "lots"}}}]}, "pools.0.resources.limits.cpu", ""),
        ({"pools": [{**POOL, "engine": "simulated"}]}, "pools.0.engine", "one of"),
        ({"pools": [{**POOL, "weights": {}}]}, "pools.0.weights", ""),
        ({"pools": [{**POOL, "weights": {"pod": {}, "node": {"path": "/m"}}}]}, "pools.0.weights", ""),
        ({"pools": [{**POOL, "weights": {"claim": {"name": "m"}}}]}, "pools.0.weights.claim", "accessMode"),
        ({"pools": [{**POOL, "weights": {"node": {"path": "models"}}}]}, "pools.0.weights.node.path", "pattern"),
        ({"pools": [{**POOL, "autoscaling": {"maxReplicas": 2}}]}, "pools.0.autoscaling", "minReplicas"),
        ({"pools": [{**POOL, "revision": "main"}]}, "pools.0.revision", "pattern"),
        ({"pools": [{**POOL, "maxUnavailable": 0}]}, "pools.0.maxUnavailable", "1"),
        ({"pools": [{**POOL, "modelVolume": {}}]}, "pools.0", "modelVolume"),
        ({"gateway": {"autoscaling": {"by": "cpu"}}}, "gateway.autoscaling.by", "one of"),
        ({"gateway": {"httpRoute": {"parentRefs": [{"nam": "a"}]}}}, "gateway.httpRoute.parentRefs.0", "nam"),
        ({"security": {"runAsUser": 0}}, "security.runAsUser", ""),
        ({"networkPolicy": {"hub": {"ports": ["https"]}}}, "networkPolicy.hub.ports.0", "integer"),
        ({"gate": {"enabled": True}}, "", "gate"),
        ({"gateway": {"database": {"spillSize": "much"}}}, "gateway.database.spillSize", ""),
        ({"gateway": {"keys": {"existing": "keys"}}}, "gateway.keys", "existing"),
        ({"gateway": {"limitStore": {"url": "redis://h"}}}, "gateway.limitStore", "url"),
        ({"gateway": {"settings": {"limits": {"store": {"url": "redis://h"}}}}}, "gateway.settings.limits.store", "url"),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, "networkPolicy.apiServer.ports", "1"),
        ({"monitoring": {"podMonitor": {"interval": "soon"}}}, "monitoring.podMonitor.interval", "pattern"),
        ({"gateway": {"settings": {"tenants": {"Red": {}}}}}, "gateway.settings.tenants", "Red"),
        ({"gateway": {"settings": {"tenants": {"red": {"limits": {"rpm": 1}}}}}}, "gateway.settings.tenants.red.limits", "rpm"),
        ({"gateway": {"settings": {"database": {"url": "x"}}}}, "gateway.settings.database", "url"),
    ],
)
def test_wrong_values_are_refused_with_their_path(helm: Helm, values: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(Refused) as refused:
        helm.template(values)
    message = str(refused.value)
    spelt = path if helm.name == "helm-3" or not path else "/" + path.replace(".", "/")
    assert spelt in message and words in message, message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"pools": [{**POOL, "profile": "gpt-5"}]},
            'pools: cpu: profile: "gpt-5" is not in this chart; there are: deepseek-r1-fp8-h100,',
        ),
        (
            {"pools": [{**POOL, "profile": "glm-5.2-mxfp4-mi355x"}]},
            "pools: cpu: revision: is missing; the catalog pins no commit of amd/GLM-5.2-MXFP4: name one of its commits, or set",
        ),
        ({"pools": [POOL, POOL]}, 'pools: the name "cpu" is given twice'),
        ({"pools": [{**POOL, "name": "gateway"}]}, "is the chart's own"),
        ({"pools": [{**POOL, "fetch": False}]}, "pools: cpu: weights: with fetch: false a node or a claim must hold the model"),
        ({"pools": [{**POOL, "fetch": False, "weights": {"pod": {}}}]}, "give weights.node or weights.claim"),
        (
            {"pools": [{**POOL, "replicas": 2, "weights": {"claim": {"name": "m", "accessMode": "ReadWriteOnce"}}}]},
            "pools: cpu: weights.claim: m is ReadWriteOnce, which one node can mount, and the pool has up to 2 pods; take a "
            "ReadWriteMany claim, or weights.node",
        ),
        (
            {"pools": [{**POOL, "replicas": 2, "compiled": {"claim": {"name": "m", "accessMode": "ReadWriteOncePod"}}}]},
            "pools: cpu: compiled.claim: m is ReadWriteOncePod",
        ),
        ({"pools": [{**POOL, "weights": {"claim": {"name": "m", "accessMode": "ReadOnlyMany"}}}]}, "or fetch: false"),
        ({"pools": [{**POOL, "weights": {"node": {"path": "/m", "folder": "a"}}}]}, "folder is for fetch: false"),
        ({"pools": [{**POOL, "compiled": {"node": {"path": "/m", "folder": "a"}}}]}, "folder is the chart's to name"),
        (
            {"pools": [{**POOL, "terminationGracePeriodSeconds": 54}]},
            "pools: cpu: terminationGracePeriodSeconds: 54 cuts off requests, which may run for 30 s after a stop; at least 55",
        ),
        ({"pools": [{**POOL, "drainSeconds": 600, "terminationGracePeriodSeconds": 300}]}, "at least 625, or leave it out"),
        ({"pools": [{**POOL, "extraArguments": ["--tensor-parallel-size", "3"]}]}, "extraArguments: --tensor-parallel-size is"),
        ({"pools": [{**POOL, "extraArguments": ["--tensor_parallel_size=3"]}]}, "extraArguments: --tensor_parallel_size is"),
        ({"pools": [{**POOL, "extraArguments": ["-tp", "3"]}]}, "extraArguments: -tp is the profile's"),
        ({"pools": [{**POOL, "extraArguments": ["--shutdown-timeout=9"]}]}, "(drainSeconds for --shutdown-timeout)"),
        ({"pools": [{**POOL, "autoscaling": SCALING}]}, "pools: cpu: autoscaling: needs autoscaling.prometheus.address"),
        ({"pools": [{**POOL, "replicas": 2, "autoscaling": SCALING}], **SCALED}, "replicas: is for autoscaling to say"),
        ({"pools": [{**POOL, "autoscaling": {"minReplicas": 5, "maxReplicas": 2}}], **SCALED}, "minReplicas 5 is more than"),
        (
            {
                "pools": [{**POOL, "autoscaling": SCALING, "weights": {"claim": {"name": "m", "accessMode": "ReadWriteOnce"}}}],
                **SCALED,
            },
            "the pool has up to 2 pods",
        ),
        ({"gateway": {"autoscaling": {"by": "keda"}}}, "gateway.autoscaling.by: keda needs autoscaling.prometheus.address"),
        (
            {"gateway": {"autoscaling": {"by": "hpa", "minReplicas": 11}}},
            "gateway.autoscaling: minReplicas is more than maxReplicas",
        ),
        ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host: is missing"),
        ({"gateway": {"httpRoute": {"enabled": True}}}, "gateway.httpRoute.parentRefs: is missing"),
        ({"gateway": {"database": {"existingSecret": "db"}}}, "gateway.keys.existingSecret: is empty"),
        ({"gateway": {"keys": {"fileKey": "lines"}}}, "gateway.keys.existingSecret: is empty"),
    ],
)
def test_what_the_schema_cannot_say_is_refused_too(helm: Helm, values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        helm.template(values)


def test_a_profile_without_a_hub_needs_a_volume(helm_4: Helm, tmp_path: Path) -> None:
    chart = altered_chart(tmp_path, "smollm2-135m-cpu", lambda profile: profile.update(fetch=None))
    with pytest.raises(Refused, match="fetch: the profile smollm2-135m-cpu names no hub"):
        helm_4.template({"pools": [POOL]}, chart=chart)


def test_secrets_are_named_and_never_shown(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["secrets"])
    assert not [each for each in objects if each["kind"] == "Secret"]
    gateway = container(only(objects, "Deployment", "-gateway"))
    assert gateway["image"] == "registry.test/team/serving-gateway:0.1.0"
    assert gateway["env"] == [
        {"name": "SERVING_AUTH__API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api-key"}}}
    ]
    for pod in pods(objects):
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        for volume in pod.get("volumes", []):
            assert volume["name"] != "secret" or volume["secret"]["secretName"] == "mine"


RIGHTS = ("Role", "RoleBinding")
TOKEN_PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"


def gateway_settings(objects: list[dict[str, Any]]) -> Settings:
    text = only(objects, "ConfigMap", "-gateway")["data"]["gateway.yaml"]
    return Settings.model_validate(outside_the_pod(yaml.safe_load(text)))


def test_gateways_may_ask_for_engines_and_for_nothing_else(helm: Helm) -> None:
    objects = helm.template({"pools": MIXED_POOLS})
    role, binding = only(objects, "Role", "-gateway"), only(objects, "RoleBinding", "-gateway")
    assert role["rules"] == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    pod = only(objects, "Deployment", "-gateway")["spec"]["template"]["spec"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], role["metadata"]["namespace"])
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    settings = gateway_settings(objects)
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    for pool in settings.pools:
        assert pool.host is None and pool.kubernetes is not None and pool.kubernetes.service is not None
        service = services[pool.kubernetes.service]
        assert service["metadata"]["namespace"] == pool.kubernetes.namespace
        assert pool.kubernetes.port in {port["name"] for port in service["spec"]["ports"]}
    path, _ = _resource(KubernetesPoolSettings(service="x"), "ns")
    assert path == "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", "what the role is for"


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_token_is_where_it_is_needed_and_nowhere_else(helm_4: Helm, values: dict[str, Any]) -> None:
    objects = helm_4.template(values)
    asks = any(pool.kubernetes is not None for pool in gateway_settings(objects).pools)
    for workload, pod in ((each, template["spec"]) for each in objects for template in pod_templates(each)):
        projected = [volume for volume in pod.get("volumes", []) if "projected" in volume]
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounts = [m for each in containers for m in each.get("volumeMounts", []) if m["mountPath"] == TOKEN_PLACE]
        name = workload["metadata"]["name"]
        wanted = int((asks and name.endswith("-gateway")) or name.endswith("-gate"))
        assert (len(projected), len(mounts)) == (wanted, wanted), name
        assert pod["automountServiceAccountToken"] is False
        for volume in projected:
            token, authority = volume["projected"]["sources"]
            assert token["serviceAccountToken"]["path"] == "token"
            assert authority["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert bool([each for each in objects if each["kind"] in RIGHTS]) == (asks and values.get("rbac", {}).get("create", True))


def test_names_need_no_rights(helm: Helm) -> None:
    objects = helm.template({"gateway": {"discovery": "dns"}})
    assert not [each for each in objects if each["kind"] in RIGHTS]
    (pool,) = gateway_settings(objects).pools
    assert (pool.host, pool.port, pool.kubernetes) == ("x-serving-cpu.default.svc", 8000, None)


def settings_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(only(objects, "ConfigMap", "-gateway")["data"]["gateway.yaml"])
    return settings


@pytest.mark.parametrize(
    ("gateway", "is_open"),
    [
        ({}, True),
        ({"apiKey": {"existingSecret": "one"}}, False),
        ({"database": {"existingSecret": "db"}, "keys": {"existingSecret": "keys"}}, False),
        ({"keys": {"existingSecret": "keys", "fileKey": "lines"}}, False),
        ({"settings": {"auth": {"keys": [{"tenant": "red", "sha256": "a" * 64}]}}}, False),
    ],
)
def test_only_without_any_place_for_keys_everybody_may_ask(helm_4: Helm, gateway: dict[str, Any], is_open: bool) -> None:
    settings = settings_of(helm_4.template({"gateway": gateway}))
    assert settings.get("auth", {}).get("allow_anonymous", False) is is_open
    shown = helm_4.run("install", "x", str(CHART), "--dry-run=client", values={"gateway": gateway})
    assert ("Everybody who reaches the Service" in shown) is is_open


def test_the_gateway_starts_with_what_the_chart_makes_of_tenants(helm_4: Helm, tmp_path: Path) -> None:
    objects = helm_4.template(VALUES["tenants"])
    settings = Settings.model_validate(outside_the_pod(settings_of(objects)) | {"database": {"url": "postgresql://h/x"}})
    assert settings.tenants["red"].limits.requests_per_minute == 60
    assert settings.auth.key_file == Path("/etc/serving/keys/keys")
    assert settings.ledger.spill_dir == Path("/var/lib/serving/spill")
    gateway = container(only(objects, "Deployment", "-gateway"))
    assert {v["name"]: v["valueFrom"]["secretKeyRef"] for v in gateway["env"]} == {
        "SERVING_DATABASE__URL": {"name": "database", "key": "url"},
        "SERVING_AUTH__KEY_SECRET": {"name": "keys", "key": "key-secret"},
    }
    mounts = {mount["mountPath"]: mount for mount in gateway["volumeMounts"]}
    assert "subPath" not in mounts["/etc/serving/keys"], "a Secret's change would never reach the pod"
    assert not mounts["/var/lib/serving/spill"].get("readOnly")


def test_the_store_of_limits_comes_by_environment_and_knows_how_many_share_it(helm: Helm) -> None:
    store: dict[str, Any] = {"limitStore": {"existingSecret": "redis"}}
    for gateway, shares in (
        ({"replicas": 3}, 3),
        ({"replicas": 0}, 1),
        ({"autoscaling": {"by": "hpa", "maxReplicas": 7}}, 7),
        ({"settings": {"limits": {"store": {"replicas": 5}}}}, 5),
    ):
        objects = helm.template({"gateway": {**store, **gateway}})
        settings = settings_of(objects)
        assert settings["limits"]["store"] == {"replicas": shares}
        settings["limits"]["store"]["url"] = "redis://h/0"  # what the environment brings
        assert Settings.model_validate(outside_the_pod(settings)).limits.store.replicas == shares
        (variable,) = container(only(objects, "Deployment", "-gateway"))["env"]
        assert variable == {
            "name": "SERVING_LIMITS__STORE__URL",
            "valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}},
        }


@pytest.mark.parametrize("gateway", [{"replicas": 2}, {"replicas": 1, "autoscaling": {"by": "hpa", "maxReplicas": 3}}])
def test_several_gateways_find_each_other_by_a_headless_service(helm: Helm, gateway: dict[str, Any]) -> None:
    objects = helm.template({"gateway": gateway}, release="llm", namespace="serving")
    peers = settings_of(objects)["peers"]
    service = only(objects, "Service", "-peers")
    assert peers["host"] == f"{service['metadata']['name']}.serving.svc"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    (port,) = service["spec"]["ports"]
    pod = container(only(objects, "Deployment", "-gateway"))
    assert {"name": port["targetPort"], "containerPort": peers["port"], "protocol": "UDP"} in pod["ports"]
    mounts = [mount["mountPath"] for mount in pod["volumeMounts"]]
    assert any(peers["secret_file"].startswith(f"{path}/") for path in mounts)


def test_gateways_sign_with_a_secret_of_their_own(helm: Helm) -> None:
    own = {"peers": {"existingSecret": "gateways", "key": "word"}, "settings": {"peers": {"silence_seconds": 2.0}}}
    objects = helm.template({"gateway": own})
    peers = settings_of(objects)["peers"]
    assert "secret_file" not in peers
    assert peers["silence_seconds"] == 2.0
    (variable,) = container(only(objects, "Deployment", "-gateway"))["env"]
    assert variable == {"name": "SERVING_PEERS__SECRET", "valueFrom": {"secretKeyRef": {"name": "gateways", "key": "word"}}}


@pytest.mark.parametrize("gateway", [{"replicas": 1}, {"replicas": 2, "peers": {"enabled": False}}])
def test_a_gateway_that_is_alone_speaks_with_nobody(helm: Helm, gateway: dict[str, Any]) -> None:
    objects = helm.template({"gateway": {**gateway, "limitStore": {"existingSecret": "redis"}}})
    assert "peers" not in settings_of(objects)
    assert not [each for each in objects if each["kind"] == "Service" and each["metadata"]["name"].endswith("-peers")]
    assert "peers" not in [port["name"] for port in container(only(objects, "Deployment", "-gateway"))["ports"]]


SCALED_TO_NOTHING = {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}


def test_routing_begins_with_the_profiles_speeds_and_prices(helm: Helm) -> None:
    pools = [
        {**MIXED_POOLS[0]},
        {**MIXED_POOLS[3]},
        {"name": "epyc", "profile": "smollm2-135m-epyc-9005", **SCALED_TO_NOTHING},
        {"name": "cpu", "profile": "smollm2-135m-cpu", **SCALED_TO_NOTHING},
    ]
    own = {"policy": "round_robin", "pools": {"mi355x": {"sequences": 7}}}
    objects = helm.template({"pools": pools, **SCALED, "gateway": {"settings": {"routing": own}}})
    settings = gateway_settings(objects)
    routing = settings.routing
    assert routing.policy == "round_robin"
    known = routing.pools["mi355x"]
    assert (known.sequences, known.cache_tokens, known.prefill_tokens_per_second) == (7, 4090816, 38740.0)
    assert known.step_seconds == pytest.approx(0.02532 / 2.99, rel=1e-3), "of a token, as the gateway counts"
    assert (known.elastic, known.accelerators) == (False, 8)
    assert routing.pools["h100"].accelerators == 16, "of both nodes"
    assert (routing.pools["epyc"].elastic, routing.pools["cpu"].elastic) == (True, False), "nobody knows the price of the other"
    machines = Machines(settings, catalog_targets(catalog_dir(), targets_of(settings)))
    dollars = {pool.name: machines.of(pool.name, pool.target).dollars_per_hour for pool in settings.pools}
    assert dollars == {"mi355x": pytest.approx(8 * 2.9), "h100": pytest.approx(32), "epyc": 12.67, "cpu": None}


def test_without_the_switch_nothing_of_the_operator_is_rendered(helm: Helm) -> None:
    assert not [each for each in helm.template() if each["apiVersion"].startswith("monitoring.coreos.com")]
    found = [each["kind"] for each in helm.template({"monitoring": EVERYTHING_ON}) if "coreos" in each["apiVersion"]]
    assert sorted(found) == ["PodMonitor", "PodMonitor", "PrometheusRule"]


def test_the_notes_hold_the_first_request(helm_4: Helm) -> None:
    shown = helm_4.run("install", "x", str(CHART), "--dry-run=client", "--namespace", "ns")
    notes = shown.partition("NOTES:")[2]
    assert "port-forward service/x-serving 8000:80" in notes
    assert '"model": "smollm2-135m-instruct"' in notes
    assert "helm test x --namespace ns" in notes


def test_a_profile_of_unknown_speed_cannot_be_simulated(helm_4: Helm, tmp_path: Path) -> None:
    chart = altered_chart(tmp_path, "smollm2-135m-cpu", lambda profile: profile.update(simulation=None))
    with pytest.raises(Refused, match="pools: cpu: engine: nothing is known of the speed of the profile smollm2-135m-cpu"):
        helm_4.template({"pools": [{**POOL, "engine": "sim"}]}, chart=chart)
