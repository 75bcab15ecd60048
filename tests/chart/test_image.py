"""The gateway's image builds from the real Dockerfile and serves as UID 2000 on a read-only root, with the chart's settings."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.certificates import server_context, write_pair
from tests.doubles.image import Builder, start
from tests.doubles.kubernetes_api import KubernetesApi
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import free_port
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.tools import CHART, ROOT, Helm, container, only
from tests.flow.conftest import chat

SECRET = "the-engines-s3cret"
TOKEN = "t0ken"


DOCKERFILES = sorted(path.name for path in ROOT.glob("Dockerfile.*"))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_dockerfile_is_sound(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), str(ROOT / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def mounted(folder: Path, text: str) -> dict[str, Path]:
    """The chart's volumes, as a kubelet gives them: the group of the volumes may read the secrets, nobody may write."""
    settings, secret, access = folder / "settings", folder / "secret", folder / "access"
    for each in (settings, secret, access):
        each.mkdir()
    (settings / "gateway.yaml").write_text(text)
    (secret / "engine-secret").write_text(SECRET)
    (access / "token").write_text(TOKEN)
    write_pair(folder / "server", "localhost", alternative="IP:127.0.0.1")
    (access / "ca.crt").write_bytes((folder / "server" / "cert").read_bytes())
    for file in (secret / "engine-secret", access / "token", access / "ca.crt"):
        os.chown(file, 0, 2000)
        file.chmod(0o440)
    return {
        "/etc/serving/gateway": settings,
        "/etc/serving/secret": secret,
        "/var/run/secrets/kubernetes.io/serviceaccount": access,
    }


def confined(pid: int) -> None:
    """The process is nobody but UID 2000, and its root is mounted read-only."""
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Uid:\t2000\t2000\t2000\t2000" in status and "Gid:\t0\t0\t0\t0" in status
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    assert any(fields[4] == "/" and fields[5].split(",")[0] == "ro" for fields in mounts), mounts


async def answers(url: str, path: str, status: int) -> None:
    async def problems() -> list[str]:
        try:
            found = (await ask(url, path)).status
        except OSError as error:
            return [f"{path}: {error}"]
        return [] if found == status else [f"{path}: {found}"]

    await settled(problems)


@pytest.mark.chart
async def test_the_image_serves_as_uid_2000_with_a_read_only_root(tmp_path: Path) -> None:
    objects = Helm("helm-4").template(namespace="serving")
    with Builder(tmp_path) as builder:
        name = await asyncio.to_thread(builder.build, "Dockerfile.gateway")
        await serves(builder, name, objects, tmp_path)


async def serves(builder: Builder, name: str, objects: list[dict[str, Any]], folder: Path) -> None:
    deployment = only(objects, "Deployment", "-gateway")
    security, one = deployment["spec"]["template"]["spec"]["securityContext"], container(deployment)
    configuration = builder.configuration(name)
    assert configuration["User"] == f"{security['runAsUser']}:{security['runAsGroup']}" == "2000:0"
    root = builder.unpacked(name)
    volumes = mounted(folder, only(objects, "ConfigMap", "-gateway")["data"]["gateway.yaml"])
    assert {mount["mountPath"] for mount in one["volumeMounts"]} == set(volumes)
    port, operators = free_port(), free_port()
    service, labels = only(objects, "Service", "-cpu"), {"app": "engine"}
    api = KubernetesApi(tls=server_context(folder / "server"), services={service["metadata"]["name"]: labels})
    api.token = TOKEN
    async with ScriptedEngine("smollm2-135m-instruct") as engine, api:
        api.add_pod("x-serving-cpu-1", "127.0.0.1", port=engine.port, labels=labels)
        environment = {  # what a cluster gives, and ports that are free here
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
            "SERVING_SERVER__PORT": str(port),
            "SERVING_SERVER__OPERATOR_PORT": str(operators),
            "SERVING_SERVER__DRAIN_DELAY_SECONDS": "0",
        }
        groups = str(security["fsGroup"])
        process = start(root, configuration, one["args"], volumes=volumes, environment=environment, groups=groups)
        try:
            await answers(f"http://127.0.0.1:{operators}", one["livenessProbe"]["httpGet"]["path"], 200)
            await answers(f"http://127.0.0.1:{operators}", one["readinessProbe"]["httpGet"]["path"], 200)
            answer = await ask(f"http://127.0.0.1:{port}", "/v1/chat/completions", chat(model="smollm2-135m-instruct"))
            assert answer.status == 200, answer.body
            assert engine.log.requests[-1].header("x-serving-engine-secret") == SECRET
            assert (await ask(f"http://127.0.0.1:{port}", "/metrics")).status == 404
            confined(process.pid)
            test = only(objects, "Pod", "-test")["spec"]["containers"][0]
            command = [sys.executable, "-c", test["args"][0], f"http://127.0.0.1:{port}", *test["args"][2:]]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "smollm2-135m-instruct answers" in done.stdout, done.stdout + done.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, output.decode()[-3000:]


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (400, 1)])
async def test_helm_tests_program(status: int, expected: int) -> None:
    from tests.doubles.script import Script

    program = (CHART / "files" / "tests" / "completion.py").read_text()
    async with ScriptedEngine(default=Script(status=status)) as engine:
        command = [sys.executable, "-c", program, engine.url, "5", "tiny"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == expected, done.stdout + done.stderr
