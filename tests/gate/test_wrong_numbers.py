"""No comparison makes a pass of what is no number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.gate_rules import Band, GateRules
from serving.core.errors import ConfigurationError
from serving.gate.collected import Collected, Passage, Top, read_collected
from serving.gate.compare import distance
from serving.gate.distance import kl_of_union
from serving.gate.evidence import Evidence, decide
from serving.gate.floor import measure_floor
from serving.gate.judge import judge
from serving.gate.statistics import Estimate, weighted_mean
from serving.gate.verdict import Verdict
from tests.gate.conftest import FLOOR, collected

NAN = math.nan


def verdict_on(rules: GateRules, candidate: Collected, reference: Collected) -> Verdict:
    given = {"format": "bf16", "target": "cpu-epyc", "floor": FLOOR}
    return judge(Evidence(candidate=candidate, reference=reference, rules=rules, **given))  # type: ignore[arg-type]


def stored(folder: Path, *, column: str, everywhere: bool) -> Collected:
    data: dict[str, Any] = json.loads(collected().model_dump_json())
    for passage in data["passages"] if everywhere else data["passages"][:1]:
        for place in range(1, len(passage["ids"])):
            if column == "own":
                passage["logprobs"][place] = NAN
            else:
                passage["tops"][place]["logprobs"] = [NAN] * len(passage["tops"][place]["ids"])
    path = folder / "stored.json"
    path.write_text(json.dumps(data))
    return read_collected(path)


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("column", ["own", "tops"])
def test_a_stored_candidate_with_them_fails(tmp_path: Path, rules: GateRules, column: str, everywhere: bool) -> None:
    verdict = verdict_on(rules, stored(tmp_path, column=column, everywhere=everywhere), collected())
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("alive.garbage: ") and "a log probability is nan" in verdict.reason


def test_a_stored_reference_with_them_decides_nothing(tmp_path: Path, rules: GateRules) -> None:
    broken = stored(tmp_path, column="own", everywhere=False)
    verdict = verdict_on(rules, collected(), broken)
    assert verdict.outcome == "not_decided"
    assert "the reference was in trouble itself" in verdict.reason
    with pytest.raises(ConfigurationError, match="a floor needs sound engines"):
        measure_floor([collected(), collected()], broken, "a test")


def test_those_in_memory_pass_no_test_of_distances(rules: GateRules) -> None:
    def changed(passage: Passage, **columns: Any) -> Passage:
        return passage.model_copy(update=columns)

    for candidate in (
        collected().model_copy(
            update={
                "passages": tuple(
                    changed(one, logprobs=tuple(None if v is None else NAN for v in one.logprobs)) for one in collected().passages
                )
            }
        ),
        collected().model_copy(update={"passages": (_without_numbers(collected().passages[0]), *collected().passages[1:])}),
    ):
        assert verdict_on(rules, candidate, collected()).outcome != "pass"
        far = distance(collected(), candidate)
        assert far is not None and (math.isnan(far.kl.value) or math.isnan(far.log_perplexity.value))


def _without_numbers(passage: Passage) -> Passage:
    tops = tuple(None if top is None else Top(ids=top.ids, logprobs=(NAN,) * len(top.ids)) for top in passage.tops)
    return passage.model_copy(update={"tops": tops})


def test_a_passage_without_numbers_is_the_worst() -> None:
    *others, last = collected().passages
    candidate = collected().model_copy(update={"passages": (*others, _without_numbers(last))})
    far = distance(collected(), candidate)
    assert far is not None and far.worst.name == last.name


def test_statistics_keep_them() -> None:
    sound = Top(ids=(1, 2), logprobs=(-0.1, -2.5))
    for value in (NAN, math.inf, 1e308):
        assert math.isnan(kl_of_union(sound, Top(ids=(1, 2), logprobs=(-0.1, value))))
        assert math.isnan(kl_of_union(Top(ids=(1, 2), logprobs=(value, -3.0)), sound))
    assert all(math.isnan(end) for end in (weighted_mean([NAN, 0.0, 0.0], [1, 1, 1]).low, weighted_mean([NAN], [1]).high))
    for low, high in ((NAN, 0.0), (0.0, NAN)):
        assert decide(Estimate(0.0, low, high), Band(passes=1, fails=2)) == "not_decided"
        assert decide(Estimate(0.0, low, high), Band(passes=1, fails=2), sign_matters=False) == "not_decided"


def test_tokens_of_nothing_in_common_were_not_seen(rules: GateRules) -> None:
    empty = collected().model_copy(update={"passages": (), "renderings": ()})
    verdict = verdict_on(rules, empty, collected())
    found = next(finding for finding in verdict.findings if finding.name == "tokens")
    assert (found.outcome, found.said[:9]) == ("not_decided", "not seen:")


def test_tokens_names_only_what_was_compared(rules: GateRules) -> None:
    for update, said in (
        ({}, "texts, conversations and renderings have"),
        ({"passages": ()}, "renderings have"),
        ({"renderings": ()}, "texts and conversations have"),
    ):
        verdict = verdict_on(rules, collected().model_copy(update=update), collected())
        found = next(finding for finding in verdict.findings if finding.name == "tokens")
        assert found.outcome == "pass" and found.said.startswith(said)
