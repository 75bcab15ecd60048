"""The gate on a real control plane: a failing one stops a rollout after one engine, a passing one finishes it.

What nobody can decide waits for a person. The controller runs here, with the token and the rights of the chart's; what its judge
says is told it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.engines.api_server import ApiServer
from serving.fleet_settings import KubernetesSettings
from serving.gate.verdict import Verdict
from serving.gatekeeper.approve import Place, approve, read_standings
from serving.gatekeeper.pods import CONDITION, GatedPod
from serving.gatekeeper.run import Gatekeeper
from serving.gatekeeper.settings import GatekeeperSettings
from tests.cluster.conftest import Kubectl
from tests.cluster.made_up_nodes import say_readiness
from tests.cluster.test_discovery import access
from tests.cluster.test_release import CPU, WAIT, engines, eventually, rolled_out
from tests.doubles.tools import CHART, Helm, Refused
from tests.gatekeeper.doubles import verdict_on

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
GOOD, BETTER, BAD, NEW = "1", "2", "666", "7"
OUTCOMES = {GOOD: "pass", BETTER: "pass", BAD: "fail", NEW: "not_decided"}
REPLICAS = 3
ENGINES = "app.kubernetes.io/component=engine"


async def told(pod: GatedPod) -> Verdict:
    """By the seed, which is the last word of its command."""
    outcome = OUTCOMES[pod.configuration.argv[-1]]
    return verdict_on(pod, outcome, calibrated=outcome != "not_decided")


def values(seed: str) -> dict[str, Any]:
    pool = {
        **CPU,
        "replicas": REPLICAS,
        "extraArguments": ["--seed", seed],
        "gate": {"arguments": ["--matched", "/reports/matched.json"]},
        # A stand-in that knows no readiness gates leaves it to `Kubelet` below.
        "podAnnotations": {"fake-kubelet/unready": "true"},
    }
    return {"pools": [pool], "gateway": {"replicas": 1}, "gate": {"runSeconds": 60}}


class Kubelet:
    """What a kubelet says of gated pods; where kubelets are real it does nothing."""

    def __init__(self, kubectl: Kubectl, nodes: list[dict[str, Any]]) -> None:
        versions = [node["status"].get("nodeInfo", {}).get("kubeletVersion", "") for node in nodes]
        self._is_needed = all(not version or "fake" in version for version in versions)
        self._kubectl = kubectl
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            with contextlib.suppress(AssertionError):  # a pod that went meanwhile
                for pod in self._kubectl.items("pods", "--selector", "serving/gated=true"):
                    say_readiness(self._kubectl, pod)

    def __enter__(self) -> Kubelet:
        if self._is_needed:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._is_needed:
            self._thread.join(timeout=60)


@pytest.fixture
def kubelet(kubectl: Kubectl, nodes: list[dict[str, Any]]) -> Iterator[Kubelet]:
    with Kubelet(kubectl, nodes) as started:
        yield started


def own_access(kubectl: Kubectl, folder: Path) -> KubernetesSettings:
    """With the token of the chart's controller."""
    found = access(kubectl, folder)
    (folder / "token").write_text(kubectl.run("create", "token", "x-serving-gate"))
    return found


@contextlib.asynccontextmanager
async def controller(kubectl: Kubectl, folder: Path) -> AsyncIterator[Place]:
    """It leads while the block runs. Yields where its records are."""
    found = await asyncio.to_thread(own_access, kubectl, folder)
    settings = GatekeeperSettings.model_validate(
        {
            "namespace": kubectl.namespace,
            "name": "x-serving-gate",
            "owner": "x-serving-gate",
            "selector": "app.kubernetes.io/instance=x,serving/gated=true",
            "kubernetes": found.model_dump(),
        }
    )
    work = asyncio.create_task(Gatekeeper(settings, told).work())
    server = ApiServer(found)
    try:
        yield Place(server, kubectl.namespace, "x-serving-gate", found, "x-serving-gate")
        assert not work.done(), work
    finally:
        server.close()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def conditions(kubectl: Kubectl) -> list[tuple[str, str, str]]:
    """Seed, status and reason of each engine that is not on its way out."""
    found = []
    for pod in kubectl.items("pods", "--selector", ENGINES):
        if "deletionTimestamp" not in pod["metadata"]:
            said = next((each for each in pod["status"].get("conditions", []) if each["type"] == CONDITION), {})
            seed = pod["spec"]["containers"][0]["command"][-1]
            found.append((seed, said.get("status", ""), said.get("reason", "")))
    return sorted(found)


async def until(left: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, left)


async def installed(kubectl: Kubectl, helm: Helm, seed: str, *options: str) -> None:
    place = ("--namespace", kubectl.namespace)
    await asyncio.to_thread(helm.run, "install", "x", str(CHART), *place, *options, values=values(seed))


