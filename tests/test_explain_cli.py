"""`serving explain` on what an operator has kept of a decision."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from serving.cli import app

DECISION = {
    "chosen": "e1",
    "reason": "cost",
    "candidates": [{"endpoint": "e1", "pool": "default", "cached_tokens": 4711, "wait_seconds": 0.25, "dollars": 0.001}],
}


def test_a_recorded_decision_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "decision"
    file.write_bytes(b"x-serving-decision: " + orjson.dumps(DECISION))
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 0
    assert "e1 was chosen: cost" in shown.output
    assert "4711" in shown.output


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_what_is_no_decision_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "decision"
    file.write_text(text)
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 2
    assert "decision" in shown.output
