"""The programs that `scripts/tools.py` keeps in the cache; a test that needs one which is not there is skipped and says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings import cache_dir

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "serving"
HELMS = ("helm-3", "helm-4")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C is ten times as fast, and a release is a long text."""
PROMETHEUSES = ("prometheus-2", "prometheus-3")


def tool(name: str, program: str) -> Path:
    """The path of a program, or the test is skipped."""
    path = cache_dir() / "tools" / name / program
    if not path.exists():
        pytest.skip(f"{name} is not in the cache; `make setup-tools` brings it or says why it cannot")
    return path


class Refused(Exception):
    """Helm did not do what it was told; the message is its own."""


class Helm:
    """One version of Helm."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program = tool(name, "helm")

    def run(self, *words: str, values: Any = None, cwd: Path | None = None) -> str:
        """Its standard output. Raises: Refused."""
        command = [str(self._program), *words]
        given = None
        if values is not None:
            command += ["--values", "-"]
            given = yaml.safe_dump(values)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, cwd=cwd)
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def template(
        self, values: Any = None, *options: str, chart: Path = CHART, release: str = "x", namespace: str = "default"
    ) -> list[dict[str, Any]]:
        """The objects that a release consists of, tests included."""
        text = self.run("template", release, str(chart), "--namespace", namespace, *options, values=values)
        return [each for each in yaml.load_all(text, Loader=LOADER) if each]


def only(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind whose name ends so."""
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    assert len(found) == 1, f"{kind} …{name}: {[each['metadata']['name'] for each in objects if each['kind'] == kind]}"
    return found[0]


def pod_templates(workload: dict[str, Any]) -> list[dict[str, Any]]:
    """Metadata and spec of the pods that a workload makes, or that it is."""
    if workload["kind"] == "Pod":
        return [workload]
    if workload["kind"] == "Deployment":
        return [workload["spec"]["template"]]
    if workload["kind"] == "LeaderWorkerSet":
        group = workload["spec"]["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return []


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specs of all pods of a release, those of tests included."""
    return [template["spec"] for each in objects for template in pod_templates(each)]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    """The one container of a workload's first kind of pods."""
    (one,) = pod_templates(workload)[0]["spec"]["containers"]
    return dict(one)


def rendered_profile(name: str) -> dict[str, Any]:
    return dict(json.loads((CHART / "files" / "profiles" / f"{name}.json").read_text()))
