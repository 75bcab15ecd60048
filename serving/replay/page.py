"""The report as one HTML page that needs nothing else: figures, plots, checks, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from serving.replay.plots import Axis, Line, plot
from serving.replay.report import Check, Estimate, Report, Stage
from serving.replay.table import banners, figure, found_line, rows, seconds

_MOST_POINTS = 120
_SHOWN_STAGES = 6

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#5b6570;--rule:#d9dde2;--bad:#b3261e;
--warn:#8a5a00;
--k0:#2563a8;--k1:#c2571a;--k2:#2e8b57;--k3:#8a4fa3;--k4:#a3822a;--k5:#4b7f8c}
@media(prefers-color-scheme:dark){:root{--ground:#14171b;--card:#1c2127;--ink:#e8eaed;--soft:#9aa4af;--rule:#333a42;--bad:#ff8a80;
--warn:#f0c36d;--k0:#6aa9ee;--k1:#f09557;--k2:#6fcf97;--k3:#c99be0;--k4:#dcc06a;--k5:#86bccb}}
*{box-sizing:border-box}body{margin:0 auto;max-width:76rem;padding:1.2rem;background:var(--ground);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:1.6rem 0 .6rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.banner{border-left:4px solid var(--warn);padding:.4rem .8rem;margin:.5rem 0;background:var(--card)}
.banner.bad{border-color:var(--bad)}.banner b{color:var(--warn)}.banner.bad b{color:var(--bad)}
.grid-of-plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border-radius:8px;padding:.7rem}
figcaption{font-weight:600;font-size:.95rem;margin-bottom:.3rem}
svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .label{fill:var(--ink)}
.grid{stroke:var(--rule);stroke-width:1;fill:none}.window{fill:var(--rule);opacity:.35}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}.span{stroke-width:1.5;opacity:.7}
.c0{stroke:var(--k0)}.c1{stroke:var(--k1)}.c2{stroke:var(--k2)}.c3{stroke:var(--k3)}.c4{stroke:var(--k4)}.c5{stroke:var(--k5)}
.dot.c0{fill:var(--k0)}.dot.c1{fill:var(--k1)}.dot.c2{fill:var(--k2)}.dot.c3{fill:var(--k3)}
.dot.c4{fill:var(--k4)}.dot.c5{fill:var(--k5)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;margin:.6rem 0 1rem}
.tile{background:var(--card);border-radius:8px;padding:.6rem .8rem}.tile b{display:block;font-size:1.25rem}
.tile span{color:var(--soft);font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .8rem .25rem 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child{text-align:left}
td.said{text-align:left;white-space:normal;min-width:15rem}.no{color:var(--bad);font-weight:600}
code,pre{font:.85rem/1.4 ui-monospace,monospace}
pre{background:var(--card);padding:.7rem;border-radius:8px;overflow-x:auto;white-space:pre-wrap;
word-break:break-word}
"""


