"""Every alert rings when it should and only then, in promtool of each version, and leads to a page and a panel that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.alert_cases import CASES
from tests.chart.alert_tests import Fires, Quiet, promtool_test
from tests.chart.dashboards import ALERTS, BOARDS, RULES, alerts, dashboard
from tests.doubles.tools import PROMETHEUSES, ROOT, tool

VERSIONS = pytest.mark.parametrize("version", PROMETHEUSES)


def run_promtool(version: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(tool(version, "promtool")), *words], capture_output=True, text=True)


def promtool_files(cases: list[Fires | Quiet], folder: Path, rules: list[Path]) -> list[str]:
    """Short runs, and long ones that are looked at less often: a recorded value is known for just under 5 minutes."""
    known = alerts()
    made = []
    for name, interval, chosen in (
        ("short", "1m", [case for case in cases if case.minutes <= 120]),
        ("long", "4m", [case for case in cases if case.minutes > 120]),
    ):
        path = folder / f"{name}.yaml"
        tests = [promtool_test(case, known[case.alert]) for case in chosen]
        content = {"rule_files": [str(rule) for rule in rules], "evaluation_interval": interval, "tests": tests}
        path.write_text(yaml.safe_dump(content))
        made.append(str(path))
    return made


@pytest.mark.chart
@VERSIONS
def test_promtool_takes_the_rules(version: str) -> None:
    done = run_promtool(version, "check", "rules", *map(str, RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.chart
@VERSIONS
def test_every_alert_rings_when_it_should_and_only_then(version: str, tmp_path: Path) -> None:
    done = run_promtool(version, "test", "rules", *promtool_files(CASES, tmp_path, RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.chart
def test_an_alert_that_never_rings_fails_its_test(tmp_path: Path) -> None:
    mute = tmp_path / "alerts.yaml"
    mute.write_text(re.sub(r"(expr: up\{.*) == 0", r"\1 == 2", ALERTS.read_text()))
    assert mute.read_text() != ALERTS.read_text()
    cases = [case for case in CASES if case.alert == "ServingScrapeMissing"]
    done = run_promtool("prometheus-2", "test", "rules", *promtool_files(cases, tmp_path, [mute]))
    assert done.returncode == 1 and "ServingScrapeMissing" in done.stdout + done.stderr


def test_every_alert_has_a_run_that_rings_it_and_one_that_does_not() -> None:
    for kind in (Fires, Quiet):
        assert {case.alert for case in CASES if isinstance(case, kind)} == set(alerts()), kind.__name__


def test_every_alert_says_what_happens_and_what_to_do() -> None:
    pages = set()
    for name, rule in alerts().items():
        said = rule["annotations"]
        assert set(said) == {"summary", "description", "runbook_url", "dashboard_url"}, name
        page = ROOT / said["runbook_url"]
        assert page.is_file(), f"{name}: {said['runbook_url']} is not there"
        assert page.read_text().startswith(f"# {name}\n"), page.name
        for heading in ("## What it means", "## What to look at", "## What to do"):
            assert heading in page.read_text(), f"{page.name}: {heading}"
        pages.add(page)
    index = ROOT / "docs" / "runbooks" / "README.md"
    assert pages == set(index.parent.glob("*.md")) - {index}
    listed = re.findall(r"^\| \[(\w+)\]\(([\w-]+\.md)\) \| (\w+) \|$", index.read_text(), re.MULTILINE)
    wanted = {
        name: (Path(rule["annotations"]["runbook_url"]).name, rule["labels"]["severity"]) for name, rule in alerts().items()
    }
    assert {name: (page, severity) for name, page, severity in listed} == wanted


def test_every_alert_leads_to_a_panel_that_shows_it() -> None:
    boards = {dashboard(name)["uid"]: dashboard(name) for name in BOARDS}
    for name, rule in alerts().items():
        match = re.fullmatch(r"/d/([\w-]+)\?viewPanel=(\d+)", rule["annotations"]["dashboard_url"])
        assert match, name
        found = [panel for panel in boards[match[1]]["panels"] if panel["id"] == int(match[2])]
        assert [panel["type"] != "row" for panel in found] == [True], name
