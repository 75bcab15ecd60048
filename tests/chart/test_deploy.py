"""What releases and local clusters are made with: the files agree with the chart, and their shell is shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from serving import __version__
from serving.catalog.load import load_catalog
from tests.chart.conftest import MIXED_POOLS
from tests.chart.test_kinds import CUSTOM, NEWEST
from tests.doubles.catalogs import SHIPPED
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
    objects = Helm("helm-4").template({"global": {"imageVariant": "hardened"}}, chart=chart)
    assert container(only(objects, "Deployment", "-cpu"))["image"].startswith("registry.test/team/serving-engine-cpu:")
    assert container(only(Helm("helm-4").template(chart=chart), "Deployment", "-cpu"))["image"].startswith("docker.io/vllm/")
    (pushed,) = [re.findall(r"docker push \"([^\"]+)\"", step) for step in steps() if "docker push" in step]
    assert pushed == ["$REGISTRY/serving-gateway:$VERSION"]


@pytest.mark.chart
def test_the_local_cluster_takes_the_image_that_is_loaded(helm: Helm) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "local" / "values.yaml").read_text())
    objects = helm.template(values, release="serving")
    assert container(only(objects, "Deployment", "-gateway"))["image"] == f"serving-gateway:{__version__}"
    assert "nodeSelector" not in only(objects, "Deployment", "-cpu")["spec"]["template"]["spec"]
    assert container(only(objects, "Deployment", "-sim"))["command"][:2] == ["serving", "sim"]
    assert yaml.safe_load((ROOT / "deploy" / "local" / "kind.yaml").read_text())["kind"] == "Cluster"


OVERLAYS = sorted(path.parent.name for path in (ROOT / "deploy").glob("*/values.yaml"))


@pytest.mark.chart
@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_goes_beside_any_pools(helm: Helm, name: str) -> None:
    path = ROOT / "deploy" / name / "values.yaml"
    overlay = yaml.safe_load(path.read_text())
    objects = helm.template({"pools": MIXED_POOLS}, "--values", str(path))
    assert len([each for each in objects if each["kind"] in ("Deployment", "LeaderWorkerSet")]) == len(MIXED_POOLS) + 1
    for each in objects:
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, NEWEST, strict=True)
    if name != "local":
        assert overlay.keys() == {"gateway"}, "an overlay holds what differs between clusters, and pools are the user's"


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "local"])
def test_a_page_names_targets_and_labels_that_the_catalog_has(name: str) -> None:
    page = (ROOT / "deploy" / name / "README.md").read_text()
    assert f"[`{name}`]({name}/README.md)" in (ROOT / "deploy" / "README.md").read_text()
    catalog = load_catalog(SHIPPED)
    for target in re.findall(r"`((?:rocm|cuda)-[a-z0-9]+)`", page):
        assert target in catalog.targets
    for target in re.findall(r"^\| `((?:rocm|cuda)-[a-z0-9]+)` \| `([^`]+)` \|", page, re.MULTILINE):
        assert any(value in target[1] for value in catalog.targets[target[0]].nodes.selector.values()), target