def write_page(report: Report, path: Path) -> None:
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """The whole page."""
    stages = report.stages
    mark = "".join(f"{word} · " for word, holds in (("INVALID", not report.is_valid), ("SIMULATED", report.simulated)) if holds)
    parts = [
        f"<h1>{escape(report.title)} on {escape(report.engine.model)}</h1>",
        f'<p class="soft">{escape(report.options.url)} · {escape(report.created)} · {escape(report.profile.description)}</p>',
        *(_banner(line) for line in banners(report)),
        f"<p><b>{escape(found_line(report))}</b></p>" if report.found is not None else "",
        _tiles(report),
        f'<div class="grid-of-plots">{"".join(_plots(report))}</div>',
        "<h2>Figures</h2>",
        _figures(stages),
        "<h2>Checks</h2>",
        *(_checks(stage) for stage in stages),
        _again(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{mark}{escape(report.title)}, {escape(report.engine.model)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _banner(line: str) -> str:
    word, _, rest = line.partition(":")
    return f'<div class="banner{" bad" if word == "INVALID" else ""}"><b>{escape(word)}</b>{escape(rest)}</div>'


def _tiles(report: Report) -> str:
    """Of the stage that made the most tokens a second."""
    best = max(report.stages, key=lambda stage: stage.output_tokens_per_second.value or 0.0)
    money = best.money
    tiles = [
        ("output tokens/s", figure_of(best.output_tokens_per_second)),
        ("TTFT, median", seconds_of(best.ttft.p50)),
        ("time per output token, median", seconds_of(best.tpot.p50)),
        ("cached of the prompt", "unknown" if best.cached_share is None else f"{best.cached_share:.1%}"),
        (
            "$ per million output tokens",
            "unknown" if money.dollars_per_hour is None else figure_of(money.per_million_output_tokens),
        ),
    ]
    note = f'<p class="soft">of the load with the most output, {escape(best.label)}:</p>' if len(report.stages) > 1 else ""
    return (
        f'{note}<div class="tiles">'
        + "".join(f'<div class="tile"><b>{escape(v)}</b><span>{n}</span></div>' for n, v in tiles)
        + "</div>"
    )


def figure_of(estimate: Estimate) -> str:
    return figure(Estimate(value=estimate.value))


def seconds_of(estimate: Estimate) -> str:
    return seconds(Estimate(value=estimate.value))


def _plots(report: Report) -> list[str]:
    stages = _shown(report.stages)
    has_curve = len(report.stages) > 1
    figures = [
        ("Time to first token", plot(_shares(stages, "ttft"), Axis("milliseconds"), Axis("share of requests", 0, 1))),
        ("Time per output token", plot(_shares(stages, "tpot"), Axis("milliseconds"), Axis("share of requests", 0, 1))),
        ("Output over time (the window is shaded)", _over_time(stages)),
        ("Throughput and latency", _curve(report.stages)) if has_curve else ("Requests in time", _in_time(report.stages[0])),
        ("Dollars and latency", _dollars(report.stages)),
    ]
    return [f"<figure><figcaption>{title}</figcaption>{svg}</figure>" for title, svg in figures]


def _shown(stages: Sequence[Stage]) -> list[Stage]:
    """At most six, from the lowest to the highest."""
    if len(stages) <= _SHOWN_STAGES:
        return list(stages)
    last = len(stages) - 1
    return [stages[round(place * last / (_SHOWN_STAGES - 1))] for place in range(_SHOWN_STAGES)]


def _shares(stages: Sequence[Stage], column: str) -> list[Line]:
    """How many requests were at least so fast."""
    lines = []
    for stage in stages:
        ordered = sorted(value * 1000 for value in getattr(stage.columns, column) if value is not None)
        count = len(ordered)
        places = sorted({round(number * (count - 1) / _MOST_POINTS) for number in range(_MOST_POINTS + 1)}) if count else []
        lines.append(Line(_name(stage, stages), [(ordered[place], (place + 1) / count) for place in places]))
    return lines


def _name(stage: Stage, stages: Sequence[Stage]) -> str:
    return stage.label if len(stages) > 1 else ""


def _over_time(stages: Sequence[Stage]) -> str:
    lines = []
    for stage in stages:
        timeline = stage.timeline
        width = timeline.slice_seconds
        points = [
            ((timeline.first_slice + place + 0.5) * width, tokens / width) for place, tokens in enumerate(timeline.output_tokens)
        ]
        lines.append(Line(_name(stage, stages), points))
    window = (0.0, max((stage.window_seconds for stage in stages), default=0.0))
    return plot(lines, Axis("seconds since the window began"), Axis("output tokens/s", 0), shaded=window)


def _curve(stages: Sequence[Stage]) -> str:
    """Each stage a point: what came out, and how long the first token took."""
    lines = []
    ordered = sorted(stages, key=lambda stage: stage.offered)
    for name, place, dashed in (("median", "p50", False), ("99 %", "p99", True)):
        points, spans = [], []
        for stage in ordered:
            found: Estimate = getattr(stage.ttft, place)
            if found.value is not None and stage.output_tokens_per_second.value is not None:
                points.append((stage.output_tokens_per_second.value, found.value * 1000))
                spans.append(_span(found, 1000))
        lines.append(Line(name, points, spans, has_dots=True, is_dashed=dashed))
    return plot(lines, Axis("output tokens/s", 0), Axis("TTFT, milliseconds", 0))


def _in_time(stage: Stage) -> str:
    columns = stage.columns
    points = [(at, value * 1000) for at, value in zip(columns.intended, columns.ttft, strict=True) if value is not None]
    step = max(1, len(points) // 600)
    return plot(
        [Line("", points[::step], has_dots=True, has_line=False)],
        Axis("seconds since the window began"),
        Axis("TTFT, milliseconds", 0),
    )


def _dollars(stages: Sequence[Stage]) -> str:
    if all(stage.money.dollars_per_hour is None for stage in stages):
        return (
            '<p class="soft">No price was given, so there are no dollars: '
            "<code>--price-per-hour</code>, or <code>--target</code> with a price.</p>"
        )
    points, spans = [], []
    for stage in sorted(stages, key=lambda stage: stage.offered):
        cost = stage.money.per_million_output_tokens
        if cost.value is not None and stage.e2e.p50.value is not None:
            points.append((stage.e2e.p50.value, cost.value))
            spans.append(_span(cost, 1))
    return plot([Line("", points, spans, has_dots=True)], Axis("end to end, median, seconds", 0), Axis("$ / M output tokens", 0))


def _span(estimate: Estimate, factor: float) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low * factor, estimate.high * factor)


def _figures(stages: Sequence[Stage]) -> str:
    head = "".join(f"<th>{escape(stage.label)}</th>" for stage in stages)
    lines = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for name, cells in rows(stages)
    )
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{lines}</table></div>'


def _checks(stage: Stage) -> str:
    lines = "".join(_check(check) for check in stage.checks)
    return f'<div class="scroll"><table><tr><th>{escape(stage.label)}</th><th></th><th></th></tr>{lines}</table></div>'


def _check(check: Check) -> str:
    word = {True: "passed", False: '<span class="no">FAILED</span>', None: "not known"}[check.passed]
    return f'<tr><td>{escape(check.name)}</td><td>{word}</td><td class="said">{escape(check.said)}</td></tr>'


def _again(report: Report) -> str:
    engine = report.engine
    facts = [
        f"serving {report.serving_version}, Python {report.python}, {report.machine} (the client's)",
        f"engine: version {engine.version or 'unknown'}, fingerprints {', '.join(engine.fingerprints) or 'none'}",
        f"cache blocks of {_count(engine.block_tokens)} tokens, {_count(engine.kv_capacity_tokens)} tokens in all",
        f"price: {report.stages[0].money.source}",
        *_rooflines(report.stages),
        f"seed {report.options.seed}, nonce {report.nonce}, profile {report.profile_sha256[:16]}",
        report.statistics,
        *report.notes,
    ]
    return (
        "<h2>How it was made</h2>"
        + "".join(f"<p>{escape(fact)}</p>" for fact in facts)
        + "<p>Run it again: <code>serving replay --repeat</code> with the JSON file beside this page. It was started by:</p>"
        + f"<pre>serving {escape(shlex.join(report.argv))}</pre>"
    )


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def _rooflines(stages: Sequence[Stage]) -> list[str]:
    """One line where it is the same for all loads, as when it is not known."""
    if len({stage.roofline.said for stage in stages}) == 1:
        return [f"roofline: {stages[0].roofline.said}"]
    return [f"roofline, {stage.label}: {stage.roofline.said}" for stage in stages]
