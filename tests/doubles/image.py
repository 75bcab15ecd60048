"""Builds our images with buildah from stand-ins for their bases, and runs them as a cluster would: no engine of containers.

The stand-in for Python's image has the same Python series in another place; `pip` takes the wheels that `make` has in the cache.
The stand-in for vLLM's has, besides, a command `vllm` that runs the vLLM of this machine, mounted when the image is started.
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

from serving.catalog.argv import ENTRY_MODULE
from serving.settings import cache_dir
from tests.doubles.tools import ROOT, tool

BASE = "docker.io/library/python:3.11-slim"
ENGINE_BASE = "docker.io/vllm/stand-in:test"
ENGINE_LIBRARIES = "/opt/vllm"
"""Where the stand-in for vLLM's image looks for it."""
VLLM_COMMAND = f"""#!/usr/bin/python3
import os, sys
serve, model, *rest = sys.argv[1:]
assert serve == "serve", serve
path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), "{ENGINE_LIBRARIES}")))
words = ["python3", "-m", "{ENTRY_MODULE}", "--model", model, *rest]
os.execve("/usr/bin/python3", words, dict(os.environ, PYTHONPATH=path))
"""


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

    def build(self, dockerfile: str, *arguments: str) -> str:
        """The real Dockerfile over the stand-in for Python's image; returns the image's name."""
        name = f"{dockerfile.removeprefix('Dockerfile.')}:test"
        base = self.run("from", "scratch")
        self.run("add", base, str(tool("python-base", "root.tar")), "/")
        self.run("commit", "--rm", "--disable-compression", base, BASE)
        options = ["--isolation", "chroot", "--pull-never", "--format", "docker", "--volume", f"{_wheels()}:/wheels:ro"]
        for argument in ("PIP_FIND_LINKS=/wheels", "PIP_NO_INDEX=1", *arguments):
            options += ["--build-arg", argument]
        self.run("bud", *options, "--file", str(ROOT / dockerfile), "--tag", name, str(ROOT))
        return name

    def make_engine_base(self, folder: Path) -> None:
        """The stand-in for vLLM's image."""
        command = folder / "vllm"
        command.write_text(VLLM_COMMAND)
        command.chmod(0o755)
        base = self.run("from", "scratch")
        self.run("add", base, str(tool("python-base", "root.tar")), "/")
        self.run("copy", base, str(command), "/usr/local/bin/vllm")
        self.run("copy", base, str(_library("libnuma.so.1")), "/usr/lib/libnuma.so.1")
        self.run("commit", "--rm", "--disable-compression", base, ENGINE_BASE)

    def configuration(self, name: str) -> dict[str, Any]:
        """User, environment, entry point and command of the image."""
        inspected = json.loads(self.run("inspect", "--type", "image", name))
        return dict(inspected["OCIv1"]["config"])

    def unpacked(self, name: str) -> Path:
        """The image's file system as a folder."""
        return Path(self.run("mount", self.run("from", name)))


def _library(name: str) -> Path:
    """A shared library of this machine that vLLM's CPU build loads."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines()
    found = [line.rpartition("=> ")[2] for line in listed if line.split()[:1] == [name]]
    if not found:
        pytest.skip(f"this machine has no {name}")
    return Path(found[0]).resolve()


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
    writable: Mapping[str, Path] | None = None,
    user: str | None = None,
    groups: str = "",
    devices: bool = False,
    log: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Run the image's entry point as the image's user on a root that cannot be written, with folders mounted read-only.

    `user`: another one, as UID:GID. `groups`: more of them, as a pod's fsGroup. `writable`: folders that may be written.
    `devices`: with this machine's /proc, /sys and /dev. `log`: where its output goes, in place of a pipe.
    The command ends with the process; network and process ids are the machine's.
    """
    read_only = {_place(root, inside): outside for inside, outside in volumes.items()}
    writable_places = {_place(root, inside): outside for inside, outside in (writable or {}).items()}
    for place in (*read_only, *writable_places):
        place.mkdir(parents=True, exist_ok=True)
    mounts = [f"mount --bind {root} {root}"]
    mounts += [f"mount --bind {outside} {place}" for place, outside in read_only.items()]
    mounts += [f"mount -o remount,bind,ro {place}" for place in (root, *read_only)]
    mounts += [f"mount --bind {outside} {place}" for place, outside in writable_places.items()]
    if devices:
        mounts += [f"mount --rbind /{name} {root}/{name}" for name in ("proc", "sys", "dev")]
    words = [*configuration["Entrypoint"], *arguments]
    given = [*configuration["Env"], *(f"{name}={value}" for name, value in environment.items())]
    exec_line = [
        "chroot",
        f"--userspec={user or configuration['User']}",
        f"--groups={groups}",
        str(root),
        "/usr/bin/env",
        "-i",
        *given,
        *words,
    ]
    script = " && ".join([*mounts, 'exec "$@"'])
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *exec_line]
    if log is None:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
