"""`serving explain`: a recorded decision of routing as a table, and what would have been decided otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from serving.core.printable import printable
from serving.decision_file import COST_NUMBERS, NUMBERS, TEXTS, NoDecision, read_decision
from serving.setting_types import RequestClass

COLUMNS = (*TEXTS, *NUMBERS)
PIPE_COLUMNS = 200
"""Width of a table that is not read on a terminal."""


def explain(
    file: Annotated[
        Path,
        typer.Argument(help="What x-serving-decision said, an answer's head, or spans as OTLP JSON; - reads standard input."),
    ],
    record: Annotated[Path | None, typer.Option(help="Write the decision to this file, to be explained later.")] = None,
    trace: Annotated[str, typer.Option(help="Of spans: the id of the request's trace; else the last decision.")] = "",
    request_class: Annotated[RequestClass | None, typer.Option("--class", help="What if it were of this class?")] = None,
    without: Annotated[list[str] | None, typer.Option(help="What if this endpoint were away? May be repeated.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="POOL=DOLLARS: what if an hour of one of its engines cost this? May be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show why an engine was chosen: each candidate with its cached tokens, seconds and dollars.

    A decision with a record (traces have it; for the header send `x-serving-explain: KEY; record`) also tells what the dollars
    are made of, and can be asked what would have been decided otherwise.
    """
    try:
        decision = read_decision(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes(), trace)
        if record is not None:
            record.write_bytes(orjson.dumps(decision, option=orjson.OPT_APPEND_NEWLINE))
        shown = _asked_again(decision, request_class, without or [], _prices(price or []))
    except (OSError, NoDecision) as error:
        raise typer.BadParameter(printable(f"{file}: {error}")) from None
    if as_json:
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
    else:
        _print(shown)


def _prices(given: list[str]) -> dict[str, float]:
    """Raises: NoDecision, naming what is wrong with one."""
    prices = {}
    for text in given:
        pool, _, dollars = text.rpartition("=")
        try:
            prices[pool] = float(dollars)
        except ValueError:
            prices[pool] = -1.0
        if not pool or not 0 <= prices[pool] < float("inf"):
            raise NoDecision(f"--price {text}: must be POOL=DOLLARS, as spot=36")
    return prices


def _asked_again(
    decision: dict[str, Any], request_class: RequestClass | None, without: list[str], prices: dict[str, float]
) -> dict[str, Any]:
    """The decision with all that follows from its record. Raises: NoDecision."""
    is_otherwise = bool(request_class or without or prices)
    if "record" not in decision:
        if is_otherwise:
            raise NoDecision(
                "holds no record, from which alone follows what would have been otherwise; traces have one, and the header "
                "where it was asked for as `x-serving-explain: KEY; record`"
            )
        return decision
    from serving.routing.cost import OBJECTIVES
    from serving.routing.record import Recorded
    from serving.routing.record_fields import NotRecorded

    try:
        recorded = Recorded(decision["record"])
    except NotRecorded as error:
        raise NoDecision(f"its record cannot be read: {error}") from None
    _check_names("--without", without, [each.name for each in recorded.endpoints])
    _check_names("--price", list(prices), [each.pool for each in recorded.endpoints])
    if set(without) >= {each.name for each in recorded.endpoints}:
        raise NoDecision("--without: no candidate would be left")
    objective = None if request_class is None else OBJECTIVES[request_class]
    try:
        endpoints, scores = recorded.scores(objective=objective, without=without, dollars_per_hour=prices)
    except NotRecorded as error:
        raise NoDecision(f"its record cannot be read: {error}") from None
    rows: list[dict[str, Any]] = []
    for endpoint, first, dollars, detail in zip(endpoints, scores.first, scores.dollars, scores.detail or (), strict=True):
        row = {"endpoint": endpoint.name, "pool": endpoint.pool, "cached_tokens": round(detail.cached_tokens)}
        seconds = {"wait_seconds": detail.wait_seconds, "ttft_seconds": first, "latency_seconds": detail.latency_seconds}
        row |= {name: round(value, 4) for name, value in {**seconds, "busy_seconds": detail.busy_seconds}.items()}
        row["dollars"] = float(f"{dollars:.4g}")
        rows.append(row | {name: float(f"{getattr(detail, name):.4g}") for name in COST_NUMBERS})
    rows.sort(key=lambda row: row["dollars"])
    again = {**decision, "candidates": rows}
    return again | {"would_be_chosen": rows[0]["endpoint"]} if is_otherwise else again


def _check_names(option: str, given: list[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise NoDecision(f"{option}: {name!r} is none of {', '.join(sorted(set(known)))}")


def _print(decision: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{decision['chosen']} was chosen: {decision['reason']}"
    if "would_be_chosen" in decision:
        title += f"; {decision['would_be_chosen']} would cost least"
    table = Table(title=printable(title))
    rows = decision.get("candidates", ())
    has_costs = any(COST_NUMBERS[0] in row for row in rows)
    columns = [name for name in COLUMNS if has_costs or name not in COST_NUMBERS]
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name in TEXTS else "right")
    for row in rows:
        table.add_row(*(printable(row.get(name, "")) for name in columns))
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, markup=False, emoji=False).print(table)
