from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from serving.core.errors import ConfigurationError
from serving.replay.compare import Comparison, compare, print_comparison, reservations
from serving.replay.report import Check, Options, Report, read_report, write_report
from tests.replay.stages import a_report, a_stage


def compared(first: Report, second: Report, **more: Any) -> Comparison:
    return compare(first, second, margin=0.02, anyway=False, **more)


def ratio(found: Comparison, name: str) -> Any:
    return next(ratio for ratio in found.stages[0].ratios if ratio.name == name)


def printed(found: Comparison) -> str:
    output = StringIO()
    print_comparison(found, Console(file=output, width=200))
    return output.getvalue()


def test_two_runs_of_the_same_are_equal() -> None:
    found = compared(a_report(a_stage(seed=1, count=400)), a_report(a_stage(seed=2, count=400)))
    assert found.is_equal
    assert ratio(found, "TTFT mean").verdict == "equal"
    assert "no figure differs" in printed(found)


def test_a_known_ratio_is_within_its_interval() -> None:
    found = compared(
        a_report(a_stage(seed=3, tokens_per_second=1000.0, dollars_per_hour=10.0)),
        a_report(a_stage(seed=4, tokens_per_second=1500.0, dollars_per_hour=30.0, ttft=0.1)),
    )
    assert not found.is_equal
    for name, wanted, verdict in (
        ("output tokens/s", 1.5, "higher"),
        ("TTFT mean", 0.5, "lower"),
        ("$/M output tokens", 2.0, "higher"),
    ):
        seen = ratio(found, name)
        assert seen.ratio.low <= wanted <= seen.ratio.high, name
        assert seen.ratio.high - seen.ratio.low < 0.15 * wanted
        assert seen.verdict == verdict


def test_a_percentile_that_few_requests_lie_beyond_is_not_judged() -> None:
    few = compared(a_report(a_stage(seed=5, count=120)), a_report(a_stage(seed=6, count=120, ttft=0.4)))
    assert ratio(few, "TTFT p99").verdict == "too few"
    assert ratio(few, "TTFT p50").verdict == ratio(few, "TTFT mean").verdict == "higher"
    assert "too few" in printed(few)
    many = compared(a_report(a_stage(seed=5, count=600)), a_report(a_stage(seed=6, count=600, ttft=0.4)))
    assert ratio(many, "TTFT p99").verdict == "higher"


def test_dollars_without_a_price_are_unknown() -> None:
    found = compared(a_report(a_stage(dollars_per_hour=10.0)), a_report(a_stage()))
    assert ratio(found, "$/M output tokens").verdict == "unknown"
    assert ratio(found, "$/M output tokens").second.value is None


BROKEN = Check(name="errors", passed=False, said="many failed")
INCOMPARABLE = {
    "B is not valid: many failed": a_report(a_stage(checks=(BROKEN,))),
    "B is simulated and A was measured": a_report(simulated="mi355x"),
    "they differ in scale: 1 and 0.1": a_report(options=Options(url="http://x", scale=0.1)),
    "they differ in seed: 0 and 7": a_report(options=Options(url="http://x", seed=7)),
    "they differ in profile's content": a_report(profile_sha256="0" * 64),
    "they differ in model: glm and other": a_report(engine=a_report().engine.model_copy(update={"model": "other"})),
    "they differ in forced lengths": a_report(engine=a_report().engine.model_copy(update={"forced": ("max_tokens",)})),
    "they differ in fields of requests": a_report(options=Options(url="http://x", extra={"temperature": 0})),
    "they have no load in common": a_report(a_stage(offered=9.0)),
}


@pytest.mark.parametrize("said", INCOMPARABLE)
def test_what_is_not_comparable_is_refused_unless_told_to_and_then_said(said: str) -> None:
    other = INCOMPARABLE[said]
    with pytest.raises(ConfigurationError) as caught:
        compare(a_report(), other, margin=0.02, anyway=False)
    assert said in str(caught.value)
    output = printed(compare(a_report(), other, margin=0.02, anyway=True))
    assert f"NOT COMPARABLE: {said}" in output


def test_simulated_runs_say_so() -> None:
    simulated = a_report(simulated="mi355x")
    assert reservations(simulated, simulated) == []
    output = printed(compared(simulated, simulated))
    assert "A [SIMULATED]" in output
    assert output.count("nothing of it is a measurement") == 2


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = a_report(a_stage(), a_stage(offered=8.0))
    write_report(report, tmp_path / "r.json")
    assert read_report(tmp_path / "r.json") == report


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}', '{"format": "serving replay 1", "is_valid": true}'])
def test_what_is_no_report_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"r\.json"):
        read_report(tmp_path / "r.json")
