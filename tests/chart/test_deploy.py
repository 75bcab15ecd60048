"""What releases and local clusters are made with: the files agree with the chart, and their shell is shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from serving import __version__
from tests.doubles.tools import CHART, ROOT, Helm, container, only

WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"


def steps() -> list[str]:
    return [step["run"] for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["release"]["steps"] if "run" in step]


@pytest.mark.parametrize("script", ["deploy/local/up", "deploy/local/down"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    assert (ROOT / script).stat().st_mode & 0o111


def test_steps_of_the_release_are_shell() -> None:
    assert len(steps()) >= 5
    for step in steps():
        subprocess.run(["bash", "-n"], input=step, text=True, check=True)


def test_the_version_is_found_where_scripts_look() -> None:
    for field in ("version", "appVersion"):
        done = subprocess.run(
            ["sed", "-n", f"s/^{field}: //p", str(CHART / "Chart.yaml")], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == __version__


@pytest.mark.chart
def test_a_released_chart_takes_the_image_from_its_registry(tmp_path: Path) -> None:
    chart = tmp_path / "helm" / "serving"
    shutil.copytree(CHART, chart)
    (line,) = [line for step in steps() for line in step.splitlines() if line.startswith("sed -i")]
    subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env={"REGISTRY": "registry.test/team", "PATH": "/usr/bin:/bin"}, check=True
    )
    gateway = container(only(Helm("helm-4").template(chart=chart), "Deployment", "-gateway"))
    assert gateway["image"] == f"registry.test/team/serving-gateway:{__version__}"
    (pushed,) = [re.findall(r"docker push \"([^\"]+)\"", step) for step in steps() if "docker push" in step]
    assert pushed == ["$REGISTRY/serving-gateway:$VERSION"]


@pytest.mark.chart
def test_the_local_cluster_takes_the_image_that_is_loaded(helm: Helm) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "local" / "values.yaml").read_text())
    objects = helm.template(values, release="serving")
    assert container(only(objects, "Deployment", "-gateway"))["image"] == f"serving-gateway:{__version__}"
    assert "nodeSelector" not in only(objects, "Deployment", "-cpu")["spec"]["template"]["spec"]
    assert yaml.safe_load((ROOT / "deploy" / "local" / "kind.yaml").read_text())["kind"] == "Cluster"
