"""A customer's own prompts: their file, their checks, and what of them is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.catalog.gate_rules import GateRules
from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.prompts import CustomerPrompt, read_prompts
from serving.gate.report import make_report
from tests.doubles.numeric_engine import NumericEngine
from tests.gate.conftest import FLOOR, collected

LINES = """
{"prompt": "2 + 2 =", "exact": "4", "max_tokens": 4}
{"name": "yes", "messages": [{"role": "user", "content": "Say yes."}], "regex": "(?i)yes"}

{"prompt": "an order", "json_schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}}
"""


def read(tmp_path: Path, text: str) -> tuple[CustomerPrompt, ...]:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    return read_prompts(path)


def test_each_kind_of_check(tmp_path: Path) -> None:
    exact, regex, schema = read(tmp_path, LINES)
    assert (exact.wrong(" 4\n"), exact.wrong("5")) == ("", "is not '4'")
    assert (regex.wrong("Oh YES"), regex.wrong("no")) == ("", "has nothing like (?i)yes")
    assert schema.wrong('{"id": 3}') == ""
    assert schema.wrong('{"id": "3"}') == "breaks the schema: $.id: '3' is not of type 'integer'"
    assert schema.wrong("id 3") == "is no JSON"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a"}', "line 1: give one of exact, regex, json_schema, not none"),
        ('{"prompt": "a", "exact": "b", "regex": "c"}', "give one of exact, regex, json_schema, not exact and regex"),
        ('{"exact": "b"}', "give either prompt or messages"),
        ('{"prompt": "a", "regex": "("}', "regex: missing \\), unterminated subpattern"),
        ('{"prompt": "a", "json_schema": {"type": "no"}}', "json_schema: 'no' is not valid"),
        ('{"prompt": "a", "exact": "b", "max_token": 3}', "max_token: Extra inputs are not permitted"),
        ("prompt", "line 1: Invalid JSON"),
        ("", "holds no prompt"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(tmp_path, line)


def judged(rules: GateRules, prompts: tuple[CustomerPrompt, ...], says: str, *, keeps: bool = True, share: float = 1.0) -> Any:
    with NumericEngine(answers=lambda prompt: says) as engine:
        options = CollectOptions(parts=(), prompts=prompts, keeps_prompts=keeps)
        found = collect(Address(engine.url), options)
    candidate = collected().model_copy(update={"customer": found.customer})
    evidence = Evidence(candidate, "bf16", rules, "cpu-epyc", FLOOR, reference=collected(), customer_share=share)
    return evidence, judge(evidence)


def test_a_check_that_does_not_hold_fails(tmp_path: Path, rules: GateRules) -> None:
    prompts = read(tmp_path, LINES)[:2]
    _, verdict = judged(rules, prompts, "4")
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("customer: 50.0% of your 2 checks hold; 100% must: yes: has nothing like (?i)yes")
    assert judged(rules, prompts, "4", share=0.5)[1].outcome == "pass"
    assert judged(rules, prompts[:1], "4")[1].outcome == "pass"


def test_nothing_of_the_prompts_is_written_down_on_request(tmp_path: Path, rules: GateRules) -> None:
    prompts = read(tmp_path, '{"prompt": "the secret of Anna", "exact": "hidden"}')
    evidence, verdict = judged(rules, prompts, "a secret answer", keeps=False)
    written = make_report(evidence, verdict, without_prompts=True).model_dump_json()
    assert verdict.outcome == "fail"
    for word in ("secret of Anna", "secret answer", "hidden"):
        assert word not in written
        assert word not in evidence.candidate.model_dump_json()
