"""A discovery against the API server of KUBECONFIG, with the token and the rights of the chart's gateways."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from serving.engines.api_server import ApiServer
from serving.fleet.kubernetes import Follower, KubernetesDiscovery
from serving.fleet.mirror import ApiFailed
from serving.fleet.probe import Probe
from serving.fleet.store import Fleet
from serving.fleet_settings import KubernetesSettings
from serving.settings import PoolSettings, ProbeSettings
from tests.cluster.conftest import Kubectl
from tests.cluster.test_release import WAIT
from tests.doubles.settling import settled
from tests.doubles.tools import CHART, Helm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
SETTLE_SECONDS = 60.0


def access(kubectl: Kubectl, folder: Path) -> KubernetesSettings:
    """As the gateway's pod has it, from kubectl's own configuration."""
    cluster = json.loads(kubectl.run("config", "view", "--raw", "--minify", "--output", "json"))["clusters"][0]["cluster"]
    (folder / "token").write_text(kubectl.run("create", "token", "x-serving"))
    settings = {"api_url": cluster["server"], "token_file": folder / "token", "list_seconds": 2}
    if "certificate-authority-data" in cluster:
        (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        settings["ca"] = folder / "ca.crt"
    elif "certificate-authority" in cluster:
        settings["ca"] = cluster["certificate-authority"]
    return KubernetesSettings.model_validate(settings)


async def nobody(url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
    return 503, b""


async def test_engines_of_a_release_are_found_as_they_come_and_go(kubectl: Kubectl, helm: Helm, tmp_path: Path) -> None:
    pool = {"name": "cpu", "profile": "smollm2-135m-cpu", "nodeSelector": {}, "replicas": 2}
    place = ("--namespace", kubectl.namespace)
    await asyncio.to_thread(
        helm.run, "install", "x", str(CHART), *place, *WAIT, values={"pools": [pool], "gateway": {"replicas": 1}}
    )
    settings = await asyncio.to_thread(access, kubectl, tmp_path)
    server, fleet = ApiServer(settings), Fleet((), models={"m": ("generate",)})
    source = {"service": "x-serving-cpu", "namespace": kubectl.namespace, "port": "http"}
    follower = Follower(
        PoolSettings.model_validate({"name": "cpu", "model": "m", "kubernetes": source}), kubectl.namespace, server, settings
    )

    async def found(count: int) -> None:
        async def problems() -> list[str]:
            statuses = fleet.snapshot.statuses.values()
            return [] if len(statuses) == count and all(s.endpoint.uid for s in statuses) else [f"{list(statuses)}"]

        await settled(problems, within_seconds=SETTLE_SECONDS)

    async with Probe(fleet, nobody, ProbeSettings()) as probe, KubernetesDiscovery([follower], fleet, probe, settings):
        await found(2)
        deployment = "deployment/x-serving-cpu"
        await asyncio.to_thread(kubectl.run, "scale", deployment, "--replicas=3")
        await found(3)
        await asyncio.to_thread(kubectl.run, "scale", deployment, "--replicas=0")
        await found(0)
    with pytest.raises(ApiFailed, match="403"):
        await server.get(f"/api/v1/namespaces/{kubectl.namespace}/secrets", timeout_seconds=10.0)
    server.close()
    await asyncio.to_thread(helm.run, "uninstall", "x", *place, *WAIT)
