"""Writes what tests need of other people's CustomResourceDefinitions into tests/chart/definitions/.

    python scripts/snapshot_definitions.py FOLDER        with KIND.yaml files as those projects release them

Keeps the schema of the stored version without its prose. A pod template inside is left out: tests check it with Kubernetes' own
schema, which knows more. Run it when a project has a new version that the chart should be checked against.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parent.parent / "tests" / "chart" / "definitions"
SOURCES = {
    "HTTPRoute": "https://github.com/kubernetes-sigs/gateway-api",
    "LeaderWorkerSet": "https://github.com/kubernetes-sigs/lws",
    "PodMonitor": "https://github.com/prometheus-operator/prometheus-operator",
    "PrometheusRule": "https://github.com/prometheus-operator/prometheus-operator",
    "ScaledObject": "https://github.com/kedacore/keda",
}
VERSION_MARKS = (
    "gateway.networking.k8s.io/bundle-version",
    "operator.prometheus.io/version",
    "app.kubernetes.io/version",
    "controller-gen.kubebuilder.io/version",
)
POD_TEMPLATES = ("leaderTemplate", "workerTemplate")


def snapshot(crd: dict[str, Any]) -> dict[str, Any]:
    """Kind, source and schema of one definition."""
    kind = crd["spec"]["names"]["kind"]
    marks = {**crd["metadata"].get("labels", {}), **crd["metadata"].get("annotations", {})}
    version = next(each for each in crd["spec"]["versions"] if each["storage"])
    return {
        "kind": kind,
        "apiVersion": f"{crd['spec']['group']}/{version['name']}",
        "source": SOURCES[kind],
        "said of its version": {mark: marks[mark] for mark in VERSION_MARKS if mark in marks},
        "schema": trimmed(version["schema"]["openAPIV3Schema"]),
    }


def trimmed(node: Any, *, names: bool = False) -> Any:
    """Without prose, and without pod templates. `names`: the keys of this mapping are names of properties."""
    if isinstance(node, list):
        return [trimmed(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if names and key in POD_TEMPLATES:
            out[key] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        elif names or key not in ("description", "x-kubernetes-validations"):
            out[key] = trimmed(value, names=key == "properties" and not names)
    return out


def main(folder: Path) -> None:
    OUT.mkdir(exist_ok=True)
    for kind in SOURCES:
        crd = yaml.safe_load((folder / f"{kind.lower()}s.yaml").read_text(encoding="utf-8"))
        path = OUT / f"{kind}.json"
        path.write_text(json.dumps(snapshot(crd), separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
        print(f"wrote {path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
