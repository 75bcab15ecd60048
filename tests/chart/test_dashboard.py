"""The dashboard is one that Grafana knows, and each of its series is one that the gateway or vLLM exports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from serving.catalog.load import load_catalog
from serving.settings import Settings
from tests.chart.dashboards import RULES, alerts, dashboard, panel_queries, series_named, variable_queries
from tests.doubles.catalogs import SHIPPED
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.tools import Helm, only

WANTED = {"Requests", "Errors", "Time to first token", "Prompt tokens", "Output tokens", "Cache hit rate", "Running", "Waiting"}


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What Grafana's own model does not know of a document."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            found
            for key, value in given.items()
            for found in (lost(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"])
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [found for place, pair in enumerate(zip(given, kept, strict=True)) for found in lost(*pair, f"{path}[{place}]")]
    return [] if given == kept else [f"{path}: {given!r} became {kept!r}"]


def test_grafana_knows_every_field() -> None:
    register_default_plugins()
    given = dashboard()
    assert lost(given, json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))) == []
    assert lost({"a": [{"b": 1}]}, {"a": [{}]}) == [".a[0].b"]


def test_the_wanted_panels_are_there_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert {panel["title"] for panel in panels} >= WANTED
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(cells)) == len(cells)
    assert all(p["gridPos"]["w"] == 8 and p["gridPos"]["h"] == 8 and p["gridPos"]["x"] in (0, 8, 16) for p in panels)


async def exported() -> set[str]:
    """The names of all series: the gateway's own, and those of the vLLM versions in the catalog, as samples are named."""
    names: set[str] = set()
    async with RunningGateway(Settings.model_validate({})) as gateway:
        for family in gateway.app.metrics.registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            names |= {family.name + suffix for suffix in suffixes}
    for vocabulary in load_catalog(SHIPPED).vocabularies.values():
        for name, kind in vocabulary.metrics.items():
            names.add(name if kind != "counter" or name.endswith("_total") else f"{name}_total")
    return names


async def test_every_series_is_exported() -> None:
    known = await exported()
    asked = [expression for _, expression in panel_queries()]
    asked += [matcher for _, matcher, _ in variable_queries()] + [rule["expr"] for rule in alerts()]
    for expression in asked:
        named = series_named(expression)
        assert named and named <= known, f"{expression}: {named - known}"


def test_variables_are_asked_for_in_every_query() -> None:
    for title, expression in panel_queries():
        assert 'namespace=~"$namespace"' in expression, title
        assert '"$model"' in expression, title


@pytest.mark.chart
def test_the_chart_delivers_it(helm: Helm) -> None:
    config_map = only(helm.template({}), "ConfigMap", "-dashboard")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config_map["data"]["serving.json"]) == dashboard()


@pytest.mark.chart
def test_the_chart_delivers_the_rules(helm: Helm) -> None:
    import yaml

    rule = only(helm.template({"monitoring": {"rules": {"enabled": True}}}), "PrometheusRule", "-serving")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
