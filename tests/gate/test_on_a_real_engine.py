"""The gate on a real vLLM: a model that is compared with itself passes, its twin fails, and it costs what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.catalog.gate_rules import GateRules
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Collected, read_collected, write_collected
from serving.gate.evidence import Evidence
from serving.gate.floor import measure_floor
from serving.gate.judge import judge
from serving.gate.passages import corpus
from tests.doubles.real_engine import RealEngine

pytestmark = pytest.mark.engine


def ask(engine: RealEngine, tokens_at_once: int, concurrency: int) -> Collected:
    options = CollectOptions(
        tokens_at_once=tokens_at_once, concurrency=concurrency, items=2, context_tokens=500, engine_pid=engine.pid
    )
    return collect(Address(engine.url, model=engine.model), options)


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Some of each kind: a token of the tiny model is a byte, so that few are enough. Their number."""
    whole = corpus()
    few = whole.model_copy(update={"passages": whole.passages[::4], "chats": whole.chats[:2]})
    monkeypatch.setattr("serving.gate.collect.corpus", lambda: few)
    return len(few.passages) + len(few.chats)


def test_it_passes_against_itself_in_other_batches(
    real_engine: RealEngine, rules: GateRules, few_texts: int, tmp_path: Path
) -> None:
    rules = rules.model_copy(update={"least_passages": few_texts})
    first, second = ask(real_engine, 2048, 4), ask(real_engine, 128, 1)
    assert first.troubles == second.troubles == ()
    assert {passage.kind for passage in first.passages} == {"prose", "code", "spanish", "chat", "long"}
    assert len(first.renderings) == 4
    assert first.cost.peak_engine_bytes is not None and first.cost.peak_engine_bytes > 500_000_000
    write_collected(first, tmp_path / "reference.json")
    reference = read_collected(tmp_path / "reference.json")

    floor = measure_floor([first, second], None, "this test")
    verdict = judge(Evidence(second, "bf16", rules, "cpu-epyc", floor, reference=reference))
    found = {finding.name: finding for finding in verdict.findings}
    assert verdict.outcome == "pass", verdict.reason
    assert (found["matched.kl"].value or 0) <= 0.001
    assert found["self_test"].outcome == "pass"

    # A quantization was asked for, and the engine is the unquantized one.
    missing = judge(Evidence(second, "nvfp4a16", rules, "cpu-epyc", floor, reference=reference, matched=reference))
    quantized = next(finding for finding in missing.findings if finding.name == "quantized")
    assert quantized.outcome == "fail"
