"""The chart under Helm 3 and 4, with the profiles that ship and with made-up ones for accelerators."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.catalog.load import load_catalog
from serving.catalog.render import render_profile
from tests.doubles.catalogs import copy_of_catalog
from tests.doubles.tools import CHART, HELMS, Helm


@pytest.fixture(params=HELMS)
def helm(request: pytest.FixtureRequest) -> Helm:
    return Helm(request.param)


@pytest.fixture
def helm_4() -> Helm:
    return Helm("helm-4")


ACCELERATORS: dict[str, dict[str, Any]] = {
    "amd-test": {
        "vendor": "amd",
        "engine_build": "rocm",
        "nodes": {
            "resource": "amd.com/gpu",
            "selector": {"amd.com/gpu.product-name": "AMD_Instinct_MI355_OAM"},
            "tolerations": [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "pod": {"supplemental_groups": [44, 109], "waits_for_memory": True},
    },
    "nvidia-test": {
        "vendor": "nvidia",
        "engine_build": "cuda",
        "nodes": {
            "resource": "nvidia.com/gpu",
            "selector": {"nvidia.com/gpu.product": "NVIDIA-B200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "pod": {"capabilities": ["IPC_LOCK"]},
    },
}
"""Targets that no catalog has yet: enough of them for their profiles to be rendered."""


def catalog_with_accelerators(folder: Path) -> Path:
    """The shipped catalog and two profiles for each made-up target: 8 accelerators, named as the target; two nodes, with a -2."""
    root = copy_of_catalog(folder)
    common = {"accelerators_per_node": 8, "memory_bytes": 10**11, "native_formats": ["bf16"], "description": "made up"}
    images = []
    whole = {"tensor-parallel-size": 8, "max-num-seqs": 64}
    for name, target in ACCELERATORS.items():
        (root / "targets" / f"{name}.yaml").write_text(json.dumps({"name": name, **common, **target}))
        profile = {
            "name": name,
            "description": "made up",
            "target": name,
            "model": "smollm2-135m-instruct",
            "checkpoint": "bf16",
            "status": "untested",
            "engine_version": "0.32.0",
            "arguments": whole,
            "memory": {"overhead_bytes": 10**10},
            "host": {"cpu_cores": 8, "shared_memory_bytes": 2**33},
        }
        (root / "profiles" / f"{name}.yaml").write_text(json.dumps(profile))
        halves = {"name": f"{name}-2", "arguments": {**whole, "pipeline-parallel-size": 2, "nnodes": 2}}
        (root / "profiles" / f"{name}-2.yaml").write_text(json.dumps({**profile, **halves}))
        build = target["engine_build"]
        images.append(
            {
                "version": "0.32.0",
                "build": build,
                "registry": "docker.io",
                "repository": f"made-up/{build}",
                "tag": "v1",
                "digest": "sha256:" + "a" * 64,
            }
        )
    path = root / "engines" / "images.yaml"
    path.write_text(path.read_text() + "".join(f"  - {json.dumps(image)}\n" for image in images))
    return root


def chart_with_accelerators(folder: Path) -> Path:
    """A copy of the chart that has the made-up profiles, too."""
    catalog = load_catalog(catalog_with_accelerators(folder))
    chart = folder / "serving"
    shutil.copytree(CHART, chart)
    for name in (f"{target}{end}" for target in ACCELERATORS for end in ("", "-2")):
        (chart / "files" / "profiles" / f"{name}.json").write_text(json.dumps(render_profile(catalog, name)))
    return chart


@pytest.fixture
def mixed_chart(tmp_path: Path) -> Path:
    return chart_with_accelerators(tmp_path)


MIXED_POOLS = [
    {"name": "amd", "profile": "amd-test", "replicas": 2},
    {"name": "nvidia", "profile": "nvidia-test"},
    {"name": "nodes", "profile": "nvidia-test-2", "replicas": 2},
    {"name": "cpu", "profile": "smollm2-135m-cpu", "replicas": 3},
]
EVERYTHING_ON = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
}
VALUES: dict[str, dict[str, Any]] = {
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*.yaml"))},
    "mixed pools": {"pools": MIXED_POOLS},
    "mixed and scaled": {
        "pools": [
            {"name": pool["name"], "profile": pool["profile"], "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
            for pool in MIXED_POOLS
        ],
        "autoscaling": {"prometheus": {"address": "http://prometheus.monitoring.svc:9090"}},
    },
    "mixed and shared": {
        "pools": [
            {
                **pool,
                "weights": {"claim": {"name": "models", "accessMode": "ReadWriteMany"}},
                "compiled": {"node": {"path": "/var/lib/serving"}},
            }
            for pool in MIXED_POOLS
        ]
    },
}
"""The matrix: values by what they are for. Those of `ci/` are on the profile that ships for everybody."""
