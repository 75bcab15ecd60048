"""What a pool becomes: its workload, its pods' places, steps and rights; with made-up profiles for accelerators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import COMMIT, MIXED_POOLS, VALUES, altered_chart
from tests.doubles.tools import CHART, Helm, Refused, container, only, pod_templates, pods, rendered_profile

pytestmark = pytest.mark.chart
POOL = {"name": "cpu", "profile": "smollm2-135m-cpu"}
DIGEST = rendered_profile("glm-5.2-mxfp4-mi355x")["image"]["digest"]


def pod(objects: list[dict[str, Any]], name: str, kind: str = "Deployment") -> dict[str, Any]:
    return dict(pod_templates(only(objects, kind, name))[0]["spec"])


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_is_restricted(helm_4: Helm, values: dict[str, Any]) -> None:
    found = pods(helm_4.template(values))
    assert found
    ids = {"runAsUser": 2000, "runAsGroup": 0, "fsGroup": 2000} if "security" not in values else {}
    for spec in found:
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is False
        security = dict(spec["securityContext"])
        security.pop("supplementalGroups", None)
        assert security == {
            "runAsNonRoot": True,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **ids,
        }
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            rights = dict(each["securityContext"])
            assert rights == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["requests"] and each["resources"]["limits"]
            assert (
                not {mount["mountPath"] for mount in each["volumeMounts"]} & {"/", "/etc", "/usr"}
                if "volumeMounts" in each
                else True
            )


def test_exceptions_are_named_with_their_reason(helm_4: Helm, tmp_path: Path) -> None:
    chart = altered_chart(tmp_path, "glm-5.2-nvfp4-b200", lambda profile: profile.update(capabilities=["IPC_LOCK"]))
    pools = [
        {"name": "b200", "profile": "glm-5.2-nvfp4-b200", "revision": COMMIT},
        {**POOL, "weights": {"node": {"path": "/m"}}, "compiled": {"node": {"path": "/c"}}},
        {**POOL, "name": "plain"},
    ]
    objects = helm_4.template({"pools": pools}, chart=chart)
    assert container(only(objects, "Deployment", "-b200"))["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["IPC_LOCK"],
    }
    said = {
        name: pod_templates(only(objects, "Deployment", f"-{name}"))[0]["metadata"]["annotations"].get(
            "serving/security-exceptions"
        )
        for name in ("b200", "cpu", "plain")
    }
    assert said == {
        "b200": "capability IPC_LOCK, which the target cuda-b200 needs",
        "cpu": "hostPath, since weights are on the node; hostPath, since compiled is on the node",
        "plain": None,
    }


def test_accelerators_are_chosen_by_the_profile(helm: Helm) -> None:
    objects = helm.template({"pools": MIXED_POOLS})
    for pool in MIXED_POOLS:
        name, profile = pool["name"], rendered_profile(str(pool["profile"]))
        kind = "Deployment" if profile["nodes_per_engine"] == 1 else "LeaderWorkerSet"
        engine, spec = container(only(objects, kind, f"-{name}")), pod(objects, f"-{name}", kind)
        device = profile["device"]
        if device:
            resource = device["resource"]
            assert engine["resources"]["limits"][resource] == engine["resources"]["requests"][resource] == device["count"] == 8
            assert spec["tolerations"] == [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
        else:
            assert set(engine["resources"]["limits"]) == {"memory"} and "tolerations" not in spec
        assert spec["nodeSelector"] == profile["nodeSelector"]
        assert profile["image"]["repository"] in engine["image"]
        shm = next(v for v in spec["volumes"] if v["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": str(profile["shared_memory_bytes"])}
    assert "--kv-cache-memory-bytes" in container(only(objects, "Deployment", "-epyc"))["command"]
    devices = {rendered_profile(str(pool["profile"]))["device"]["resource"] for pool in MIXED_POOLS[:-1]}
    assert devices == {"amd.com/gpu", "nvidia.com/gpu"}


def test_another_number_of_devices_is_refused(helm: Helm) -> None:
    memory = {"memory": "1Gi"}
    for limits in ({"amd.com/gpu": 6, **memory}, {"amd.com/gpu": 0, **memory}, memory):
        pool = {
            "name": "gpu",
            "profile": "glm-5.2-mxfp4-mi355x",
            "revision": COMMIT,
            "resources": {"requests": memory, "limits": limits},
        }
        with pytest.raises(
            Refused, match=r"pools: gpu: resources\.limits: amd\.com/gpu: must be 8, which is what the parallelism"
        ):
            helm.template({"pools": [pool]})
    pool["resources"] = {"limits": {"amd.com/gpu": "8", "memory": "2Gi"}}
    helm.template({"pools": [pool]})


def test_a_pod_waits_for_its_accelerators_where_the_profile_says_so(helm_4: Helm) -> None:
    objects = helm_4.template({"pools": MIXED_POOLS})
    steps = {name: [each["name"] for each in pod(objects, f"-{name}")["initContainers"]] for name in ("mi355x", "b200", "epyc")}
    assert steps == {"mi355x": ["fetch-model", "wait-for-memory"], "b200": ["fetch-model"], "epyc": ["fetch-model"]}
    wait = pod(objects, "-mi355x")["initContainers"][1]
    assert wait["resources"]["limits"]["amd.com/gpu"] == 8, "it must see the engine's devices"
    assert pod(objects, "-mi355x")["securityContext"]["supplementalGroups"] == [44]
    assert wait["command"] == ["python3", "/etc/serving/engine/wait_for_memory.py", "900"]


def test_an_engine_on_several_nodes_is_a_group(helm: Helm) -> None:
    objects = helm.template({"pools": MIXED_POOLS})
    group = only(objects, "LeaderWorkerSet", "-h100")
    spec = group["spec"]
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (2, 2)
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}
    leader, worker = pod_templates(group)
    service = only(objects, "Service", "-h100")["spec"]["selector"]
    assert service.items() <= leader["metadata"]["labels"].items() and not service.items() <= worker["metadata"]["labels"].items()
    first, other = leader["spec"]["containers"][0], worker["spec"]["containers"][0]
    assert first["resources"] == other["resources"] and first["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert first["command"] == rendered_profile("deepseek-r1-fp8-h100")["argv"]
    assert {"--nnodes", "--master-addr", "$(LWS_LEADER_ADDRESS)"} <= set(first["command"]) == set(first["command"])
    assert "--headless" in other["command"] and "--headless" not in first["command"]
    assert other["command"][other["command"].index("--node-rank") + 1] == "$(NODE_RANK)"
    (rank,) = [each for each in other["env"] if each["name"] == "NODE_RANK"]
    assert rank["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
    assert other["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "40"], "as long as the leader may drain"
    assert "startupProbe" in first and not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & other.keys()


def test_names_of_groups_leave_room_for_what_is_hung_on_them(helm_4: Helm) -> None:
    pools = [{"name": f"a-name-of-22-characte{end}", "profile": "deepseek-r1-fp8-h100", "revision": COMMIT} for end in "ab"]
    objects = helm_4.template({"pools": pools}, release="a-release-whose-name-has-the-most-characters-is-53-aa")
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "LeaderWorkerSet"]
    assert len(set(names)) == 2 and all(len(name) <= 45 for name in names)


def test_no_template_knows_a_vendor() -> None:
    for path in (CHART / "templates").rglob("*"):
        if path.is_file():
            assert not re.search(r"amd|nvidia|rocm|cuda|vendor", path.read_text(), re.IGNORECASE), path


@pytest.mark.parametrize(("replicas", "kind"), [(0, "RollingUpdate"), (1, "Recreate"), (2, "RollingUpdate")])
def test_an_upgrade_needs_no_second_set_of_devices(helm_4: Helm, replicas: int, kind: str) -> None:
    strategy = only(helm_4.template({"pools": [{**POOL, "replicas": replicas}]}), "Deployment", "-cpu")["spec"]["strategy"]
    assert strategy["type"] == kind
    assert strategy["rollingUpdate"] == ({"maxSurge": 0, "maxUnavailable": 1} if kind == "RollingUpdate" else None)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_probes(helm_4: Helm, values: dict[str, Any]) -> None:
    objects = helm_4.template(values)
    for workload in (each for each in objects if each["kind"] in ("Deployment", "LeaderWorkerSet")):
        one = container(workload)
        startup, liveness, readiness = one["startupProbe"], one["livenessProbe"], one["readinessProbe"]
        assert all("initialDelaySeconds" not in probe for probe in (startup, liveness, readiness))
        assert liveness["timeoutSeconds"] >= 5 and liveness["failureThreshold"] >= 3
        assert {liveness["httpGet"]["port"], readiness["httpGet"]["port"]} <= {port["name"] for port in one["ports"]}
        budget = startup["periodSeconds"] * startup["failureThreshold"]
        if one["name"] == "controller":
            continue
        if one["name"] == "gateway":
            assert (liveness["httpGet"]["path"], readiness["httpGet"]["path"]) == ("/livez", "/readyz")
            continue
        assert startup["exec"]["command"][:2] == ["python3", "/etc/serving/engine/first_token.py"]
        assert budget >= (60 if "sim" in one["command"] else 600)
        if workload["kind"] == "Deployment":
            assert workload["spec"]["progressDeadlineSeconds"] > budget


def test_a_models_size_lengthens_its_start(helm_4: Helm) -> None:
    large = rendered_profile("glm-5.2-mxfp4-mi355x")
    seconds = large["weights_bytes"] / 100_000_000
    assert seconds > 4000
    workload = only(helm_4.template({"pools": MIXED_POOLS[:1]}), "Deployment", "-mi355x")
    startup = container(workload)["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= seconds
    assert workload["spec"]["progressDeadlineSeconds"] >= 2 * seconds, "they are fetched, and then loaded"


@pytest.mark.parametrize(("given", "drain", "grace"), [({}, "30", 55), ({"drainSeconds": 300}, "300", 325)])
def test_a_stop_lets_requests_end(helm_4: Helm, given: dict[str, int], drain: str, grace: int) -> None:
    spec = pod(helm_4.template({"pools": [{**POOL, **given}]}), "-cpu")
    command = spec["containers"][0]["command"]
    assert command[len(command) - command[::-1].index("--shutdown-timeout")] == drain, "the last one counts"
    assert spec["terminationGracePeriodSeconds"] == grace
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "10"]


def test_a_pools_own_values_take_the_place_of_the_profiles(helm_4: Helm) -> None:
    objects = helm_4.template(VALUES["own"])
    workload, spec = only(objects, "Deployment", "-own"), pod(objects, "-own")
    engine = container(workload)
    assert engine["image"] == f"mirror.test/vllm/vllm-openai-cpu@sha256:{'b' * 64}"
    assert engine["command"] == [*rendered_profile("smollm2-135m-cpu")["argv"], "--seed", "1", "--shutdown-timeout", "60"]
    environment = {variable["name"]: variable["value"] for variable in engine["env"]}
    assert (environment["HOME"], environment["VLLM_LOGGING_LEVEL"], environment["HF_HUB_OFFLINE"]) == ("/tmp", "DEBUG", "1")
    assert "nodeSelector" not in spec and [each["name"] for each in spec["initContainers"]] == ["make-cache"]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "high")
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["securityContext"]["supplementalGroups"] == [993]
    assert engine["resources"]["requests"]["cpu"] == 1.5
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["weights"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert volumes["home"]["hostPath"] == {"path": "/var/lib/serving", "type": "Directory"}
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "1Gi"
    mounts = {mount["name"]: mount for mount in engine["volumeMounts"]}
    assert mounts["weights"] == {"name": "weights", "mountPath": "/model", "subPath": "smollm2", "readOnly": True}
    assert only(objects, "PodDisruptionBudget", "-own")["spec"]["maxUnavailable"] == 2


def test_compiled_kernels_have_a_folder_for_each_image(helm_4: Helm) -> None:
    folders = []
    for tag in ("v1", "v2"):
        pool = {**POOL, "image": {"tag": tag}, "compiled": {"node": {"path": "/var/lib/serving"}}}
        spec = pod(helm_4.template({"pools": [pool]}), "-cpu")
        (home,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "home"]
        make = spec["initContainers"][0]
        assert make["command"] == ["mkdir", "-p", f"/cache/{home['subPath']}"]
        assert home["mountPath"] == rendered_profile("smollm2-135m-cpu")["environment"]["HOME"]
        folders.append(home["subPath"])
    assert folders[0] != folders[1] and all(folder.startswith("compiled/cpu-epyc-") for folder in folders)


def test_fetched_weights_are_where_the_engine_looks(helm_4: Helm) -> None:
    spec = pod(helm_4.template({"pools": [POOL]}), "-cpu")
    (fetch,) = spec["initContainers"]
    mounted = next(mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "weights")
    assert fetch["command"][4] == f"/weights/{mounted['subPath']}"
    assert {"name": "weights", "mountPath": "/weights"} in fetch["volumeMounts"]
    assert mounted["readOnly"] and mounted["mountPath"] == "/model" == spec["containers"][0]["command"][2]


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "docker.io/vllm/vllm-openai-rocm@" + DIGEST),
        ({"registry": "m.test"}, "m.test/vllm/vllm-openai-rocm@" + DIGEST),
        ({"tag": "v2"}, "docker.io/vllm/vllm-openai-rocm:v2"),
        ({"repository": "r/s", "tag": "v2", "digest": "sha256:" + "c" * 64}, "docker.io/r/s@sha256:" + "c" * 64),
        ({"digest": ""}, "docker.io/vllm/vllm-openai-rocm:v0.31.0"),
        ({"variant": "hardened"}, "serving-engine-rocm:0.1.0-vllm0.31.0"),
        (
            {"variant": "hardened", "registry": "m.test", "digest": "sha256:" + "c" * 64},
            "m.test/serving-engine-rocm@sha256:" + "c" * 64,
        ),
    ],
)
def test_a_digest_belongs_to_its_image(helm_4: Helm, image: dict[str, str], reference: str) -> None:
    pool = {"name": "amd", "profile": "glm-5.2-mxfp4-mi355x", "revision": COMMIT, "image": image}
    assert container(only(helm_4.template({"pools": [pool]}), "Deployment", "-amd"))["image"] == reference


@pytest.mark.parametrize("variant", ["official", "hardened"])
def test_one_registry_holds_all_images(helm: Helm, variant: str) -> None:
    site = {"imageRegistry": "registry.test/team", "imageVariant": variant}
    for spec in pods(helm.template({"pools": MIXED_POOLS, "global": site})):
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            assert each["image"].startswith("registry.test/team/")


def test_a_simulated_pool_needs_nothing_of_its_hardware(helm: Helm) -> None:
    whole = {**VALUES["own"]["pools"][0], "engine": "sim", "replicas": 3}
    objects = helm.template({"pools": [whole]})
    spec, gateway = pod(objects, "-own"), container(only(objects, "Deployment", "-gateway"))
    (one,) = spec["containers"]
    assert one["image"] == gateway["image"]
    assert one["command"] == [
        *("serving", "sim", "--profile", "smollm2-135m-cpu", "--host", "0.0.0.0", "--port", "8000", "--drain-seconds", "60"),
    ]
    assert not {"nodeSelector", "tolerations", "initContainers", "runtimeClassName", "priorityClassName"} & spec.keys()
    assert set(one["resources"]["limits"]) == {"memory"}
    assert {volume["name"] for volume in spec["volumes"]} == {"files", "secret", "tmp"}
    assert only(objects, "Deployment", "-own")["spec"]["replicas"] == 3
