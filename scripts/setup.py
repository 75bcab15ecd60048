"""Sets up `.venv` for the layers that are named: gateway, dev, engine-cpu. A layer that is there already costs nothing.

Wheels are fetched once into a cache outside the tree and checked by digest before each use, so that a second checkout, or the
same one without a network, installs from there. Uses the standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SIZES = {"gateway": "about 15 MB", "dev": "about 60 MB", "engine-cpu": "about 1 GB"}


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def cache_dir() -> Path:
    given = os.environ.get("SERVING_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "serving-stack"


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
    if PYTHON.exists() and subprocess.run([str(PYTHON), "-c", ""], capture_output=True).returncode == 0:
        return
    say(f"making {VENV.name} with Python {platform.python_version()}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)


def fetched(layer: str, lock: Path) -> Path:
    """The folder with the layer's wheels, whole and checked."""
    wheels = cache_dir() / "wheels" / f"{sys.implementation.cache_tag}-{platform.machine()}" / f"{layer}-{digest(lock)[:16]}"
    manifest = wheels / "manifest.json"
    if manifest.exists():
        known = json.loads(manifest.read_text(encoding="utf-8"))
        bad = [name for name, sha256 in known.items() if not (wheels / name).exists() or digest(wheels / name) != sha256]
        if not bad:
            return wheels
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
    partial.write_text(json.dumps({name: digest(wheels / name) for name in names}, indent=1), encoding="utf-8")
    partial.rename(manifest)
    return wheels


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


def install(layer: str) -> None:
    lock = ROOT / "requirements" / f"{layer}.txt"
    stamp = VENV / f".installed-{layer}"
    wanted = digest(lock)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    began = time.monotonic()
    wheels = fetched(layer, lock)
    say(f"installing the layer {layer}")
    pin = torch_pin(lock)
    requirement = without_torch(lock, wheels) if pin is not None and not any(wheels.glob("torch-*.whl")) else lock
    pip("install", "--quiet", "--no-deps", "--no-index", "--find-links", str(wheels), "--requirement", str(requirement))
    stamp.write_text(wanted, encoding="utf-8")
    say(f"{layer} is ready after {time.monotonic() - began:.0f} s")


def install_project() -> None:
    stamp = VENV / ".installed-project"
    wanted = digest(ROOT / "pyproject.toml")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    pip("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(wanted, encoding="utf-8")


def main() -> None:
    make_venv()
    for layer in sys.argv[1:]:
        install(layer)
    install_project()


if __name__ == "__main__":
    main()
