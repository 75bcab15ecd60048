"""Simulated hardware of the catalog, measured from outside: two runs differ as the rates that they were simulated with."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from serving.catalog.load import load_catalog
from serving.replay.compare import Comparison, compare, print_comparison
from serving.replay.page import page
from serving.replay.report import Report
from serving.replay.table import print_report
from serving.settings import catalog_dir
from serving.sim.plan import EnginePlan, plan
from serving.sim.rates import Batch
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.virtual_time import in_virtual_time, tell_its_time
from tests.flow.test_replay import CLOCKED, faults, profile, run

NAMES = ("glm-5.2-nvfp4-b200", "glm-5.2-mxfp4-mi355x")
TIMERS = 1.002
UNSHARED = {"shared_prefix": None, "prompt_tokens": 400, "output_tokens": 100}


def step_seconds(engine: EnginePlan) -> float:
    """Of one request that is alone."""
    return engine.rates.seconds(Batch(sequences=1))


def shown(found: Report | Comparison) -> str:
    output = StringIO()
    console = Console(file=output, width=200)
    print_report(found, console) if isinstance(found, Report) else print_comparison(found, console)
    return output.getvalue()


@in_virtual_time
async def test_mi355x_and_b200_compare_as_they_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_its_time(monkeypatch, *CLOCKED)
    catalog = load_catalog(catalog_dir())
    plans = [plan(catalog, name) for name in NAMES]
    reports = []
    for name, simulated in zip(NAMES, plans, strict=True):
        async with simulated_engine(simulated) as engine:
            found = profile(traffic=UNSHARED, measure_seconds=25.0)
            reports.append(await run(engine.url, found, concurrencies=(1,), engine_profile=name))
    assert [faults(report) for report in reports] == [{}, {}]
    configured = step_seconds(plans[1]) / step_seconds(plans[0])
    found = compare(*reports, margin=0.02, anyway=False)
    ratios = {ratio.name: ratio.ratio for ratio in found.stages[0].ratios}
    per_token = ratios["time per output token mean"]
    assert per_token.low is not None
    assert per_token.high is not None
    # In virtual time nothing scatters but what is accepted of drafts: the interval is narrower than what timers add.
    assert per_token.low / TIMERS <= configured <= per_token.high * TIMERS
    assert per_token.high - per_token.low < 0.05 * configured
    outputs = [show(report) for report in reports for show in (shown, page)] + [shown(found)]
    assert all("SIMULATED" in output for output in outputs)
    assert all(report.simulated is not None and name in report.simulated for report, name in zip(reports, NAMES, strict=True))
    assert all(name in (simulated or "") for simulated, name in zip(found.simulated, NAMES, strict=True))