async def test_a_failing_gate_stops_the_rollout_and_rollback_restores(
    kubectl: Kubectl, helm: Helm, kubelet: Kubelet, tmp_path: Path
) -> None:
    place = ("--namespace", kubectl.namespace)
    before = await asyncio.to_thread(kubectl.everything)
    await installed(kubectl, helm, GOOD)
    async with controller(kubectl, tmp_path):
        await asyncio.to_thread(rolled_out, kubectl)
        assert await asyncio.to_thread(engines, kubectl) == {"cpu": [GOOD] * REPLICAS}
        with pytest.raises(Refused):
            await asyncio.to_thread(
                helm.run, "upgrade", "x", str(CHART), *place, "--wait", "--timeout", "45s", values=values(BAD)
            )
        wanted = sorted([(BAD, "False", "Failed"), *[(GOOD, "True", "Passed")] * (REPLICAS - 1)])
        await until(lambda: (found := conditions(kubectl)) != wanted and found)
        assert await asyncio.to_thread(engines, kubectl) == {"cpu": [GOOD] * (REPLICAS - 1)}, "the rest keep serving"
        events = await asyncio.to_thread(kubectl.items, "events", "--field-selector", "reason=QualityFailed")
        assert len(events) == 1 and events[0]["type"] == "Warning"
        await asyncio.to_thread(helm.run, "rollback", "x", "1", *place, *WAIT)
        await asyncio.to_thread(rolled_out, kubectl)
        assert await asyncio.to_thread(engines, kubectl) == {"cpu": [GOOD] * REPLICAS}
    await asyncio.to_thread(helm.run, "uninstall", "x", *place, *WAIT)
    await until(lambda: sorted(kubectl.everything() - before))


async def test_a_passing_gate_finishes_the_rollout(kubectl: Kubectl, helm: Helm, kubelet: Kubelet, tmp_path: Path) -> None:
    place = ("--namespace", kubectl.namespace)
    await installed(kubectl, helm, GOOD)
    async with controller(kubectl, tmp_path) as records:
        await asyncio.to_thread(rolled_out, kubectl)
        await asyncio.to_thread(helm.run, "upgrade", "x", str(CHART), *place, *WAIT, values=values(BETTER))
        await asyncio.to_thread(rolled_out, kubectl)
        assert await asyncio.to_thread(engines, kubectl) == {"cpu": [BETTER] * REPLICAS}
        assert len((await read_standings(records)).by_digest) == 2, "one verdict for each configuration"
        # What is known is ready at once, without a run.
        await asyncio.to_thread(helm.run, "rollback", "x", "1", *place, *WAIT)
        await asyncio.to_thread(rolled_out, kubectl)
        assert len((await read_standings(records)).by_digest) == 2
    await asyncio.to_thread(helm.run, "uninstall", "x", *place, *WAIT)


async def test_what_cannot_be_decided_waits_for_a_person(kubectl: Kubectl, helm: Helm, kubelet: Kubelet, tmp_path: Path) -> None:
    place = ("--namespace", kubectl.namespace)
    await installed(kubectl, helm, NEW)
    async with controller(kubectl, tmp_path) as records:
        await until(lambda: (found := conditions(kubectl)) != [(NEW, "False", "NeedsApproval")] * REPLICAS and found)
        assert await asyncio.to_thread(engines, kubectl) == {}
        (digest,) = (await read_standings(records)).by_digest
        await approve(records, digest[:12], reason="a person looked at it", by="the test")
        await asyncio.to_thread(rolled_out, kubectl)
        assert await asyncio.to_thread(conditions, kubectl) == [(NEW, "True", "Approved")] * REPLICAS
        events = await asyncio.to_thread(kubectl.items, "events", "--field-selector", "reason=QualityApproved")
        assert "a person looked at it" in str([event["message"] for event in events])
    await asyncio.to_thread(helm.run, "uninstall", "x", *place, *WAIT)


async def test_nobody_else_of_the_release_may_write_verdicts(kubectl: Kubectl, helm: Helm) -> None:
    await installed(kubectl, helm, GOOD)

    def may(account: str, *right: str) -> bool:
        user = f"system:serviceaccount:{kubectl.namespace}:{account}"
        try:
            return "yes" in kubectl.run("auth", "can-i", *right, f"--as={user}")
        except AssertionError:
            return False

    rights = (("create", "configmaps"), ("patch", "pods", "--subresource=status"), ("update", "leases/x-serving-gate"))
    for account, wanted in (("x-serving", False), ("x-serving-engine", False), ("x-serving-gate", True)):
        for right in rights:
            assert await asyncio.to_thread(may, account, *right) is wanted, (account, right)
    for right in (("delete", "configmaps"), ("update", "configmaps"), ("get", "secrets"), ("delete", "pods")):
        assert not await asyncio.to_thread(may, "x-serving-gate", *right), right
    await asyncio.to_thread(helm.run, "uninstall", "x", "--namespace", kubectl.namespace, *WAIT)
