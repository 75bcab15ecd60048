"""What stands in files: dashboards as JSON, rules as YAML, once in deploy/observability and once in the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from .alerts import GROUPS as ALERT_GROUPS
from .alerts import Alert
from .engines import engines
from .overview import overview
from .panels import Dashboard, document
from .recording import GROUPS as RECORDING_GROUPS
from .recording import Recorded
from .routing import routing
from .targets import targets
from .tenants import tenants

DASHBOARDS: dict[str, Callable[[], Dashboard]] = {
    "overview": overview,
    "targets": targets,
    "routing": routing,
    "tenants": tenants,
    "engines": engines,
}
HEAD = "# Written by scripts/render_chart.py from scripts/boards; plain rules of Prometheus, which promtool and the chart read.\n"


def files(root: Path) -> dict[Path, str]:
    """Every file with its content."""
    boards = {name: make() for name, make in DASHBOARDS.items()}
    dashboards = {
        f"{name}.json": json.dumps(document(board), indent=2, ensure_ascii=False) + "\n" for name, board in boards.items()
    }
    rules = {
        "recording.yaml": _groups((name, map(_recorded, make())) for name, make in RECORDING_GROUPS.items()),
        "alerts.yaml": _groups((name, (_alert(each, boards) for each in make())) for name, make in ALERT_GROUPS.items()),
    }
    folders = (root / "deploy" / "observability", root / "helm" / "serving" / "files")
    return {
        folder / kind / name: text
        for folder in folders
        for kind, made in (("dashboards", dashboards), ("rules", rules))
        for name, text in made.items()
    }


def runbook(alert: str) -> str:
    """ServingEngineHung → engine-hung.md"""
    words = re.findall(r"[A-Z][a-z]+", alert.removeprefix("Serving"))
    return "-".join(words).lower() + ".md"


def _groups(groups: Iterable[tuple[str, Iterable[tuple[str, dict[str, Any]]]]]) -> str:
    text = [HEAD, "groups:\n"]
    for name, rules in groups:
        text.append(f"  - name: serving-{name}\n    rules:\n")
        for comment, rule in rules:
            if comment:
                text.append(f"      # {comment}\n")
            lines = yaml.safe_dump([rule], sort_keys=False, width=120, allow_unicode=True).splitlines()
            text += [f"      {line}\n" for line in lines]
    return "".join(text)


def _recorded(rule: Recorded) -> tuple[str, dict[str, Any]]:
    made: dict[str, Any] = {"record": rule.name, "expr": rule.expression}
    if rule.labels:
        made["labels"] = dict(rule.labels)
    return rule.why, made


def _alert(alert: Alert, boards: dict[str, Dashboard]) -> tuple[str, dict[str, Any]]:
    name, title = alert.panel
    board = boards[name]
    return "", {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"docs/runbooks/{runbook(alert.name)}",
            "dashboard_url": f"/d/{board.uid}?viewPanel={board.panel_ids()[title]}",
        },
    }
