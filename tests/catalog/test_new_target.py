"""A kind of hardware that nobody has heard of is one YAML file: it is listed, linted, planned, rendered and installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from serving.catalog.lint import lint
from serving.catalog.load import load_catalog
from serving.catalog.plan import plan_profile
from serving.catalog.render import render_profile
from serving.catalog.side_by_side import side_by_side
from tests.doubles.catalogs import copy_of_catalog
from tests.doubles.tools import CHART, Helm, container, only

TARGET = """
name: quux-9
description: A wafer of the Quux company, four to a node
vendor: quux
architecture: q9
engine_build: rocm # its plug-in rides on that image
accelerators_per_node: 4
memory_bytes: 400_000_000_000
memory_bandwidth_bytes_per_second: 12_000_000_000_000
peak_flops: {fp4: 20.0e+15, fp8: 10.0e+15, bf16: 5.0e+15}
power_watts: 1500
formats:
  bf16: {support: native, computes_in: bf16}
  int8: {support: refused, why: no unit for it}
  int4: {support: refused, why: no unit for it}
  fp8: {support: native, computes_in: fp8}
  mxfp4: {support: native, computes_in: fp4}
  mxfp4-w4a16: {support: native, computes_in: fp8}
  nvfp4: {support: emulated, computes_in: bf16}
kv_formats: [bf16, fp8]
price: {dollars_per_accelerator_hour: 4.00, date: 2026-11, source: the company's list}
nodes:
  resource: quux.example/wafer
  selector: {quux.example/model: "9"}
  tolerations:
    - {key: quux.example/wafer, operator: Exists, effect: NoSchedule}
pod: {supplemental_groups: [7], shared_memory_bytes: 8_589_934_592}
sources:
  memory_bytes: the company's data sheet
  memory_bandwidth_bytes_per_second: the company's data sheet
  peak_flops: the company's data sheet
  power_watts: the company's data sheet
"""
PROFILE = """
name: glm-5.2-mxfp4-quux-9
description: GLM-5.2 on four wafers
target: quux-9
model: glm-5.2
checkpoint: mxfp4
status: untested
engine_version: 0.31.0
arguments: {tensor-parallel-size: 4, kv-cache-dtype: fp8, max-model-len: 32768, max-num-seqs: 64}
memory: {overhead_bytes: 256_000_000_000}
host: {cpu_cores: 32}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = copy_of_catalog(tmp_path)
    (root / "targets" / "quux-9.yaml").write_text(TARGET)
    return root


def test_one_file_is_enough_to_be_linted_and_compared(root: Path) -> None:
    assert [entry for entry in lint(root)[0] if entry.level == "error"] == []
    catalog = load_catalog(root)
    for model in catalog.models.values():
        (row,) = side_by_side(catalog, model, [catalog.targets["quux-9"]])
        assert row.plan.runs
        assert row.name == "quux-9 (planned)"
        assert row.dollars is not None and row.bound_per_node is not None


@pytest.mark.chart
def test_with_a_profile_it_is_planned_rendered_and_installed(root: Path, tmp_path: Path) -> None:
    """The code and the templates are as they were."""
    (root / "profiles" / "glm-5.2-mxfp4-quux-9.yaml").write_text(PROFILE)
    assert [entry for entry in lint(root)[0] if entry.level == "error"] == []
    catalog = load_catalog(root)
    profile = catalog.profiles["glm-5.2-mxfp4-quux-9"]
    assert plan_profile(catalog, profile).runs
    rendered = render_profile(catalog, profile.name)
    assert rendered["priors"]["dollars_per_accelerator_hour"] == 4.0
    assert rendered["priors"]["accelerators"] == 4
    assert rendered["price_dollars_per_node_hour"] == 16.0
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    (chart / "files" / "profiles" / f"{profile.name}.json").write_text(json.dumps(rendered))
    pool = {"name": "new", "profile": profile.name, "fetch": False, "weights": {"node": {"path": "/models"}}}
    workload = only(Helm("helm-4").template({"pools": [pool]}, chart=chart), "Deployment", "-new")
    pod = workload["spec"]["template"]["spec"]
    assert container(workload)["resources"]["limits"]["quux.example/wafer"] == 4
    assert pod["nodeSelector"] == {"quux.example/model": "9"}
    assert pod["tolerations"][0]["key"] == "quux.example/wafer"
    assert pod["securityContext"]["supplementalGroups"] == [7]
