"""A comparison as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from serving.catalog.model import Model
from serving.catalog.plan import Wishes
from serving.catalog.side_by_side import Row

TITLES = (
    "profile or target",
    "format",
    "spread",
    "KV tokens",
    "requests",
    "bound",
    "expected",
    "$/M out",
    "W/(tok/s)",
    "known by",
)
WORDS = (0, 1, 2, 9)
"""Columns that hold words."""
GAP = "  "


def table_lines(model: Model, wishes: Wishes, rows: list[Row]) -> Iterator[str]:
    """What runs, cheapest first; then what does not, with the reason."""
    workload = wishes.workload
    yield (
        f"{model.name}: {workload.prompt_tokens:,} prompt and {workload.output_tokens:,} output tokens, "
        f"{workload.cached_share:.0%} of the prompt cached"
    )
    running = [row for row in rows if row.plan.runs]
    cells = [TITLES, *(_cells(row) for row in running)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(TITLES))]
    for line in cells if running else []:
        yield _aligned(line, widths)
    if running:
        yield ""
        yield "bound, expected: output tokens/s of a node. The bound is the hardware's; what is expected was published, or is a"
        yield "share of the bound, and was measured by nobody here unless it says so. Dollars at the catalog's prices or yours:"
        yield "the whole price of the node over its output; what output alone uses of a machine (serving fleet, /ui) is less."
    for row in rows:
        yield from (f"{row.name}: {note}" for note in row.plan.notes)
    for row in rows:
        if not row.plan.runs:
            yield f"{row.name}: does not run: {row.verdict}"


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = zip(line, widths, strict=True)
    return GAP.join(c.ljust(w) if place in WORDS else c.rjust(w) for place, (c, w) in enumerate(cells)).rstrip()


def figure(value: float | None, form: str) -> str:
    """A number, or a dash where it is not known."""
    return "–" if value is None else format(value, form)


def _cells(row: Row) -> tuple[str, ...]:
    plan = row.plan
    used = plan.used
    nodes = f", {used.nodes_per_engine} nodes" if used.nodes_per_engine > 1 else f" ×{used.engines_per_node}"
    return (
        row.name,
        plan.load.checkpoint.format,
        f"{used.parallel}{nodes}",
        f"{used.device.kv_tokens:,}",
        str(used.requests),
        figure(row.bound_per_node, ",.0f"),
        figure(row.throughput_per_node, ",.0f"),
        figure(row.dollars, ".3f"),
        figure(plan.joules_per_output_token, ".2f"),
        plan.throughput.kind if plan.throughput else "–",
    )
