"""The chart under Helm 3 and 4, with the profiles that ship."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.tools import CHART, HELMS, Helm


@pytest.fixture(params=HELMS)
def helm(request: pytest.FixtureRequest) -> Helm:
    return Helm(request.param)


@pytest.fixture
def helm_4() -> Helm:
    return Helm("helm-4")


def altered_chart(folder: Path, profile: str, alter: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the chart in which one profile is another."""
    chart = folder / "serving"
    shutil.copytree(CHART, chart)
    path = chart / "files" / "profiles" / f"{profile}.json"
    rendered = json.loads(path.read_text())
    alter(rendered)
    path.write_text(json.dumps(rendered))
    return chart


def outside_the_pod(settings: dict[str, Any]) -> dict[str, Any]:
    """A gateway's settings for a machine that has none of the pod's files and variables."""
    relay = {name: value for name, value in settings["relay"].items() if name != "engine_secret_file"}
    auth = {"key_secret": "from the environment", **settings.get("auth", {})}
    made = settings | {"relay": relay, "auth": auth}
    if "peers" in settings:
        peers = {name: value for name, value in settings["peers"].items() if name != "secret_file"}
        made["peers"] = peers | {"secret": "from a file of the pod"}
    if "quality" in settings:
        made["quality"] = {name: value for name, value in settings["quality"].items() if name not in ("references", "eject")}
    return made


COMMIT = "a" * 40
"""Of a hub's repository that the catalog pins no commit of."""
MIXED_POOLS = [
    {"name": "mi355x", "profile": "glm-5.2-mxfp4-mi355x", "revision": COMMIT, "replicas": 2},
    {"name": "b200", "profile": "glm-5.2-nvfp4-b200", "revision": COMMIT},
    {"name": "mi300x", "profile": "deepseek-r1-fp8-mi300x", "revision": COMMIT},
    {"name": "h100", "profile": "deepseek-r1-fp8-h100", "revision": COMMIT, "replicas": 2},
    {"name": "epyc", "profile": "smollm2-135m-epyc-9005", "replicas": 3},
]
"""A release on five kinds of hardware, one of them with two nodes for each engine."""
EVERYTHING_ON = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
}
VALUES: dict[str, dict[str, Any]] = {
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*.yaml"))},
    "mixed": {"pools": MIXED_POOLS},
    "mixed and scaled": {
        "pools": [
            {key: value for key, value in pool.items() if key != "replicas"}
            | {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
            for pool in MIXED_POOLS
        ],
        "autoscaling": {"prometheus": {"address": "http://prometheus.monitoring.svc:9090"}},
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
"""The matrix: values by what they are for. Those of `ci/` are on the profile that ships for everybody."""
