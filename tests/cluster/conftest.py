"""The cluster that KUBECONFIG names; without one these tests are skipped and say so."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.made_up_nodes import MadeUpNodes
from tests.doubles.tools import HELMS, Helm, tool

SHORT_SECONDS = 60
MADE_UP = "SERVING_TEST_MADE_UP_NODES"
"""Set to 1, made-up nodes are added to the cluster for the tests. A cluster without any node gets them anyway."""


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._program = str(tool("helm-4", "kubectl"))

    def run(self, *words: str, given: str | None = None) -> str:
        command = [self._program, "--namespace", self.namespace, *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def items(self, kind: str, *words: str) -> list[dict[str, Any]]:
        return list(json.loads(self.run("get", kind, *words, "--output", "json"))["items"])

    def apply(self, document: dict[str, Any]) -> None:
        self.run("apply", "--filename", "-", given=yaml.safe_dump(document))

    def everything(self) -> set[str]:
        """What is in the namespace, as KIND/NAME, but for what Kubernetes itself puts there and records."""
        kinds = self.run("api-resources", "--namespaced", "--verbs=list", "--output", "name").split()
        left_out = ("events", "events.events.k8s.io", "pods.metrics.k8s.io")
        wanted = ",".join(kind for kind in kinds if kind not in left_out)
        found = self.run("get", wanted, "--ignore-not-found", "--output", "name").split()
        return set(found) - {"serviceaccount/default", "configmap/kube-root-ca.crt"}


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[dict[str, Any]]]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster: nothing was installed anywhere")
    kubectl = Kubectl("default")
    try:
        kubectl.run("version", f"--request-timeout={SHORT_SECONDS}s")
    except AssertionError as error:
        pytest.fail(f"the cluster of KUBECONFIG does not answer: {error}")
    found = kubectl.items("nodes")
    if found and os.environ.get(MADE_UP) != "1":
        yield found
        return
    with MadeUpNodes(kubectl):
        yield kubectl.items("nodes")


@pytest.fixture(params=HELMS)
def helm(request: pytest.FixtureRequest) -> Helm:
    return Helm(request.param)


@pytest.fixture
def kubectl(nodes: list[dict[str, Any]], helm: Helm) -> Iterator[Kubectl]:
    """A namespace of its own, which admits nothing but restricted pods."""
    name = f"serving-test-{helm.name}"
    kubectl = Kubectl(name)
    label = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}})
    yield kubectl
    kubectl.run("delete", "namespace", name, "--wait", "--timeout=120s")
