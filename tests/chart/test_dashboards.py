"""The dashboards are ones that Grafana knows, and each of their series is one that the gateway, vLLM or a rule gives."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from serving.catalog.load import load_catalog
from serving.observability.series import GROUPS
from tests.chart.dashboards import (
    ALERTS,
    BOARDS,
    RECORDING,
    alerts,
    dashboard,
    panel_queries,
    panels,
    recorded,
    rules,
    series_named,
    variable_queries,
)
from tests.doubles.catalogs import SHIPPED
from tests.doubles.tools import ROOT, Helm, only

EACH = pytest.mark.parametrize("name", sorted(BOARDS))
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "unknown": ("_total", "")}


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


def test_there_are_five() -> None:
    assert set(BOARDS) == {"overview", "targets", "routing", "tenants", "engines"}


@EACH
def test_grafana_knows_every_field(name: str) -> None:
    register_default_plugins()
    given = dashboard(name)
    assert lost(given, json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))) == []
    assert lost({"a": [{"b": 1}]}, {"a": [{}]}) == [".a[0].b"]


@EACH
def test_every_panel_says_what_it_shows_and_in_what_unit(name: str) -> None:
    for panel in panels(name):
        assert len(panel["description"]) > 20 and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@EACH
def test_panels_do_not_overlap_and_are_named_once(name: str) -> None:
    every = dashboard(name)["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in panels(name)}) == len(panels(name))
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_each_question_is_answered_by_one_of_them() -> None:
    asked = ("Is it up?", "Why is it slow?", "Who uses it?", "what does it cost?", "Which target is better")
    for question in asked:
        found = [name for name in BOARDS if question in dashboard(name)["description"]]
        assert len(found) == 1, question


def test_every_choice_narrows_the_queries() -> None:
    for name in BOARDS:
        chosen = [variable["name"] for variable in dashboard(name)["templating"]["list"] if variable["type"] == "query"]
        expressions = [target["expr"] for panel in panels(name) for target in panel["targets"]]
        for variable in chosen:
            assert any(f"${variable}" in expression for expression in expressions), f"{name}: {variable}"
        for expression in expressions:
            assert '"$namespace"' in expression, f"{name}: {expression}"


def exported() -> set[str]:
    """The names of all samples: the gateway's, those of the vLLM versions in the catalog, and those that rules record."""
    kinds = {series.name: series.kind for group in GROUPS.values() for series in group}
    for vocabulary in load_catalog(SHIPPED).vocabularies.values():
        kinds |= vocabulary.metrics
    names = set(recorded())
    for name, kind in kinds.items():
        suffixes = SUFFIXES.get(kind, ("",))
        names |= {name if suffix == "_total" and name.endswith("_total") else name + suffix for suffix in suffixes}
    return names


def expressions() -> list[str]:
    return [
        *(asked.expression for asked in panel_queries()),
        *(matcher for matcher, _ in variable_queries()),
        *(rule["expr"] for path in (RECORDING, ALERTS) for rule in rules(path)),
    ]


def test_every_series_is_exported() -> None:
    known = exported()
    for expression in expressions():
        assert series_named(expression) <= known, f"{expression}: {series_named(expression) - known}"
    assert "serving_no_such_total" not in known


def test_every_recorded_series_is_used_or_documented() -> None:
    used = {name for expression in expressions() for name in series_named(expression)}
    documented = (ROOT / "deploy" / "observability" / "README.md").read_text()
    assert [name for name in recorded() if name not in used and name not in documented] == []


def test_the_catalog_watches_the_names_that_are_taken_from_vllm() -> None:
    """`serving lint` then says when another version of vLLM has renamed one."""
    watched = set(yaml.safe_load((ROOT / "configs" / "engines" / "metrics.yaml").read_text())["names"])
    asked = {name for each in expressions() for name in series_named(each) if name.startswith("vllm:")}
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert {name for name in named if name not in watched and name.removesuffix("_total") not in watched} == set()


def test_runbooks_name_panels_that_there_are() -> None:
    titles = {panel["title"] for name in BOARDS for panel in panels(name)}
    for path in (ROOT / "docs" / "runbooks").glob("*.md"):
        for title in re.findall(r"\*\*([^*]+)\*\*", path.read_text()):
            assert " ".join(title.split()) in titles, f"{path.name}: {title}"


@pytest.mark.chart
@EACH
def test_the_chart_delivers_it(helm: Helm, name: str) -> None:
    config_map = only(helm.template({}), "ConfigMap", f"-dashboard-{name}")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config_map["data"][f"serving-{name}.json"]) == dashboard(name)


@pytest.mark.chart
def test_the_chart_delivers_the_rules(helm: Helm) -> None:
    rule = only(helm.template({"monitoring": {"rules": {"enabled": True}}}), "PrometheusRule", "-serving")
    groups = [group for path in (ALERTS, RECORDING) for group in yaml.safe_load(path.read_text())["groups"]]
    assert rule["spec"] == {"groups": groups}


def test_links_of_the_plain_file_are_completed_as_its_page_says(tmp_path: Path) -> None:
    plain = ROOT / "deploy" / "observability"
    (command,) = re.findall(r"```bash\n(sed .*?)```", (plain / "README.md").read_text(), re.DOTALL)
    shutil.copytree(plain / "rules", tmp_path / "rules")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    said = [rule["annotations"] for rule in rules(tmp_path / "rules" / "alerts.yaml")]
    assert len(said) == len(alerts())
    for links_of in said:
        assert links_of["runbook_url"].startswith("https://docs.example/runbooks/")
        assert links_of["dashboard_url"].startswith("https://grafana.example/d/serving-")


@pytest.mark.chart
def test_links_lead_to_where_the_values_say(helm: Helm) -> None:
    links = {"enabled": True, "runbooks": "https://docs.example/runbooks/", "grafana": "https://grafana.example/"}
    rule = only(helm.template({"monitoring": {"rules": links}}), "PrometheusRule", "-serving")
    said = {each["alert"]: each["annotations"] for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each}
    assert set(said) == set(alerts())
    for links_of in said.values():
        assert links_of["runbook_url"].startswith("https://docs.example/runbooks/")
        assert links_of["dashboard_url"].startswith("https://grafana.example/d/serving-")
