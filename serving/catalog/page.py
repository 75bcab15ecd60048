"""A comparison as one HTML page that needs nothing from outside: two plots, a table that becomes cards on a phone, the words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from serving.catalog.model import Model
from serving.catalog.plan import Wishes
from serving.catalog.plan_text import limit_of
from serving.catalog.side_by_side import Row
from serving.catalog.table_text import figure

WIDTH = 360
"""Units of a plot. That is a phone's width, so that its letters keep their size there and grow elsewhere."""
ROW_HEIGHT = 44
BAR_HEIGHT = 14
SEGMENTS = (("weights", "weights"), ("beside", "activations and the rest"), ("kv", "KV cache"))

STYLE = Path(__file__).with_name("page.css")

DISCLAIMER = (
    "Planned from public figures and arithmetic: no accelerator was used. Published throughput was reproduced by nobody here, "
    "and assumed throughput is a share of what the hardware allows."
)

Column = tuple[str, Callable[[Row], str], bool]
"""Title, cell, and whether it holds words."""
COLUMNS: tuple[Column, ...] = (
    ("Profile or target", lambda row: row.name, True),
    ("Weights in", lambda row: row.plan.load.checkpoint.format, True),
    ("Spread", lambda row: spread(row), True),
    ("KV tokens of an engine", lambda row: f"{row.plan.used.device.kv_tokens:,}", False),
    ("Requests that fit", lambda row: f"{row.plan.used.requests:,}", False),
    ("Bound, output tokens/s a node", lambda row: figure(row.bound_per_node, ",.0f"), False),
    ("Expected, output tokens/s a node", lambda row: figure(row.throughput_per_node, ",.0f"), False),
    ("Dollars a node and hour", lambda row: figure(_node_dollars(row), ",.2f"), False),
    ("Dollars per million output tokens", lambda row: figure(row.dollars, ",.3f"), False),
    ("Watts per output token/s", lambda row: figure(row.plan.joules_per_output_token, ".2f"), False),
    ("Known by", lambda row: row.plan.throughput.kind if row.plan.throughput else "–", True),
)


def page(model: Model, wishes: Wishes, rows: list[Row]) -> str:
    """The whole document."""
    running = [row for row in rows if row.plan.runs]
    workload = wishes.workload
    about = (
        f"Requests of {workload.prompt_tokens:,} prompt tokens and {workload.output_tokens:,} output tokens, "
        f"{workload.cached_share:.0%} of the prompt cached."
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(model.name)} side by side</title>",
            f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body>",
            f"<h1>{escape(model.name)}, side by side</h1>",
            f"<p>{escape(model.description)}.</p>",
            f"<p>{about} <span class=dim>{DISCLAIMER}</span></p>",
            *_plots(running),
            *_table(running),
            *_failing([row for row in rows if not row.plan.runs]),
            *_notes(running),
            "</body></html>",
            "",
        ]
    )


def spread(row: Row) -> str:
    """How an engine is divided, and how many of it a node runs or how many nodes it takes."""
    used = row.plan.used
    where = f"{used.nodes_per_engine} nodes" if used.nodes_per_engine > 1 else f"{used.engines_per_node} a node"
    return f"{used.parallel}, {where}"


def _node_dollars(row: Row) -> float | None:
    each = row.plan.dollars_per_accelerator_hour
    return None if each is None else each * row.plan.target.accelerators_per_node


def _plots(rows: list[Row]) -> Iterator[str]:
    priced = [row for row in rows if row.dollars is not None]
    sized = [row for row in rows if row.plan.used.device.capacity_bytes]
    yield "<div class=plots>"
    if priced:
        yield "<section><h2>Dollars per million output tokens</h2>"
        yield "<p class=dim>Filled: published or measured throughput. Dashed: assumed.</p>"
        yield _bars("Dollars per million output tokens", priced, _cost_bar, max(row.dollars or 0 for row in priced))
        yield "</section>"
    if sized:
        key = " ".join(f'<b><span class="{name}"></span>{words}</b>' for name, words in SEGMENTS)
        yield f"<section><h2>Memory of one accelerator</h2><p class='key dim'>{key}</p>"
        most = max((row.plan.used.device.capacity_bytes or 0) / 1e9 for row in sized)
        yield _bars("Memory of one accelerator in gigabytes", sized, _memory_bar, most)
        yield "</section>"
    yield "</div>"


