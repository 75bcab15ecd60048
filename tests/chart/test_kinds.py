"""What is rendered is what Kubernetes knows: kinds and fields of three versions, and the operator's own definitions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from serving.catalog.load import load_catalog
from tests.chart.conftest import COMMIT, VALUES
from tests.doubles.catalogs import SHIPPED
from tests.doubles.tools import CHART, Helm, Refused, only, pod_templates

pytestmark = pytest.mark.chart
NEWEST = kubernetes_validate.latest_version()
CUSTOM = ("HTTPRoute", "LeaderWorkerSet", "PodMonitor", "PrometheusRule", "ScaledObject")
CATALOG = load_catalog(SHIPPED)
FIRST_PROFILES = {CATALOG.profiles[name].target: name for name in sorted(CATALOG.profiles, reverse=True)}
VERSIONS = ("1.28.0", "1.31.0", NEWEST)
DEFINITIONS = Path(__file__).with_name("definitions")
"""Schemas of the operators' CustomResourceDefinitions, made by scripts/snapshot_definitions.py."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kinds_and_fields_are_those_of_kubernetes(values: dict[str, Any], version: str) -> None:
    helm = Helm("helm-3" if version == "1.28.0" else "helm-4")
    objects = helm.template(values, "--kube-version", version)
    assert objects
    for each in objects:
        if each["kind"] not in CUSTOM:
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
def definition(kind: str) -> tuple[str, dict[str, Any]]:
    """The apiVersion of a kind, and its schema."""
    found = json.loads((DEFINITIONS / f"{kind}.json").read_text())
    schema: dict[str, Any] = closed(found["schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return found["apiVersion"], schema


def check(custom: dict[str, Any]) -> None:
    """Raises: a ValidationError of one of the two. The definition is not checked itself: its patterns are Go's."""
    api_version, schema = definition(custom["kind"])
    assert custom["apiVersion"] == api_version
    jsonschema.Draft7Validator(schema).validate(custom)
    for template in pod_templates(custom):
        spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
        holder = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "holder"}, "spec": spec}
        kubernetes_validate.validate(holder, NEWEST, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_custom_resources_are_those_of_their_operators(helm_4: Helm, values: dict[str, Any]) -> None:
    for each in helm_4.template(values):
        if each["kind"] in CUSTOM:
            check(each)


def test_the_matrix_has_all_custom_resources(helm_4: Helm) -> None:
    rendered = [helm_4.template(VALUES[name]) for name in ("entries", "mixed and scaled", "monitoring")]
    assert {each["kind"] for objects in rendered for each in objects} >= set(CUSTOM)


def test_a_wrong_field_of_a_group_would_be_seen(helm_4: Helm) -> None:
    group = only(helm_4.template(VALUES["mixed"]), "LeaderWorkerSet", "-h100")
    check(group)
    group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]["argz"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="argz"):
        check(group)


def test_a_wrong_field_of_a_monitor_would_be_seen(helm_4: Helm) -> None:
    monitor = next(each for each in helm_4.template(VALUES["monitoring"]) if each["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["honorLabel"] = True
    with pytest.raises(jsonschema.ValidationError, match="honorLabel"):
        check(monitor)


def on_target(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """The same values with all pools on another profile."""
    pools = values.get("pools", [{"name": "cpu"}])
    moved = [{**pool, "profile": profile, "revision": COMMIT} for pool in pools]
    for pool in moved:
        pool.pop("resources", None)  # of another machine
    return {**values, "pools": moved}


@pytest.mark.parametrize(("target", "profile"), sorted(FIRST_PROFILES.items()))
def test_every_target_takes_every_kind_of_values(target: str, profile: str) -> None:
    three, four = Helm("helm-3"), Helm("helm-4")
    for values in (on_target(VALUES[path.stem], profile) for path in sorted((CHART / "ci").glob("*.yaml"))):
        objects = four.template(values)
        assert [(each["kind"], each["metadata"]["name"]) for each in objects] == [
            (each["kind"], each["metadata"]["name"]) for each in three.template(values)
        ]
        for each in objects:
            if each["kind"] in CUSTOM:
                check(each)
