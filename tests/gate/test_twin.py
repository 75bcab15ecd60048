"""The gate's own test must be able to fail: a gate that lets its broken twin pass does not decide."""

from __future__ import annotations

import pytest

from serving.catalog.gate_rules import Band, GateRules
from serving.gate.closeness import closeness
from serving.gate.compare import distance
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.twin import FAULT_KL, broken_twin
from tests.gate.conftest import FLOOR, collected


@pytest.mark.parametrize("kl", [0.0124, 0.2])
def test_a_twin_is_as_broken_as_it_must_be(kl: float) -> None:
    twin, found = broken_twin(collected(), kl)
    assert kl <= found < 2 * kl
    apart = distance(collected(), twin)
    assert apart is not None and apart.kl.value == found
    assert [passage.ids for passage in twin.passages] == [passage.ids for passage in collected().passages]


def test_a_gate_that_passes_its_twin_does_not_decide(rules: GateRules, monkeypatch: pytest.MonkeyPatch) -> None:
    # A judge that finds everything near: the self-test is what notices.
    monkeypatch.setattr("serving.gate.closeness.decide", lambda *given, **named: "pass")
    monkeypatch.setattr("serving.gate.evidence.decide", lambda *given, **named: "pass")
    verdict = judge(Evidence(collected(), "bf16", rules, "cpu-epyc", FLOOR, reference=collected()))
    assert verdict.outcome == "not_decided"
    assert verdict.reason.startswith("self_test: a broken twin of the candidate")
    assert "does not fail" in verdict.reason


def test_the_twin_follows_the_limits(rules: GateRules) -> None:
    wide = rules.model_copy(update={"matched": rules.matched.model_copy(update={"kl": Band(passes=0.2, fails=0.3)})})
    verdict = judge(Evidence(collected(), "bf16", wide, "cpu-epyc", FLOOR, reference=collected()))
    found = next(finding for finding in verdict.findings if finding.name == "self_test")
    assert found.outcome == "pass"
    assert (found.value or 0) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("kl", "outcomes"), [(0.0005, {"pass"}), (FAULT_KL, {"fail"})])
def test_twenty_of_each_kind_are_told_apart(
    kl: float, outcomes: set[str], rules: GateRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for seed in range(20):
        monkeypatch.setattr("serving.gate.twin.SEED", seed)
        candidate, _ = broken_twin(collected(), kl)
        evidence = Evidence(candidate, "bf16", rules, "cpu-epyc", FLOOR, reference=collected())
        found |= {finding.outcome for finding in closeness(evidence) if finding.name == "matched.kl"}
    assert found == outcomes
