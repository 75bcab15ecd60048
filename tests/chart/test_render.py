"""Helm 3 and 4 take the chart; wrong values are refused with their path; what is rendered holds what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.fleet.kubernetes import _resource
from serving.fleet_settings import KubernetesPoolSettings
from serving.settings import Settings
from tests.chart.conftest import EVERYTHING_ON, MIXED_POOLS, VALUES
from tests.doubles.tools import CHART, Helm, Refused, container, only, rendered_profile

pytestmark = pytest.mark.chart
POOL = {"name": "cpu", "profile": "smollm2-135m-cpu"}
WORKLOADS = ("Deployment", "Pod")


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specs of all pods, those of tests included."""
    return [
        each["spec"]["template"]["spec"] if each["kind"] == "Deployment" else each["spec"]
        for each in objects
        if each["kind"] in WORKLOADS
    ]


def test_lint_and_package(helm: Helm, tmp_path: Path) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("serving-*.tgz")
    assert len(helm.template(chart=package)) == len(helm.template())


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_both_helms_render_the_same(mixed_chart: Path, values: dict[str, Any]) -> None:
    three, four = (Helm(name).template(values, chart=mixed_chart) for name in ("helm-3", "helm-4"))
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
            {"pools": [{**POOL, "profile": "deepseek-r1-fp8-h100"}]},
            "pools: cpu: profile: an engine of deepseek-r1-fp8-h100 spans 2 nodes; this chart runs engines of one node",
        ),
        ({"pools": [POOL, POOL]}, 'pools: the name "cpu" is given twice'),
        ({"pools": [{**POOL, "name": "gateway"}]}, "is the gateway's own"),
        ({"pools": [{**POOL, "fetch": False}]}, "pools: cpu: modelVolume: is missing"),
        ({"gateway": {"database": {"existingSecret": "db"}}}, "gateway.keys.existingSecret: is empty"),
        ({"gateway": {"keys": {"fileKey": "lines"}}}, "gateway.keys.existingSecret: is empty"),
    ],
)
def test_what_the_schema_cannot_say_is_refused_too(helm: Helm, values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        helm.template(values)


def test_a_profile_without_a_hub_needs_a_volume(helm_4: Helm, mixed_chart: Path) -> None:
    import json

    path = mixed_chart / "files" / "profiles" / "smollm2-135m-cpu.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fetch": None}))
    with pytest.raises(Refused, match="fetch: the profile smollm2-135m-cpu names no hub"):
        helm_4.template({"pools": [POOL]}, chart=mixed_chart)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_is_restricted(helm_4: Helm, mixed_chart: Path, values: dict[str, Any]) -> None:
    found = pods(helm_4.template(values, chart=mixed_chart))
    assert found
    for pod in found:
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        groups = pod["securityContext"].pop("supplementalGroups", [])
        assert groups in ([], [44])
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 2000,
            "runAsGroup": 2000,
            "fsGroup": 2000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for each in [*pod["containers"], *pod.get("initContainers", [])]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["requests"] and each["resources"]["limits"]


def test_groups_that_open_device_files(helm: Helm) -> None:
    """The target's own, unless the pool names those of its nodes."""
    volume = {"fetch": False, "modelVolume": {"emptyDir": {}}}
    for given, expected in (({}, [44]), ({"supplementalGroups": [44, 109]}, [44, 109]), ({"supplementalGroups": []}, None)):
        pool = {"name": "gpu", "profile": "gpt-oss-120b-mi300x", **volume, **given}
        workload = only(helm.template({"pools": [pool]}), "Deployment", "-gpu")
        assert workload["spec"]["template"]["spec"]["securityContext"].get("supplementalGroups") == expected


