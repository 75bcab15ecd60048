"""Builds the gateway's image with buildah from a stand-in for Python's, and runs it as a cluster would: no engine of containers.

The stand-in has the same Python series in another place; `pip` takes the wheels that `make` keeps in the cache.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.settings import cache_dir
from tests.doubles.tools import ROOT, tool

BASE = "docker.io/library/python:3.11-slim"
NAME = "serving-gateway:test"


class Builder:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid():
            pytest.skip("building an image without a container engine needs root")
        program = shutil.which("buildah")
        if program is None:
            pytest.skip("buildah is not installed; `make setup-tools` installs it on Debian, as root")
        places = [program, "--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver"]
        # Inside some containers overlay mounts are not allowed; whole copies of each layer always work, and take minutes.
        overlay = subprocess.run([*places, "overlay", "from", "scratch"], capture_output=True)
        if overlay.returncode:
            shutil.rmtree(folder / "store", ignore_errors=True)
        self._command = [*places, "vfs" if overlay.returncode else "overlay"]

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self.run("rm", "--all")
        self.run("rmi", "--all", "--force")

    def run(self, *words: str) -> str:
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def build(self) -> None:
        """The real Dockerfile over the stand-in."""
        base = self.run("from", "scratch")
        self.run("add", base, str(tool("python-base", "root.tar")), "/")
        self.run("commit", "--rm", "--disable-compression", base, BASE)
        options = ["--isolation", "chroot", "--pull-never", "--format", "docker", "--volume", f"{_wheels()}:/wheels:ro"]
        options += ["--build-arg", "PIP_FIND_LINKS=/wheels", "--build-arg", "PIP_NO_INDEX=1"]
        self.run("bud", *options, "--file", str(ROOT / "Dockerfile.gateway"), "--tag", NAME, str(ROOT))

    def configuration(self) -> dict[str, Any]:
        """User, environment, entry point and command of the image."""
        inspected = json.loads(self.run("inspect", "--type", "image", NAME))
        return dict(inspected["OCIv1"]["config"])

    def unpacked(self) -> Path:
        """The image's file system as a folder."""
        return Path(self.run("mount", self.run("from", NAME)))


def _wheels() -> Path:
    import hashlib

    lock = ROOT / "requirements" / "gateway.txt"
    name = f"gateway-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    folder = cache_dir() / "wheels" / f"{sys.implementation.cache_tag}-{platform.machine()}" / name
    if not folder.is_dir():
        pytest.skip("the gateway's wheels are not in the cache; `make setup-gateway` brings them")
    return folder


def _place(root: Path, inside: str) -> Path:
    """Where a path of the image is here: an absolute link of the image, as that from /var/run to /run, begins at its root."""
    place = root
    for part in Path(inside).parts[1:]:
        place = place / part
        if place.is_symlink():
            target = place.readlink()
            place = root / target.relative_to("/") if target.is_absolute() else place.parent / target
    return place


def start(
    root: Path,
    configuration: Mapping[str, Any],
    arguments: Sequence[str],
    volumes: Mapping[str, Path],
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Run the image's entry point as the image's user on a root that cannot be written, with folders mounted read-only.

    The command ends with the process; network and process ids are the machine's.
    """
    places = {_place(root, inside): outside for inside, outside in volumes.items()}
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    mounts = [f"mount --bind {root} {root}"]
    mounts += [f"mount --bind {outside} {place}" for place, outside in places.items()]
    mounts += [f"mount -o remount,bind,ro {place}" for place in (root, *places)]
    words = [*configuration["Entrypoint"], *arguments]
    given = [*configuration["Env"], *(f"{name}={value}" for name, value in environment.items())]
    exec_line = ["chroot", f"--userspec={configuration['User']}", "--groups=", str(root), "/usr/bin/env", "-i", *given, *words]
    script = " && ".join([*mounts, 'exec "$@"'])
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", *exec_line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
