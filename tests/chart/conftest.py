"""The chart under Helm 3 and 4, with the profiles that ship and with made-up ones for accelerators."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from serving.catalog.load import load_catalog
from serving.catalog.records import Format
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
    },
    "nvidia-test": {
        "vendor": "nvidia",
        "engine_build": "cuda",
        "nodes": {
            "resource": "nvidia.com/gpu",
            "selector": {"nvidia.com/gpu.product": "NVIDIA-B200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    },
}
"""Targets that no catalog has yet: enough of them for their profiles to be rendered."""


def catalog_with_accelerators(folder: Path) -> Path:
    """The shipped catalog and a profile of 8 accelerators for each made-up target, named as the target."""
    root = copy_of_catalog(folder)
    common = {
        "accelerators_per_node": 8,
        "memory_bytes": 10**11,
        "memory_bandwidth_bytes_per_second": 10**12,
        "peak_flops": {"bf16": 1e15},
        "formats": {name: {"support": "native", "computes_in": "bf16"} for name in get_args(Format)},
        "kv_formats": ["bf16"],
        "pod": {"supplemental_groups": [44], "shared_memory_bytes": 2**33},
        "sources": {"nodes": "made up"},
        "description": "made up",
    }
    images = []
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
            "arguments": {"tensor-parallel-size": 8},
            "memory": {"overhead_bytes": 10**10},
            "host": {"cpu_cores": 8, "shared_memory_bytes": 2**33},
        }
        (root / "profiles" / f"{name}.yaml").write_text(json.dumps(profile))
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
    for name in ACCELERATORS:
        (chart / "files" / "profiles" / f"{name}.json").write_text(json.dumps(render_profile(catalog, name)))
    return chart


@pytest.fixture
def mixed_chart(tmp_path: Path) -> Path:
    return chart_with_accelerators(tmp_path)


MIXED_POOLS = [
    {"name": "amd", "profile": "amd-test", "replicas": 2},
    {"name": "nvidia", "profile": "nvidia-test"},
    {"name": "cpu", "profile": "smollm2-135m-cpu", "replicas": 3},
]
EVERYTHING_ON = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
}
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "no pools": {"pools": []},
    "mixed pools": {"pools": MIXED_POOLS},
    "monitoring": {"monitoring": EVERYTHING_ON},
    "no dashboard": {"monitoring": {"dashboard": {"enabled": False}}},
    "keys and secrets": {
        "gateway": {"apiKey": {"existingSecret": "keys"}},
        "engineSecret": {"existingSecret": "mine"},
        "hub": {"existingSecret": "hub", "endpoint": "https://hub.test"},
        "global": {"imageRegistry": "registry.test/team", "imagePullSecrets": ["pull"]},
        "serviceAccount": {"annotations": {"a/b": "c"}},
    },
    "tenants": {
        "gateway": {
            "database": {"existingSecret": "database"},
            "keys": {"existingSecret": "keys", "fileKey": "keys"},
            "settings": {
                "tenants": {
                    "red": {"models": ["smollm2-135m-instruct"], "limits": {"requests_per_minute": 60}, "tags": {"a": "b"}}
                },
                "prices": {"models": {"smollm2-135m-instruct": {"prompt": 0.1, "output": 1}}},
                "ledger": {"retention_days": 90},
            },
        },
    },
    "a pool with everything its own": {
        "pools": [
            {
                "name": "own",
                "profile": "smollm2-135m-cpu",
                "replicas": 0,
                "image": {"registry": "mirror.test", "digest": "sha256:" + "b" * 64},
                "resources": {"requests": {"cpu": 1.5, "memory": "3Gi"}, "limits": {"memory": "4Gi"}},
                "nodeSelector": {},
                "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}],
                "affinity": {"nodeAffinity": {}},
                "runtimeClassName": "nvidia",
                "environment": {"VLLM_LOGGING_LEVEL": "DEBUG", "HOME": "/tmp"},
                "extraArguments": ["--seed", "1"],
                "startupSeconds": 3600,
                "modelVolume": {"persistentVolumeClaim": {"claimName": "models"}},
                "fetch": False,
            }
        ]
    },
    "names": {"gateway": {"discovery": "dns"}},
    "rights from elsewhere": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "mine"}},
    "gateway settings": {
        "gateway": {
            "replicas": 3,
            "settings": {
                "limits": {"body_bytes": 67_108_864, "parameters": {"max_tokens": 1000}},
                "relay": {"idle_timeout_seconds": 1.5, "keep_alive_comment_seconds": 15},
                "auth": {"keys": [{"tenant": "a", "sha256": "a" * 64}]},
                "logging": {"level": "debug", "access": False},
            },
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"some/key": "value"}},
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
        }
    },
}
"""The matrix: values by what they are for."""
