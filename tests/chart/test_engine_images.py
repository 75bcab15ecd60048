"""The hardened engine images: what their files say, and the CPU's one built and run, over a stand-in for vLLM's own image."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.chart.conftest import COMMIT
from tests.chart.test_image import SECRET, confined
from tests.doubles.image import ENGINE_BASE, ENGINE_LIBRARIES, Builder, start
from tests.doubles.real_engine import free_port
from tests.doubles.tiny_model import tiny_model
from tests.doubles.tools import ROOT, Helm, container, only, rendered_profile

BUILDS = ("cpu", "cuda", "rocm")
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("build", BUILDS)
def test_an_image_is_built_on_the_catalogs(build: str) -> None:
    """By digest, where the catalog has one; and it is named as the chart names it."""
    text = (ROOT / f"Dockerfile.{build}").read_text()
    images = yaml.safe_load((ROOT / "configs" / "engines" / "images.yaml").read_text())["images"]
    (image,) = [each for each in images if each["build"] == build]
    reference = f"{image['registry']}/{image['repository']}:{image['tag']}" + (f"@{image['digest']}" if "digest" in image else "")
    assert f"ARG BASE_IMAGE={reference}\n" in text
    assert f"-t serving-engine-{build}:0.1.0-vllm{image['version']} " in text
    assert re.search(r"^USER 2000:0$", text, re.MULTILINE) and "HEALTHCHECK" in text


def test_the_chart_names_the_hardened_image() -> None:
    assert rendered_profile("glm-5.2-mxfp4-mi355x")["hardened"] == {
        "repository": "serving-engine-rocm",
        "tag": "0.1.0-vllm0.31.0",
    }


def readable(model: Path, place: Path) -> Path:
    """A copy that other users may read, as what an init container has fetched."""
    copied = place / "model"
    shutil.copytree(model, copied)
    for path in (copied, *copied.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copied


def folders(place: Path) -> dict[str, Path]:
    """Folders that group 0 may write, as volumes of a pod are."""
    made = {"/home/engine": place / "home", "/tmp": place / "tmp"}
    for path in made.values():
        path.mkdir()
        path.chmod(0o2777)
    return made


@pytest.mark.chart
@pytest.mark.engine
@pytest.mark.parametrize("user", ["2000:0", "1000690000:0"])
async def test_the_cpu_image_serves_a_real_model_on_a_read_only_root(tmp_path: Path, user: str) -> None:
    """As the image's own user, and as one that OpenShift might choose."""
    pool = {"name": "cpu", "profile": "smollm2-135m-cpu", "revision": COMMIT, "image": {"variant": "hardened"}}
    engine = container(only(Helm("helm-4").template({"pools": [pool]}), "Deployment", "-cpu"))
    port = free_port()
    with Builder(tmp_path) as builder:
        await asyncio.to_thread(builder.make_engine_base, tmp_path)
        arguments = (f"BASE_IMAGE={ENGINE_BASE}", f"ENGINE_PYTHON={SERIES}")
        name = await asyncio.to_thread(builder.build, "Dockerfile.cpu", *arguments)
        configuration, root = builder.configuration(name), builder.unpacked(name)
        assert configuration["User"] == "2000:0"
        assert configuration["Entrypoint"] == engine["command"][:2]
        secret = tmp_path / "secret"
        secret.mkdir()
        (secret / "engine-secret").write_text(SECRET)
        words = ["/model", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
        words += ["--max-model-len", "2048", "--kv-cache-memory-bytes", "200000000", "--enforce-eager"]
        words += engine["command"][-2:]
        assert words[-2:] == ["--middleware", "serving_guard.Guard"]
        process = start(
            root,
            configuration,
            words,
            volumes={
                "/etc/serving/secret": secret,
                "/model": readable(tiny_model(), tmp_path),
                ENGINE_LIBRARIES: Path(sysconfig.get_path("purelib")),
            },
            writable=folders(tmp_path),
            environment={
                "SERVING_ENGINE_SECRET_FILE": "/etc/serving/secret/engine-secret",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
            user=user,
            devices=True,
            log=(log := tmp_path / "log"),
        )
        try:
            await has_started(process, root / "opt/serving/engine/first_token.py", port, secret / "engine-secret", log)
            if user == "2000:0":
                confined(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def has_started(process: subprocess.Popen[bytes], probe: Path, port: int, secret: Path, log: Path) -> None:
    """The pod's own startup probe, again and again as a kubelet asks; without the secret nobody gets a token."""
    deadline = asyncio.get_running_loop().time() + 400
    while True:
        asked = [
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, str(probe), str(port), "tiny"],
                env={"SERVING_ENGINE_SECRET_FILE": str(path)} if path else {},
                capture_output=True,
                text=True,
            )
            for path in (secret, None)
        ]
        if asked[0].returncode == 0:
            assert asked[1].returncode == 1 and "401" in asked[1].stderr
            return
        said = (await asyncio.to_thread(log.read_text, errors="replace"))[-5000:]
        assert process.poll() is None and "initialization failed" not in said, said
        assert asyncio.get_running_loop().time() < deadline, said + asked[0].stderr
        await asyncio.sleep(2.0)
