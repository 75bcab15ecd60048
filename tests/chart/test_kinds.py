"""What is rendered is what Kubernetes knows: kinds and fields of three versions, and the operator's own definitions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.chart.conftest import MIXED_POOLS, VALUES
from tests.doubles.tools import ROOT, Helm, Refused

pytestmark = pytest.mark.chart
NEWEST = kubernetes_validate.latest_version()
VERSIONS = ("1.28.0", "1.31.0", NEWEST)
DEFINITIONS = [folder / "shared" / "crds" for folder in ROOT.parents]
"""Where the operator's CustomResourceDefinitions lie, if they do: they are not ours to keep."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kinds_and_fields_are_those_of_kubernetes(mixed_chart: Path, values: dict[str, Any], version: str) -> None:
    helm = Helm("helm-3" if version == "1.28.0" else "helm-4")
    objects = helm.template(values, "--kube-version", version, chart=mixed_chart)
    assert objects
    for each in objects:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(each, version, strict=True)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match="incompatible with Kubernetes"):
        helm.template({}, "--kube-version", "1.27.0")


def test_a_wrong_field_would_be_seen(helm_4: Helm) -> None:
    workload = next(each for each in helm_4.template() if each["kind"] == "Deployment")
    workload["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(workload, NEWEST, strict=True)


def closed(schema: Any) -> Any:
    """A definition's schema that forbids what it does not name, as the API server's pruning would drop it."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    out = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        out["properties"] = {key: closed(value) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
            out["additionalProperties"] = False
    return out


@cache
def definition(kind: str) -> dict[str, Any]:
    folder = next((folder for folder in DEFINITIONS if folder.is_dir()), None)
    if folder is None:
        pytest.skip("the CustomResourceDefinitions are not here: put them into shared/crds beside or above the checkout")
    crd = yaml.safe_load((folder / f"{kind.lower()}s.yaml").read_text())
    version = next(each for each in crd["spec"]["versions"] if each["name"] == "v1")
    schema: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def check(custom: dict[str, Any]) -> None:
    """Raises: jsonschema.ValidationError. The definition is not checked itself: its patterns are Go's."""
    jsonschema.Draft7Validator(definition(custom["kind"])).validate(custom)


def test_monitors_and_rules_are_those_of_the_operator(helm: Helm, mixed_chart: Path) -> None:
    objects = helm.template({"pools": MIXED_POOLS, **VALUES["monitoring"]}, chart=mixed_chart)
    found = [each for each in objects if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert len(found) == 3
    for each in found:
        check(each)


def test_a_wrong_field_of_a_monitor_would_be_seen(helm_4: Helm) -> None:
    monitor = next(each for each in helm_4.template(VALUES["monitoring"]) if each["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["honorLabel"] = True
    with pytest.raises(jsonschema.ValidationError, match="honorLabel"):
        check(monitor)
