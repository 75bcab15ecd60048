"""Writes requirements/clients.txt: what the clients under test need beyond, or in another version than, the layers of `.venv`.

Run it with `make lock`, after scripts/lock.py. The versions of those layers are kept wherever the clients' own demands allow it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEHIND = ("gateway", "dev", "engine-cpu")
CONFLICTS = {"click", "setuptools"}
"""Wanted by the clients in other versions than by `.venv`."""
LEFT_OUT = {
    *("boto3", "botocore", "s3transfer"),  # litellm, for Amazon's models
    *("scipy", "scikit-learn", "joblib", "threadpoolctl", "narwhals"),  # lm-eval, for metrics of some tasks
    *("nltk", "absl-py", "defusedxml", "rouge-score", "sqlitedict", "word2number"),  # the same, and its cache; some have no wheel
    "sanic",  # guidellm, for its own server of fakes
    "setuptools",  # is there
}
"""Declared, and not imported by what the tests do."""


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def pins_behind() -> dict[str, str]:
    """The exact versions in `.venv` by normalised name."""
    lines = [
        line for layer in BEHIND for line in (ROOT / "requirements" / f"{layer}.txt").read_text(encoding="utf-8").splitlines()
    ]
    return {name_of(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}


def resolve(wanted: list[str], kept: dict[str, str]) -> dict[str, str]:
    """What pip would install for `wanted`, which `kept` constrains."""
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch) / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
        constraints, report = Path(scratch) / "constraints.txt", Path(scratch) / "report.json"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()), encoding="utf-8")
        options = ["--quiet", "--dry-run", "--report", str(report), "--constraint", str(constraints)]
        subprocess.run([str(python), "-m", "pip", "install", *options, f"torch=={kept['torch']}", *wanted], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {name_of(item["metadata"]["name"]): item["metadata"]["version"] for item in found}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    behind = pins_behind()
    kept = {name: version for name, version in behind.items() if name not in CONFLICTS}
    versions = resolve(project["optional-dependencies"]["clients"], kept)
    mine = sorted(name for name in versions if versions[name] != behind.get(name) and name not in LEFT_OUT)
    text = "".join(f"{name}=={versions[name]}\n" for name in mine)
    (ROOT / "requirements" / "clients.txt").write_text(f"# Written by scripts/lock_clients.py\n{text}", encoding="utf-8")
    print(f"requirements/clients.txt: {len(mine)} packages")


if __name__ == "__main__":
    main()
