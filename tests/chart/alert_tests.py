"""An alert's test as promtool reads it: what is scraped, and who rings when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fires:
    """A run in which an alert rings. `value` is what the description says of it, in words."""

    alert: str
    series: Mapping[str, str]
    """Series and its values, one a minute, as `0+60x30`."""
    minutes: int
    """After how long it is looked at."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the alert, without its severity."""
    value: str = ""


@dataclass(frozen=True)
class Quiet:
    """A run in which it does not, and why it should not."""

    alert: str
    why: str
    series: Mapping[str, str]
    minutes: int


def promtool_test(case: Fires | Quiet, rule: Mapping[str, Any]) -> dict[str, Any]:
    expected = []
    if isinstance(case, Fires):
        labels = dict(case.labels) | rule["labels"]
        texts = {name: _said(text, case) for name, text in rule["annotations"].items()}
        expected = [{"exp_labels": labels, "exp_annotations": texts}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": f"{case.minutes}m", "alertname": case.alert, "exp_alerts": expected}],
    }


def _said(text: str, case: Fires) -> str:
    """The annotation with its labels and its value put in."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: case.labels[match[1]], text)
    return re.sub(r"\{\{ \$value [^}]*\}\}", case.value, text)
