"""Writes requirements/*.txt: every package with its exact version, in the three layers that `scripts/setup.py` installs.

Run it with `make lock` after a change of the dependencies in pyproject.toml. It resolves in a scratch environment with whatever
index pip is configured for. The layers: gateway = what a gateway needs and what builds the project; dev and engine-cpu = what the
tests and vLLM on the CPU need beyond that. A package in both has the same version in both.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0+cpu"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""vLLM declares them, text models do not need them, and the builds on the index do not match torch's CPU build."""
CLOSURE = """
import importlib.metadata as m, json, re
from packaging.requirements import Requirement
name = lambda text: re.sub(r"[-_.]+", "-", text).lower()
def closure(requirements):
    seen, todo = {}, [(Requirement(r), "") for r in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = name(requirement.name)
        extras = requirement.extras | {""}
        if extras <= seen.get(key, set()):
            continue
        try:
            found = m.distribution(key)
        except m.PackageNotFoundError:
            continue
        seen[key] = seen.get(key, set()) | extras
        todo += [(Requirement(r), e) for r in found.requires or () for e in extras]
    return {key: m.version(key) for key in seen}
import sys
print(json.dumps({layer: closure(names) for layer, names in json.load(sys.stdin).items()}))
"""


def main() -> None:
    import json
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "gateway": ["pip", "hatchling", "editables", *project["dependencies"]],
        "dev": extras["dev"],
        "engine-cpu": [TORCH, *extras["cpu"]],
    }
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch) / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        subprocess.run([*pip, TORCH], check=True)
        subprocess.run([*pip, TORCH, *(name for names in wanted.values() for name in names)], check=True)
        answer = subprocess.run(
            [str(python), "-c", CLOSURE], input=json.dumps(wanted), capture_output=True, text=True, check=True
        )
    versions: dict[str, dict[str, str]] = json.loads(answer.stdout)
    for layer, pins in versions.items():
        base = versions["gateway"] if layer != "gateway" else {}
        mine = sorted(name for name in pins if name not in base and name not in LEFT_OUT)
        text = "".join(f"{re.sub(r'[-_.]+', '-', name)}=={pins[name]}\n" for name in mine)
        (ROOT / "requirements" / f"{layer}.txt").write_text(f"# Written by scripts/lock.py\n{text}", encoding="utf-8")
        print(f"requirements/{layer}.txt: {len(mine)} packages")


if __name__ == "__main__":
    main()
