"""Helm 3 and 4 take the chart; wrong values are refused with their path; what is rendered holds what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

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