def test_accelerators_are_chosen_by_the_profile(helm: Helm, mixed_chart: Path) -> None:
    objects = helm.template({"pools": MIXED_POOLS}, chart=mixed_chart)
    for pool, resource, image in (("amd", "amd.com/gpu", "made-up/rocm"), ("nvidia", "nvidia.com/gpu", "made-up/cuda")):
        workload = only(objects, "Deployment", f"-{pool}")
        engine = container(workload)
        assert engine["resources"]["limits"][resource] == engine["resources"]["requests"][resource] == 8
        assert engine["image"] == f"docker.io/{image}@sha256:{'a' * 64}"
        assert workload["spec"]["template"]["spec"]["tolerations"] == [
            {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
        shm = next(v for v in workload["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": str(2**33)}
    cpu = only(objects, "Deployment", "-cpu")
    limits = container(cpu)["resources"]["limits"]
    assert set(limits) == {"memory"}
    assert "--kv-cache-memory-bytes" in container(cpu)["command"]
    assert cpu["spec"]["template"]["spec"]["nodeSelector"] == rendered_profile("smollm2-135m-cpu")["nodeSelector"]


def test_no_template_knows_a_vendor() -> None:
    for path in (CHART / "templates").rglob("*"):
        if path.is_file():
            assert not re.search(r"amd|nvidia|rocm|cuda|vendor", path.read_text(), re.IGNORECASE), path


@pytest.mark.parametrize(("replicas", "kind"), [(0, "RollingUpdate"), (1, "Recreate"), (2, "RollingUpdate")])
def test_an_upgrade_needs_no_second_set_of_devices(helm_4: Helm, replicas: int, kind: str) -> None:
    strategy = only(helm_4.template({"pools": [{**POOL, "replicas": replicas}]}), "Deployment", "-cpu")["spec"]["strategy"]
    assert strategy["type"] == kind
    assert strategy["rollingUpdate"] == ({"maxSurge": 0, "maxUnavailable": 1} if kind == "RollingUpdate" else None)


def test_probes(helm_4: Helm, mixed_chart: Path) -> None:
    objects = helm_4.template({"pools": MIXED_POOLS}, chart=mixed_chart)
    for workload in (each for each in objects if each["kind"] == "Deployment"):
        one = container(workload)
        startup, liveness, readiness = one["startupProbe"], one["livenessProbe"], one["readinessProbe"]
        assert all("initialDelaySeconds" not in probe for probe in (startup, liveness, readiness))
        assert liveness["timeoutSeconds"] >= 5 and liveness["failureThreshold"] >= 3
        assert {startup["httpGet"]["port"]} <= {port["name"] for port in one["ports"]}
        if one["name"] == "engine":
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
        else:
            assert liveness["httpGet"]["path"] == "/livez" and readiness["httpGet"]["path"] == "/readyz"


def test_a_models_size_lengthens_its_start(helm_4: Helm, mixed_chart: Path) -> None:
    import json

    path = mixed_chart / "files" / "profiles" / "smollm2-135m-cpu.json"
    profile = json.loads(path.read_text())
    profile["budgets"]["startup_seconds"] = 4301
    path.write_text(json.dumps(profile))
    startup = container(only(helm_4.template({"pools": [POOL]}, chart=mixed_chart), "Deployment", "-cpu"))["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 4301


def test_a_pools_own_values_take_the_place_of_the_profiles(helm_4: Helm) -> None:
    workload = only(helm_4.template(VALUES["a pool with everything its own"]), "Deployment", "-own")
    pod, engine = workload["spec"]["template"]["spec"], container(workload)
    assert engine["image"] == f"mirror.test/vllm/vllm-openai-cpu@sha256:{'b' * 64}"
    assert engine["command"] == [*rendered_profile("smollm2-135m-cpu")["argv"], "--seed", "1"]
    environment = {variable["name"]: variable["value"] for variable in engine["env"]}
    assert (environment["HOME"], environment["VLLM_LOGGING_LEVEL"], environment["HF_HUB_OFFLINE"]) == ("/tmp", "DEBUG", "1")
    assert "nodeSelector" not in pod and "initContainers" not in pod
    assert pod["runtimeClassName"] == "nvidia"
    assert engine["resources"]["requests"]["cpu"] == 1.5
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "docker.io/made-up/rocm@sha256:" + "a" * 64),
        ({"registry": "m.test"}, "m.test/made-up/rocm@sha256:" + "a" * 64),
        ({"tag": "v2"}, "docker.io/made-up/rocm:v2"),
        ({"repository": "r/s", "tag": "v2", "digest": "sha256:" + "c" * 64}, "docker.io/r/s@sha256:" + "c" * 64),
        ({"digest": ""}, "docker.io/made-up/rocm:v1"),
    ],
)
def test_a_digest_belongs_to_its_image(helm_4: Helm, mixed_chart: Path, image: dict[str, str], reference: str) -> None:
    pool = {"name": "amd", "profile": "amd-test", "image": image}
    assert container(only(helm_4.template({"pools": [pool]}, chart=mixed_chart), "Deployment", "-amd"))["image"] == reference


def test_secrets_are_named_and_never_shown(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["keys and secrets"])
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
    settings = yaml.safe_load(text)
    del settings["relay"]["engine_secret_file"]  # a file of the pod
    return Settings.model_validate(settings)


def test_gateways_may_ask_for_engines_and_for_nothing_else(helm: Helm, mixed_chart: Path) -> None:
    objects = helm.template({"pools": MIXED_POOLS}, chart=mixed_chart)
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
def test_a_token_is_where_it_is_needed_and_nowhere_else(helm_4: Helm, mixed_chart: Path, values: dict[str, Any]) -> None:
    objects = helm_4.template(values, chart=mixed_chart)
    asks = any(pool.kubernetes is not None for pool in gateway_settings(objects).pools)
    for workload in (each for each in objects if each["kind"] in WORKLOADS):
        pod = workload["spec"]["template"]["spec"] if workload["kind"] == "Deployment" else workload["spec"]
        projected = [volume for volume in pod.get("volumes", []) if "projected" in volume]
        mounts = [m for each in pod["containers"] for m in each.get("volumeMounts", []) if m["mountPath"] == TOKEN_PLACE]
        wanted = int(asks and workload["metadata"]["name"].endswith("-gateway"))
        assert (len(projected), len(mounts)) == (wanted, wanted), workload["metadata"]["name"]
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
    settings = Settings.model_validate(
        settings_of(objects)
        | {"relay": {}, "database": {"url": "postgresql://h/x"}}
        | {"auth": settings_of(objects)["auth"] | {"key_secret": "0123456789abcdef"}}
    )
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