def _bars(title: str, rows: list[Row], draw: Callable[[Row, float, float], Iterator[str]], most: float) -> str:
    """A row of text above each bar. `draw` gets the row, the top of its bar and units for one of its figures."""
    height = len(rows) * ROW_HEIGHT
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for place, row in enumerate(rows):
        top = place * ROW_HEIGHT
        parts.append(f'<text x="0" y="{top + 14}">{escape(row.name)}</text>')
        parts += draw(row, top + 20, WIDTH / most)
    return "".join([*parts, "</svg>"])


def _cost_bar(row: Row, top: float, scale: float) -> Iterator[str]:
    dollars = row.dollars or 0.0
    kind = "assumed" if row.plan.throughput and row.plan.throughput.kind == "assumed" else "cost"
    inset = 0.75 if kind == "assumed" else 0  # half of the stroke
    yield f'<text x="{WIDTH}" y="{top - 6}" text-anchor="end">{dollars:.2f}</text>'
    yield (
        f'<rect class="{kind}" x="{inset}" y="{top + inset}" width="{max(1.0, dollars * scale - 2 * inset):.1f}" '
        f'height="{BAR_HEIGHT - 2 * inset}" rx="2"/>'
    )


def _memory_bar(row: Row, top: float, scale: float) -> Iterator[str]:
    device = row.plan.used.device
    sizes = (device.weights_bytes, device.overhead_bytes, device.kv_bytes)
    capacity = (device.capacity_bytes or 0) / 1e9
    yield f'<rect class="room" x="0.5" y="{top + 0.5}" width="{capacity * scale - 1:.1f}" height="{BAR_HEIGHT - 1}"/>'
    left = 0.0
    for (name, words), size in zip(SEGMENTS, sizes, strict=True):
        width = size / 1e9 * scale
        about = f"<title>{words}: {size / 1e9:.1f} GB</title>"
        yield f'<rect class="{name}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}">{about}</rect>'
        left += width
    room = f"{sizes[2] / 1e9:.0f} GB for KV, of {capacity:.0f}"
    yield f'<text class="dim" x="{WIDTH}" y="{top - 6}" text-anchor="end">{room}</text>'


def _table(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "<h2>All figures</h2><table><thead><tr>"
    for title, _, words in COLUMNS:
        yield f"<th{' class=words' if words else ''}>{escape(title)}</th>"
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = [
            f'<td{" class=words" if words else ""} data-label="{escape(title)}">{escape(cell(row))}</td>'
            for title, cell, words in COLUMNS
        ]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _failing(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield "<h2>What does not run</h2><ul>"
        for row in rows:
            yield f"<li><b>{escape(row.name)}</b>: <span class=bad>does not run.</span> {escape(row.verdict)}</li>"
        yield "</ul>"


def _notes(rows: list[Row]) -> Iterator[str]:
    yield "<h2>Where the figures come from</h2><ul>"
    for row in rows:
        plan = row.plan
        known = plan.throughput.label if plan.throughput else plan.bound_problem or "nothing is known"
        limit = f" The bound is set by {limit_of(plan.used.bound)}." if plan.used.bound else ""
        price = "".join(f" Note: {note}." for note in plan.notes) + f" Price: {plan.price_source}."
        yield f"<li><b>{escape(row.name)}</b>: {escape(known)}.{escape(limit)}<small>{escape(price)}</small></li>"
    yield "</ul><p class=dim>The bound leaves out traffic between accelerators, launches, sampling and draft layers. It is what"
    yield "no engine can exceed, and not what one reaches.</p>"
