"""A verdict as JSON, and what is refused when somebody has changed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.gate.verdict import Outcome, from_json, read_verdict, to_json
from tests.gate.verdicts import GOOD


def test_it_comes_back_as_it_went() -> None:
    assert from_json(to_json(GOOD)) == GOOD


@pytest.mark.parametrize(("outcome", "status"), [("pass", 0), ("fail", 1), ("not_decided", 3)])
def test_the_status_of_the_process(outcome: Outcome, status: int) -> None:
    assert GOOD.model_copy(update={"outcome": outcome}).exit_status == status


def test_a_changed_configuration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^v: digest: .*changed by hand"):
        from_json(to_json(GOOD).replace("cpu-epyc", "cuda-b200"), "v")


def test_a_pass_without_a_floor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"outcome: is pass on a target without a measured floor"):
        from_json(to_json(GOOD).replace('"calibrated": true', '"calibrated": false'))


def test_an_error_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(to_json(GOOD).replace('"pass"', '"passed"', 1))
    with pytest.raises(ConfigurationError, match=rf"^{path}: outcome: "):
        read_verdict(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_verdict(tmp_path / "none.json")


def test_only_a_target_without_a_floor_waits_for_a_person() -> None:
    assert not GOOD.needs_approval
    undecided = GOOD.model_copy(update={"outcome": "not_decided"})
    assert not undecided.needs_approval
    assert undecided.model_copy(update={"calibrated": False}).needs_approval
