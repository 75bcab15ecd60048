"""What a dashboard and the rules ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.doubles.tools import CHART

DASHBOARD = CHART / "files" / "dashboards" / "serving.json"
RULES = CHART / "files" / "rules" / "serving.yaml"


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


def panel_queries() -> list[tuple[str, str]]:
    """Title and expression of every target."""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]]


def variable_queries() -> list[tuple[str, str, str]]:
    """Name of each variable, what it matches and the label whose values it lists."""
    found = []
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match, variable
            found.append((variable["name"], match[1], match[2]))
    return found


def substituted(expression: str, *, window: str) -> str:
    """With every value of each variable, as Grafana sends it for `All`."""
    out = expression.replace("$__rate_interval", window)
    for name in ("namespace", "model"):
        out = out.replace(f"${name}", ".*")
    assert "$" not in out, expression
    return out


def alerts() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def series_named(expression: str) -> set[str]:
    """The names of series in an expression: what begins as ours or vLLM's do."""
    return set(re.findall(r"\b(?:serving_|vllm:)\w+", expression))
