"""What the dashboards and the rules ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.doubles.tools import CHART

BOARDS = {path.stem: path for path in sorted((CHART / "files" / "dashboards").glob("*.json"))}
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
RECORDING, ALERTS = CHART / "files" / "rules" / "recording.yaml", CHART / "files" / "rules" / "alerts.yaml"
SEVERAL = ("namespace", "model", "pool", "target", "tenant")
"""Variables that stand for any number of values."""


class Asked(NamedTuple):
    """A query of a panel."""

    board: str
    title: str
    expression: str


def dashboard(name: str) -> dict[str, Any]:
    return dict(json.loads(BOARDS[name].read_text()))


def panels(name: str) -> list[dict[str, Any]]:
    """Without the headings."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def panel_queries() -> list[Asked]:
    return [
        Asked(name, panel["title"], target["expr"]) for name in BOARDS for panel in panels(name) for target in panel["targets"]
    ]


def variable_queries() -> set[tuple[str, str]]:
    """What each variable matches, and the label whose values it lists."""
    found = set()
    for name in BOARDS:
        for variable in dashboard(name)["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                assert match, variable
                found.add((match[1], match[2]))
    return found


def substituted(expression: str, *, window: str, baseline: str = "") -> str:
    """With every value of each variable, as Grafana sends it for `All`."""
    out = expression.replace("$__rate_interval", window).replace("$__range", window).replace("$baseline", baseline)
    for name in SEVERAL:
        out = out.replace(f"${name}", ".*")
    assert "$" not in out, expression
    return out


def rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from group["rules"]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules(ALERTS)}


def recorded() -> dict[str, dict[str, Any]]:
    """By name; of several rules of one name, which differ in their labels, the last."""
    return {rule["record"]: rule for rule in rules(RECORDING)}


def series_named(expression: str) -> set[str]:
    """The names of series in an expression, of ours, of vLLM's and of those that rules record."""
    return set(re.findall(r"\b(?:serving:[\w:]+|serving_\w+|vllm:\w+)", expression)) - {"serving_"}
