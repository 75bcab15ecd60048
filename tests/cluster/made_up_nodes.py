"""Nodes that are not there, and a stand-in for their kubelets: pods that are scheduled onto them become ready, tests end well.

For clusters without nodes, such as a bare control plane. Images, probes, volumes and containers are not seen then.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

NODES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("nodes.json").read_text())
DEVICES = 8
PERIOD_SECONDS = 1.0


class Runs(Protocol):
    def run(self, *words: str, given: str | None = None) -> str: ...


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str, *, resource: str | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A node with 8 devices, if any, and the taint that their operators put on it."""
    known = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **(labels or {})}},
        "spec": {"taints": node_taints(resource)},
    }


def node_taints(resource: str | None) -> list[dict[str, str]]:
    """That its operators put on it; the one that the API server gives every new node is not among them."""
    return [{"key": resource, "value": "present", "effect": "NoSchedule"}] if resource else []


def node_status(resource: str | None) -> dict[str, Any]:
    capacity = {"cpu": "192", "memory": "1536Gi", "pods": "250", "ephemeral-storage": "2Ti"}
    if resource:
        capacity[resource] = str(DEVICES)
    ready = {"type": "Ready", "status": "True", "reason": "MadeUp", "message": "nobody is there"}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{**ready, "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
    }


def pod_status(pod: dict[str, Any], address: str) -> dict[str, Any]:
    """Of a pod whose containers run, or of one that had something to do and has done it."""
    spec = pod["spec"]
    ends = spec.get("restartPolicy", "Always") != "Always"

    def container(each: dict[str, Any], ended: bool) -> dict[str, Any]:
        done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}
        return {
            "name": each["name"],
            "image": each["image"],
            "imageID": "made-up",
            "containerID": f"made-up://{each['name']}",
            "restartCount": 0,
            "ready": not ended,
            "started": not ended,
            "state": done if ended else {"running": {"startedAt": now()}},
        }

    # With a readiness gate it is not ready before somebody says so.
    ready = not ends and not spec.get("readinessGates")
    conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": not ends, "Ready": ready}
    return {
        "phase": "Succeeded" if ends else "Running",
        "startTime": now(),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": name, "status": str(holds), "lastTransitionTime": now()} for name, holds in conditions.items()],
        "initContainerStatuses": [{**container(each, True), "ready": True} for each in spec.get("initContainers", [])],
        "containerStatuses": [container(each, ends) for each in spec["containers"]],
    }


def readiness_patch(pod: dict[str, Any]) -> dict[str, Any] | None:
    """What a kubelet would say of a running pod with readiness gates now: ready when all of their conditions are True. None: it
    is said already, or it is no such pod."""
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])]
    if not gates or pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
        return None
    found = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    wanted = {"ContainersReady": "True", "Ready": str(all(found.get(gate) == "True" for gate in gates))}
    if wanted.items() <= found.items():
        return None
    conditions = [{"type": name, "status": status, "lastTransitionTime": now()} for name, status in wanted.items()]
    return {"status": {"conditions": conditions}}


def say_readiness(kubectl: Runs, pod: dict[str, Any]) -> None:
    """Of a pod with readiness gates; other conditions are left alone."""
    patch = readiness_patch(pod)
    if patch is not None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        words = ("patch", "pod", name, "--namespace", namespace, "--subresource=status", "--type=strategic")
        kubectl.run(*words, "--patch", json.dumps(patch))


class MadeUpNodes:
    """They are there inside the `with` block."""

    def __init__(self, kubectl: Runs) -> None:
        self._kubectl = kubectl
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: set[str] = set()
        self.problems: list[str] = []

    def __enter__(self) -> MadeUpNodes:
        for name, what in NODES.items():
            self._kubectl.run("apply", "--filename", "-", given=json.dumps(node(name, **what)))
        self._beat()
        for name, what in NODES.items():
            # A new node is tainted as not ready, and where no controller looks after nodes that would never end.
            patch = json.dumps({"spec": {"taints": node_taints(what.get("resource"))}})
            self._kubectl.run("patch", "node", name, "--type=merge", "--patch", patch)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(timeout=60)
        self._kubectl.run("delete", "nodes", *NODES, "--ignore-not-found", "--wait=false")

    def _watch(self) -> None:
        turn = 0
        while not self._over.wait(PERIOD_SECONDS):
            turn += 1
            try:
                if turn % 10 == 0:
                    self._beat()
                for pod in json.loads(self._kubectl.run("get", "pods", "--all-namespaces", "--output", "json"))["items"]:
                    self._look_at(pod)
            except AssertionError as error:  # a pod or node that went meanwhile; the next look is a whole new one
                self.problems.append(str(error))

    def _beat(self) -> None:
        for name, what in NODES.items():
            self._patch_status("node", name, node_status(what.get("resource")))

    def _look_at(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        if pod["spec"].get("nodeName") not in NODES:
            return
        place = ("--namespace", metadata["namespace"])
        if "deletionTimestamp" in metadata:
            self._kubectl.run("delete", "pod", metadata["name"], *place, "--force", "--grace-period=0", "--ignore-not-found")
        elif pod["status"].get("phase") == "Pending" and metadata["uid"] not in self._seen:
            number = len(self._seen)
            self._patch_status("pod", metadata["name"], pod_status(pod, f"10.244.{number // 250}.{number % 250 + 1}"), *place)
            self._seen.add(metadata["uid"])
        else:
            say_readiness(self._kubectl, pod)

    def _patch_status(self, kind: str, name: str, status: dict[str, Any], *place: str) -> None:
        patch = json.dumps({"status": status})
        self._kubectl.run("patch", kind, name, *place, "--subresource=status", "--type=merge", "--patch", patch)
