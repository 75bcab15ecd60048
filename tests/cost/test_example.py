"""The example of docs/cost.md is computed, not written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving.api.ui import FOLDER
from serving.catalog.table_text import TITLES
from serving.core.context import Usage
from serving.cost.machine_time import Account, Stay
from serving.cost.totals import PoolTotals
from serving.fleet_command import COLUMNS
from tests.cost.test_machine_time import Rates

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost.md"
DOLLARS_PER_SECOND = 8 * 2.90 / 3600
RATES = Rates(prefill_seconds=1 / 40_000, step=0.008, step_slope=0.0001)


def test_the_example_is_computed() -> None:
    pool = PoolTotals(DOLLARS_PER_SECOND)
    account = Account(pool, RATES, 0.0)
    a = Stay(account, 1.0, 20_000 * RATES.prefill_seconds, 1, silent=False)
    a.first_token(1.5)
    b = Stay(account, 3.5, 8_000 * RATES.prefill_seconds, 1, silent=False)
    b.first_token(3.75)
    assert f"{b.prompt_seconds:.4f}" in PAGE.read_text(encoding="utf-8")
    a.end(7.75)
    b.end(7.75)
    usages = {"a": Usage(20_000, 0, 600), "b": Usage(12_000, 4_000, 400)}
    pool.settle(a, usages["a"], 0.0)
    pool.settle(b, usages["b"], 0.0)
    c = Stay(account, 8.0, 0.1, 1, silent=True)
    c.end(8.3)
    failed = c.prompt_seconds + c.output_seconds
    assert failed == pytest.approx(0.3)

    parts = {
        "prompt, computed": (pool.prompt_seconds, 28_000),
        "cached": (pool.cached_seconds, 4_000),
        "output": (pool.output_seconds, 1_000),
        "failed": (failed, None),
    }
    idle = 10.0 - sum(seconds for seconds, _ in parts.values())
    assert idle == pytest.approx(2.95), "nobody had anything under way from 0 to 1, from 7.75 to 8 and from 8.3 to 10"
    rows = parts | {"idle": (idle, None), "the bill": (10.0, None)}
    table = [_row(name, seconds, tokens) for name, (seconds, tokens) in rows.items()]
    text = PAGE.read_text(encoding="utf-8")
    assert [row for row in table if row not in text] == []


def test_used_and_whole_dollars_of_output_have_names_of_their_own() -> None:
    """One divides what output took, the other one everything: nobody is to compare the two."""
    assert "used $/M out" in COLUMNS and "$/M out" in TITLES
    for name in ("page.html", "page.js"):
        named = re.findall(r"(\w+) \$ / M output", (FOLDER / name).read_text(encoding="utf-8"))
        assert named and set(named) == {"used"}, name
    text = PAGE.read_text(encoding="utf-8")
    assert f"they are 38.73 and\n{10 * DOLLARS_PER_SECOND / 1000 * 1e6:.2f}" in text


def _row(name: str, seconds: float, tokens: int | None) -> str:
    dollars = seconds * DOLLARS_PER_SECOND
    each = "" if tokens is None else f" {tokens:,} | {dollars / tokens * 1e6:.2f} |"
    return f"| {name} | {seconds:.4f} | {dollars:.6f} |{each or ' | |'}"
