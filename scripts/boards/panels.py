"""Grafana's panels and dashboards, as far as ours use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
LEAST = {"percentunit": 0.05, "s": 0.01, "currencyUSD": 0.01}
"""The end of an axis on which everything is 0, by unit; Grafana's own would be 100."""
RED, GREEN = "red", "green"


@dataclass(frozen=True)
class Query:
    """An expression of PromQL and how its series are named in the legend."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture. `width` and `height` are in cells of Grafana's grid of 24 columns."""

    kind: str
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    width: int
    height: int
    defaults: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    transformations: tuple[dict[str, Any], ...] = ()
    overrides: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Row:
    """A heading over the panels that follow it."""

    title: str


@dataclass(frozen=True)
class Variable:
    """A choice of label values, each offered from those that the series has under the choices before it."""

    name: str
    label: str
    series: str
    several: bool = True


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    items: tuple[Panel | Row, ...]

    def panel_ids(self) -> dict[str, int]:
        """By title; headings have ids of their own."""
        return {item.title: number for number, item in enumerate(self.items, 1) if isinstance(item, Panel)}


def lines(
    title: str, description: str, unit: str, *queries: Query, width: int = 8, height: int = 7, most: float | None = None
) -> Panel:
    """A graph of lines over time; `most` fixes the end of its axis."""
    return _graph(title, description, unit, queries, width, height, most, {"fillOpacity": 5, "lineWidth": 1})


def stacked(title: str, description: str, unit: str, *queries: Query, width: int = 8, height: int = 7) -> Panel:
    """A graph of parts that make up a whole."""
    custom = {"fillOpacity": 40, "lineWidth": 1, "stacking": {"mode": "normal", "group": "A"}}
    return _graph(title, description, unit, queries, width, height, None, custom)


def stepped(title: str, description: str, unit: str, *queries: Query, width: int = 8, height: int = 7) -> Panel:
    """A graph of states that hold until they change."""
    custom = {"lineInterpolation": "stepAfter", "fillOpacity": 10, "lineWidth": 1}
    return _graph(title, description, unit, queries, width, height, None, custom)


def _graph(
    title: str,
    description: str,
    unit: str,
    queries: tuple[Query, ...],
    width: int,
    height: int,
    most: float | None,
    custom: dict[str, Any],
) -> Panel:
    defaults: dict[str, Any] = {"custom": {**custom, "showPoints": "never", "axisSoftMax": LEAST.get(unit, 1)}, "min": 0}
    if most is not None:
        defaults["max"] = most
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, description, unit, queries, width, height, defaults, options)


def stat(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: Sequence[tuple[float | None, str]] = ((None, "text"),),
    width: int = 3,
    height: int = 4,
    decimals: int | None = None,
) -> Panel:
    """The last value, in the colour of the highest of `steps` that it reaches."""
    defaults: dict[str, Any] = {
        "thresholds": {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]},
        "color": {"mode": "thresholds"},
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "auto",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "auto",
    }
    return Panel("stat", title, description, unit, queries, width, height, defaults, options)


def bars(
    title: str, description: str, unit: str, *queries: Query, width: int = 6, height: int = 6, decimals: int | None = None
) -> Panel:
    """The last values beside each other."""
    defaults: dict[str, Any] = {"min": 0, "color": {"mode": "palette-classic"}}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "showUnfilled": True,
        "minVizWidth": 8,
        "minVizHeight": 16,
        "namePlacement": "top",
        "text": {"titleSize": 14, "valueSize": 22},
    }
    return Panel("bargauge", title, description, unit, queries, width, height, defaults, options)


def table(
    title: str,
    description: str,
    columns: Sequence[tuple[Query, str]],
    key: str,
    *,
    width: int = 24,
    height: int = 8,
) -> Panel:
    """A line for each value of the label `key`, a column for each query with its unit; the legend is the column's heading."""
    queries = tuple(query for query, _ in columns)
    names = {f"Value #{chr(65 + number)}": query.legend for number, query in enumerate(queries)}
    overrides = tuple(
        {"matcher": {"id": "byName", "options": query.legend}, "properties": [{"id": "unit", "value": unit}]}
        for query, unit in columns
    )
    transformations = (
        {"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True} | {f"Time {number}": True for number in range(1, len(queries) + 1)},
                "renameByName": names,
                "indexByName": {},
            },
        },
    )
    panel = Panel("table", title, description, "short", queries, width, height)
    options = {"showHeader": True, "cellHeight": "sm"}
    return replace(panel, transformations=transformations, overrides=overrides, options=options)


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["serving", "vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "links": [_link_to_the_others()],
        "annotations": {"list": []},
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *_variables(dashboard.variables)]},
        "panels": list(_placed(dashboard.items)),
    }


def _link_to_the_others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Serving",
        "tags": ["serving"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "options": [],
        "refresh": 1,
        "regex": "",
        "includeAll": False,
        "multi": False,
        "hide": 0,
        "skipUrlSync": False,
    }


def _variables(variables: Sequence[Variable]) -> list[dict[str, Any]]:
    """Each narrowed by those before it that are labels of the same series."""
    made: list[dict[str, Any]] = []
    before: list[Variable] = []
    for variable in variables:
        matchers = ", ".join(f'{each.name}=~"${each.name}"' for each in before if each.series == variable.series)
        series = variable.series + (f"{{{matchers}}}" if matchers else "")
        label = "target" if variable.name == "baseline" else variable.name
        made.append(_variable(variable, f"label_values({series}, {label})"))
        if variable.several:
            before.append(variable)
    return made


def _variable(variable: Variable, query: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"includeAll": False, "multi": False, "current": {}}
    if variable.several:
        everything = {"text": ["All"], "value": ["$__all"]}
        chosen = {"includeAll": True, "allValue": ".*", "multi": True, "current": everything}
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": variable.name},
        **chosen,
        "options": [],
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "skipUrlSync": False,
        "regex": "",
    }


def _placed(items: Sequence[Panel | Row]) -> list[dict[str, Any]]:
    """From left to right; what does not fit begins a new line under the highest of the last one."""
    made: list[dict[str, Any]] = []
    x = y = tallest = 0
    for number, item in enumerate(items, 1):
        if isinstance(item, Row):
            y, x, tallest = y + tallest, 0, 0
            place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            made.append({"id": number, "type": "row", "title": item.title, "collapsed": False, "gridPos": place, "panels": []})
            y += 1
            continue
        if x + item.width > COLUMNS:
            y, x, tallest = y + tallest, 0, 0
        made.append(_panel(item, number, {"x": x, "y": y, "w": item.width, "h": item.height}))
        x, tallest = x + item.width, max(tallest, item.height)
    return made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.defaults}, "overrides": list(panel.overrides)},
        "options": panel.options,
        "targets": [_target(panel, query, chr(65 + place)) for place, query in enumerate(panel.queries)],
    }
    if panel.transformations:
        made["transformations"] = list(panel.transformations)
    return made


def _target(panel: Panel, query: Query, name: str) -> dict[str, Any]:
    is_table = panel.kind == "table"
    shape = {"range": False, "instant": True, "format": "table"} if is_table else {"range": True}
    return {"refId": name, "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend, **shape}
