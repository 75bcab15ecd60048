"""Sets up `.venv` for the layers that are named: gateway, dev, engine-cpu. A layer that is there already costs nothing.

Wheels are fetched once into a cache outside the tree and checked by digest before each use, so that a second checkout, or the
same one without a network, installs from there. Uses the standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SIZES = {
    "gateway": "about 15 MB",
    "dev": "about 75 MB",
    "engine-cpu": "about 1 GB",
    "clients": "about 190 MB",
    "quantizer": "about 80 MB",
}


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def cache_dir() -> Path:
    given = os.environ.get("SERVING_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given).expanduser() if given else (Path(base) if base else Path.home() / ".cache") / "serving-stack"
    except RuntimeError as error:
        sys.exit(f"setup: {error}; set SERVING_CACHE_DIR to a folder that there is")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip(*arguments: str, may_fail: bool = False) -> bool:
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL)
    if done.returncode and not may_fail:
        sys.exit(f"setup: pip {arguments[0]} failed (see above); run the same make target again to go on where it stopped")
    return done.returncode == 0


def make_venv() -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"setup: Python 3.11 or newer is needed, this is {platform.python_version()}; use make PYTHON=python3.11 …")
    # Its pip, too: a process that was killed while it made the environment may have left one without.
    if PYTHON.exists() and subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    say(f"making {VENV.name} with Python {platform.python_version()}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)


def fetched(layer: str, lock: Path) -> Path:
    """The folder with the layer's wheels, whole and checked."""
    wheels = cache_dir() / "wheels" / f"{sys.implementation.cache_tag}-{platform.machine()}" / f"{layer}-{digest(lock)[:16]}"
    manifest = wheels / "manifest.json"
    if manifest.exists():
        known = recorded(manifest)
        bad = [name for name, sha256 in known.items() if not (wheels / name).exists() or digest(wheels / name) != sha256]
        if known and not bad:
            return wheels
        if not known:  # nothing tells which of the files are whole
            bad = [path.name for path in wheels.glob("*.whl")]
        say(f"{len(bad)} cached files of {layer} are damaged and will be fetched again")
        manifest.unlink()
        for name in bad:
            (wheels / name).unlink(missing_ok=True)
    say(f"fetching the layer {layer}, {SIZES.get(layer, '')}")
    wheels.mkdir(parents=True, exist_ok=True)
    pip(
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(wheels),
        "--requirement",
        str(without_torch(lock, wheels)),
    )
    fetch_torch(lock, wheels)
    names = sorted(path.name for path in wheels.glob("*.whl"))
    partial = manifest.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump({name: digest(wheels / name) for name in names}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave the new name on an empty file
    partial.rename(manifest)
    return wheels


def recorded(manifest: Path) -> dict[str, str]:
    """The digests of a layer's wheels by their names; empty where the file is damaged."""
    try:
        known = json.loads(manifest.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(known, dict) and all(isinstance(sha256, str) and Path(n).name == n for n, sha256 in known.items())
    return known if whole else {}


def torch_pin(lock: Path) -> str | None:
    return next((line for line in lock.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")), None)


def without_torch(lock: Path, folder: Path) -> Path:
    pins = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("torch==")]
    path = folder / "pins.txt"
    path.write_text("\n".join(pins) + "\n", encoding="utf-8")
    return path


def fetch_torch(lock: Path, wheels: Path) -> None:
    """torch's CPU build: from pip's own index where that has it, else from PyTorch's, whose address uv knows."""
    pin = torch_pin(lock)
    if pin is None or any(wheels.glob("torch-*.whl")):
        return
    if pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), pin, may_fail=True):
        return
    say("pip's index has no CPU build of torch; taking it from PyTorch's own with uv")
    pip("install", "--quiet", "uv")
    uv = [str(PYTHON), "-m", "uv", "pip", "install", "--python", str(PYTHON), "--no-deps", "--torch-backend", "cpu", pin]
    if subprocess.run(uv).returncode:
        sys.exit(f"setup: {pin} could not be fetched; install it into .venv by hand and run the target again")


def installed(name: str, wanted: str, command: Callable[[], list[str]]) -> bool:
    """Run pip with `command` unless `name` is there as `wanted`; whether anything had to be done.

    pip takes a package for installed as soon as its first file is there. A mark that outlives a killed process says that
    this cannot be believed.
    """
    stamp, mark = VENV / f".installed-{name}", VENV / f".installing-{name}"
    killed = mark.exists()
    if not killed and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return False
    arguments = command()
    if killed:
        say(f"the last installation of {name} was cut off; it is done again")
        clear_halves()
    mark.touch()
    pip("install", "--quiet", "--no-deps", "--no-index", *(["--force-reinstall"] if killed else []), *arguments)
    stamp.write_text(wanted, encoding="utf-8")
    mark.unlink()
    return True


def clear_halves() -> None:
    """Remove the records of packages that pip cannot uninstall, since it did not come to write the list of their files."""
    for site in VENV.glob("lib/python*/site-packages"):
        for path in site.iterdir():
            if path.name.startswith("~") or (path.suffix == ".dist-info" and not (path / "RECORD").is_file()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def install(layer: str) -> None:
    lock = ROOT / "requirements" / f"{layer}.txt"
    began = time.monotonic()

    def command() -> list[str]:
        wheels = fetched(layer, lock)
        say(f"installing the layer {layer}{', which takes a minute or two' if layer.startswith('engine') else ''}")
        pin = torch_pin(lock)
        requirement = without_torch(lock, wheels) if pin is not None and not any(wheels.glob("torch-*.whl")) else lock
        return ["--find-links", str(wheels), "--requirement", str(requirement)]

    if installed(layer, digest(lock), command):
        say(f"{layer} is ready after {time.monotonic() - began:.0f} s")


def install_project() -> None:
    installed("project", digest(ROOT / "pyproject.toml"), lambda: ["--no-build-isolation", "--editable", str(ROOT)])


def reporting_failures(*steps: Callable[[], None]) -> None:
    """Take the steps; what stops one is said in a sentence."""
    try:
        for step in steps:
            step()
    except OSError as error:
        sys.exit(f"setup: {error.filename}: {error.strerror}; make room or rights there, or set another SERVING_CACHE_DIR")
    except subprocess.CalledProcessError as error:
        sys.exit(f"setup: {' '.join(error.cmd[1:3])} failed with status {error.returncode}; see above")


def main() -> None:
    make_layers = [partial(install, layer) for layer in sys.argv[1:]]
    reporting_failures(make_venv, *make_layers, install_project)


if __name__ == "__main__":
    main()
