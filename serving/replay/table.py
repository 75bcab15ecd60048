"""The summary for people's terminals; nothing in it leaves out that a run is simulated or invalid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serving.replay.report import Estimate, Report, Stage

_MOST_COLUMNS = 4


def print_report(report: Report, console: Console) -> None:
    """Head, one column a stage, and what is wrong."""
    console.print(Text.assemble((report.title, "bold"), f" on {report.engine.model} at {report.options.url}"))
    for line in banners(report):
        console.print(Text(line, style="bold red" if line.startswith("INVALID") else "bold yellow"))
    console.print(_wide(report.stages) if len(report.stages) <= _MOST_COLUMNS else _long(report.stages))
    if report.found is not None:
        console.print(Text(found_line(report), style="bold"))
    for line in [*unchecked(report), *report.notes]:
        console.print(Text(f"· {line}"))


def _wide(stages: Sequence[Stage]) -> Table:
    """A column a stage."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for stage in stages:
        table.add_column(stage.label, justify="right")
    for name, cells in rows(stages):
        table.add_row(name, *cells)
    return table


def _long(stages: Sequence[Stage]) -> Table:
    """A line a stage, without intervals; the page has all of it."""
    table = Table(box=None, pad_edge=False)
    titles = ("", "ok", "output tok/s", "TTFT p50", "TTFT p99", "per token p50", "end p50", "good", "$/M output", "valid")
    for title in titles:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for stage in stages:
        cost = stage.money.per_million_output_tokens
        table.add_row(
            stage.label,
            f"{stage.finished_ok} of {stage.requests}",
            figure(_point(stage.output_tokens_per_second)),
            *(seconds(_point(found)) for found in (stage.ttft.p50, stage.ttft.p99, stage.tpot.p50, stage.e2e.p50)),
            "–" if stage.good_share is None else f"{stage.good_share:.0%}",
            "unknown" if cost.value is None else figure(_point(cost)),
            "yes" if stage.is_valid else "NO",
        )
    return table


def _point(estimate: Estimate) -> Estimate:
    return Estimate(value=estimate.value)


def banners(report: Report) -> list[str]:
    """What must be said before any figure."""
    lines = []
    if report.simulated is not None:
        lines.append(f"SIMULATED: the engine is simulated ({report.simulated}); nothing here is a measurement of hardware")
    if report.options.scale != 1:
        lines.append(f"SCALED: all lengths are × {report.options.scale:g}; figures of another scale cannot be compared")
    lines += [f"INVALID: {fault}" for fault in report.faults]
    return lines


def unchecked(report: Report) -> list[str]:
    """What could not be looked at."""
    return list(dict.fromkeys(check.said for stage in report.stages for check in stage.checks if check.passed is None))


def found_line(report: Report) -> str:
    found = report.found
    assert found is not None
    if found.requests_per_second is None:
        return "no rate that was tried meets the objectives"
    above = "none above it was tried" if found.failed_at is None else f"{found.failed_at:.4g} does not"
    return f"highest rate that meets the objectives: {found.requests_per_second:.4g} requests/s ({above})"


def rows(stages: Sequence[Stage]) -> list[tuple[str, list[str]]]:
    """Name and a cell for each stage."""
    makers: tuple[tuple[str, Callable[[Stage], str]], ...] = (
        ("measured requests", lambda s: f"{s.finished_ok} of {s.requests}"),
        ("requests/s", lambda s: figure(s.requests_per_second)),
        ("output tokens/s", lambda s: figure(s.output_tokens_per_second)),
        ("prompt tokens/s", lambda s: figure(s.prompt_tokens_per_second)),
        ("TTFT mean", lambda s: seconds(s.ttft.mean)),
        ("TTFT p50", lambda s: seconds(s.ttft.p50)),
        ("TTFT p99", lambda s: seconds(s.ttft.p99)),
        ("time per output token p50", lambda s: seconds(s.tpot.p50)),
        ("time per output token p99", lambda s: seconds(s.tpot.p99)),
        ("end to end p50", lambda s: seconds(s.e2e.p50)),
        ("cached, wanted", lambda s: f"{_share(s.cached_share)}, {s.wanted_cached_share:.1%}"),
        ("met the objectives", lambda s: "no objectives" if s.good_share is None else f"{s.good_share:.1%}"),
        (
            "$/M output tokens",
            lambda s: "unknown" if s.money.dollars_per_hour is None else figure(s.money.per_million_output_tokens),
        ),
        ("$/M tokens", lambda s: "unknown" if s.money.dollars_per_hour is None else figure(s.money.per_million_tokens)),
        ("of the roofline", lambda s: "unknown" if s.roofline.share is None else f"{s.roofline.share:.1%}"),
        ("client: CPU, late p99", lambda s: f"{s.client_cpu_share:.0%}, {max(_late(s)) * 1000:.1f} ms"),
        ("valid", lambda s: "yes" if s.is_valid else "NO"),
    )
    return [(name, [make(stage) for stage in stages]) for name, make in makers]


def _late(stage: Stage) -> list[float]:
    return [stage.client_lag_seconds["timer_p99"], stage.client_lag_seconds["sent_p99"]]


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def figure(estimate: Estimate) -> str:
    """A figure with its interval."""
    if estimate.value is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return short(estimate.value)
    return f"{short(estimate.value)} ({short(estimate.low)}–{short(estimate.high)})"


def seconds(estimate: Estimate) -> str:
    """In milliseconds below ten seconds."""
    if estimate.value is None:
        return "–"
    unit, factor = (" s", 1.0) if estimate.value >= 10 else (" ms", 1000.0)
    scaled = Estimate(
        value=estimate.value * factor,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
    )
    return figure(scaled) + unit


def short(value: float) -> str:
    """Four digits, with separators where there are more."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
