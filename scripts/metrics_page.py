"""Writes docs/metrics.md from the definitions in serving/observability/series.

python scripts/metrics_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serving.observability.series import GROUPS, LABELS
from serving.observability.series.definition import Series

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = """\
# Metrics of the gateway

`GET /metrics`, at the operator's address where there is one (`server.operator_port`), as Prometheus text 0.0.4 whatever is
asked for: Prometheus 2.53 and later and 3.x read the same names from it. The engines have metrics of their own, which are
scraped from them.

Written by `scripts/metrics_page.py` from `serving/observability/series`; change it there.

**Label values** come from closed sets: names of the settings and words of the gateway, never what a client wrote. At 100
endpoints and 200 tenants a gateway exports fewer than 20,000 series. Histograms carry model and pool only; tenants and
endpoints have counters and gauges. What is unknown has no series, and is never 0.

**Several gateways.** *sum*: each counts its own part, so add them up. *max*: each says the same of the whole, so take
`max by (...)` and never add them up. *each*: it is about one gateway, or what that one sees.

A counter says 0 from the start where its labels are known by then. Times are intervals on a monotonic clock.
"""


def page() -> str:
    """The whole text."""
    return "\n".join([HEAD, *_labels(), *(line for title, group in GROUPS.items() for line in _group(title, group))])


def _labels() -> Iterator[str]:
    yield "## Labels"
    yield ""
    yield "| Label | Values |"
    yield "|---|---|"
    for name, words in LABELS.items():
        yield f"| `{name}` | {words} |"
    yield ""


def _group(title: str, group: tuple[Series, ...]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield "| Series | Kind | Labels | Gateways | What |"
    yield "|---|---|---|---|---|"
    for series in group:
        labels = ", ".join(f"`{label}`" for label in series.labels) or "none"
        words = series.documentation
        if series.bounds_seconds:
            words += f" Buckets from {series.bounds_seconds[0]:g} s to {series.bounds_seconds[-1]:g} s."
        yield f"| `{series.exposed}` | {series.kind} | {labels} | {series.over_gateways} | {words} |"
    yield ""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
