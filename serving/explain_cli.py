"""`serving explain`: a recorded decision of routing as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

COLUMNS = ("endpoint", "pool", "cached_tokens", "wait_seconds", "ttft_seconds", "latency_seconds", "busy_seconds", "dollars")


def explain(
    file: Annotated[Path, typer.Argument(help="What x-serving-decision said, in a file; - reads standard input.")],
) -> None:
    """Show why an engine was chosen: each candidate with its cached tokens, seconds and dollars."""
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        decision = _checked(orjson.loads(text.strip().removeprefix(b"x-serving-decision:")))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{decision['chosen']} was chosen: {decision['reason']}")
    for name in COLUMNS:
        table.add_column(name.replace("_", " "), justify="left" if name in ("endpoint", "pool") else "right")
    for row in decision.get("candidates", ()):
        table.add_row(*(str(row.get(name, "")) for name in COLUMNS))
    Console().print(table)


def _checked(decision: Any) -> dict[str, Any]:
    if not isinstance(decision, dict) or not {"chosen", "reason"} <= decision.keys():
        raise ValueError("is not a decision; it must be the JSON object of the header x-serving-decision")
    return decision
