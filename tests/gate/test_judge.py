"""Verdicts on engines with known faults, by their distributions."""

from __future__ import annotations

from typing import Any

import pytest

from serving.catalog.gate_rules import Band, FormatRules, GateRules, ModelRules
from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Acceptance, Answer, Collected, Trouble
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.verdict import Finding, Verdict
from tests.doubles.numeric_engine import NumericEngine
from tests.gate.conftest import FLOOR, collected

QUANTIZATION = {"fault": 0.6, "fault_seed": 5}
"""What an honest quantization does to the numeric model."""


def evidence(rules: GateRules, candidate: Collected, **given: Any) -> Evidence:
    base: dict[str, Any] = {"format": "nvfp4a16", "target": "cpu-epyc", "floor": FLOOR}
    return Evidence(candidate=candidate, rules=rules, **(base | given))


def finding(verdict: Verdict, name: str) -> Finding:
    return next(found for found in verdict.findings if found.name == name)


def test_a_reference_compared_with_itself_passes(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(), format="bf16", reference=collected()))
    assert verdict.outcome == "pass", verdict.reason
    assert finding(verdict, "matched.kl").value == 0
    assert finding(verdict, "self_test").outcome == "pass"


def test_a_small_difference_of_arithmetic_passes(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(fault=0.03), format="bf16", reference=collected()))
    assert verdict.outcome == "pass", verdict.reason
    assert 0 < (finding(verdict, "matched.kl").value or 0) < 0.001


def test_a_fault_that_hides_from_the_original_fails_against_its_own_weights(rules: GateRules) -> None:
    # A fifth farther in the direction of the quantization's own errors.
    broken, matched, original = collected(fault=0.72, fault_seed=5), collected(**QUANTIZATION), collected()
    verdict = judge(evidence(rules, broken, matched=matched, reference=original))
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("matched.kl: mean KL 0.0")
    assert "whether the model is good enough: no limit was laid down for nvfp4a16 in default" in verdict.blind


def test_whether_the_model_is_good_enough_is_judged_by_its_own_limits(rules: GateRules) -> None:
    quantized, original = collected(**QUANTIZATION), collected()
    given = {"matched": quantized, "reference": original}
    both = rules.model_copy(update={"questions": ("engine", "model")})
    open_question = judge(evidence(both, quantized, **given))
    assert open_question.outcome == "not_decided"
    assert "no limit was laid down for nvfp4a16" in open_question.reason
    for most, outcome in ((0.5, "pass"), (0.05, "fail")):
        limits = ModelRules(
            kl=Band(passes=most, fails=most),
            perplexity_ratio=Band(passes=2, fails=3),
            lost_points=Band(passes=0.1, fails=0.2),
            reason="a test",
        )
        format_rules = FormatRules(quantizes_activations=False, model=limits)
        limited = both.model_copy(update={"formats": {"nvfp4a16": format_rules}})
        verdict = judge(evidence(limited, quantized, **given))
        assert (verdict.outcome, finding(verdict, "model.kl").outcome) == (outcome, outcome)


def test_a_pass_of_the_tasks_does_not_override_a_fail(rules: GateRules) -> None:
    broken = collected(fault=0.4)
    with_tasks = broken.model_copy(update={"answers": _answers(20)})
    reference = collected().model_copy(update={"answers": _answers(20)})
    verdict = judge(evidence(rules, with_tasks, format="bf16", reference=reference))
    assert finding(verdict, "tasks").outcome == "pass"
    assert verdict.outcome == "fail"
    assert "matched.kl" in verdict.reason


def _answers(right: int, count: int = 20) -> tuple[Answer, ...]:
    return tuple(
        Answer(family="addition", name=f"a{place}", prompt="p", text="t", passed=place < right, said="not 7")
        for place in range(count)
    )


@pytest.mark.parametrize(("right", "outcome"), [(20, "pass"), (19, "pass"), (15, "not_decided"), (8, "fail")])
def test_tasks_fail_by_a_loss_that_is_large_and_no_chance(rules: GateRules, right: int, outcome: str) -> None:
    candidate = collected().model_copy(update={"answers": _answers(right)})
    reference = collected().model_copy(update={"answers": _answers(20)})
    verdict = judge(evidence(rules, candidate, format="bf16", reference=reference))
    assert finding(verdict, "tasks").outcome == outcome
    assert verdict.outcome == outcome


def test_a_quantization_that_did_not_happen_fails(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(), reference=collected(), matched=collected(**QUANTIZATION)))
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("quantized: KL to the unquantized reference is exactly 0")
    assert "nvfp4a16 that was asked for did not happen" in verdict.reason


def test_it_is_noticed_through_the_noise_of_the_engine(rules: GateRules) -> None:
    noisy = FLOOR.model_copy(update={"repeat_kl": 0.001})
    verdict = judge(evidence(rules, collected(fault=0.02), reference=collected(), matched=collected(**QUANTIZATION), floor=noisy))
    assert "no more than an engine is from itself, over" in finding(verdict, "quantized").said
    honest = judge(
        evidence(rules, collected(**QUANTIZATION), reference=collected(), matched=collected(**QUANTIZATION), floor=noisy)
    )
    assert finding(honest, "quantized").outcome == "pass"


def test_a_changed_chat_template_fails_and_is_named(rules: GateRules) -> None:
    changed = collected(template="<{role}> {content}\n")
    verdict = judge(evidence(rules, changed, format="bf16", reference=collected()))
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("tokens: the chat template changed (plain texts have the same tokens): user only")
    assert "the reference writes …'user: What is" in verdict.reason
    assert "the candidate …'<user> What is" in verdict.reason


def test_a_decode_path_of_its_own_fails(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(decode_fault=1.5), format="bf16", reference=collected()))
    assert finding(verdict, "matched.kl").outcome == "pass"
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("decode: 256 generated tokens")


@pytest.mark.parametrize(("format", "outcome"), [("nvfp4", "pass"), ("nvfp4a16", "fail")])
def test_where_activations_are_rounded_the_honest_runs_own_decode_path_is_the_floor(
    rules: GateRules, format: str, outcome: str
) -> None:
    def apart(nats: float) -> Collected:
        found = collected()
        runs = [run.model_copy(update={"decoded": tuple(value - nats for value in run.prefilled)}) for run in found.decode_runs]
        return found.model_copy(update={"decode_runs": tuple(runs)})

    candidate, honest = apart(0.3), apart(0.2)
    verdict = judge(evidence(rules, candidate, format=format, reference=collected(**QUANTIZATION), honest=honest))
    assert finding(verdict, "decode").outcome == outcome


def test_numbers_that_are_none_fail(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(not_a_number=True), format="bf16", reference=collected()))
    assert verdict.outcome == "fail"
    assert "a log probability is nan" in verdict.reason


def test_a_reference_in_trouble_decides_nothing(rules: GateRules) -> None:
    trouble = Trouble(kind="garbage", where="chats", said="answered 500")
    reference = collected().model_copy(update={"troubles": (trouble,)})
    verdict = judge(evidence(rules, collected(), format="bf16", reference=reference))
    assert verdict.outcome == "not_decided"
    assert verdict.reason == "reference: the reference was in trouble itself: chats: answered 500"


@pytest.mark.parametrize(("fault", "outcome"), [(0.0, "pass"), (1.0, "fail")])
def test_a_long_context_has_a_test_of_its_own(rules: GateRules, fault: float, outcome: str) -> None:
    with NumericEngine(decode_fault=fault) as engine:
        long = collect(Address(engine.url), CollectOptions(parts=(), context_tokens=400)).passages
    with NumericEngine() as engine:
        right = collect(Address(engine.url), CollectOptions(parts=(), context_tokens=400)).passages
    candidate, reference = (collected().model_copy(update={"passages": (*collected().passages, *more)}) for more in (long, right))
    verdict = judge(evidence(rules, candidate, format="bf16", reference=reference))
    assert finding(verdict, "matched.long").outcome == verdict.outcome == outcome


def test_speculative_decoding_must_change_nothing_but_speed(rules: GateRules) -> None:
    drafts = Acceptance(drafts=100, draft_tokens=300, accepted_tokens=180)
    candidate = collected().model_copy(update={"answers": _answers(8), "acceptance": drafts})
    plain = collected().model_copy(update={"answers": _answers(20)})
    given = {"format": "bf16", "reference": collected(), "expected_acceptance": 3.0}
    verdict = judge(evidence(rules, candidate, **given, plain=plain))
    assert finding(verdict, "speculation.tasks").outcome == "fail"
    assert "20 of 20 texts are the same" in finding(verdict, "speculation.tasks").said
    assert finding(verdict, "speculation.acceptance").outcome == "pass"
    few = collected().model_copy(update={"acceptance": Acceptance(drafts=100, draft_tokens=300, accepted_tokens=20)})
    lost = judge(evidence(rules, few, **given))
    assert lost.reason.startswith("speculation.acceptance: 1.20 tokens a step over 100 drafts, 3.00 are expected: 90% of it")


def test_without_a_floor_nothing_passes(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(), format="bf16", reference=collected(), floor=None))
    assert (verdict.outcome, verdict.calibrated, verdict.needs_approval) == ("not_decided", False, True)
    assert "no floor was ever measured for default on cpu-epyc" in verdict.reason
    assert judge(evidence(rules, collected(fault=0.8), format="bf16", reference=collected(), floor=None)).outcome == "fail"


def test_without_a_floor_what_noise_could_explain_does_not_fail(rules: GateRules) -> None:
    noisy = collected(fault=0.12)
    assert judge(evidence(rules, noisy, format="bf16", reference=collected())).outcome == "fail"
    assert judge(evidence(rules, noisy, format="bf16", reference=collected(), floor=None)).outcome == "not_decided"


def test_a_format_with_rounded_activations_needs_a_stored_run(rules: GateRules) -> None:
    honest, original = collected(**QUANTIZATION), collected()
    by_matched = judge(evidence(rules, collected(fault=0.6, fault_seed=6), format="nvfp4", matched=honest))
    assert by_matched.outcome == "not_decided"
    assert "give --honest and --reference" in by_matched.reason
    other_kernel = collected(fault=0.6, fault_seed=6)  # as far from the original, in another direction
    verdict = judge(evidence(rules, other_kernel, format="nvfp4", honest=honest, reference=original))
    assert verdict.outcome == "pass", verdict.reason
    assert finding(verdict, "stored_run.kl_ratio").value == pytest.approx(1.0, abs=0.06)
    assert finding(verdict, "stored_run.perplexity").outcome == "pass"
    worse = judge(evidence(rules, collected(fault=0.9, fault_seed=6), format="nvfp4", honest=honest, reference=original))
    assert finding(worse, "stored_run.perplexity").outcome == "fail"
    assert worse.outcome == "fail"
    assert worse.reason.startswith("stored_run.kl_ratio: KL to the reference is")


def test_the_same_engine_as_the_stored_run_is_held_to_it_directly(rules: GateRules) -> None:
    honest, original = collected(**QUANTIZATION), collected()
    given = {"format": "nvfp4", "honest": honest, "reference": original}
    other = collected(fault=0.6, fault_seed=6)
    assert judge(evidence(rules, other, **given)).outcome == "pass"
    verdict = judge(evidence(rules, other, **given, is_same_engine=True))
    assert verdict.outcome == "fail"
    assert verdict.reason.startswith("repeat.kl: ")
    assert judge(evidence(rules, honest, **given, is_same_engine=True)).outcome == "pass"


def test_too_few_tokens_decide_nothing(rules: GateRules) -> None:
    few = collected().model_copy(update={"passages": collected().passages[:5]})
    verdict = judge(evidence(rules, few, format="bf16", reference=collected()))
    assert verdict.outcome == "not_decided"
    assert verdict.reason.startswith("enough: ")
    assert not verdict.needs_approval  # more tokens can decide it


def test_an_engine_question_without_its_reference_stays_open(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(**QUANTIZATION), reference=collected()))
    assert verdict.outcome == "not_decided"
    assert "give --matched" in verdict.reason
    with pytest.raises(ConfigurationError, match="--honest: needs --reference"):
        judge(evidence(rules, collected(**QUANTIZATION), format="nvfp4", honest=collected(**QUANTIZATION)))
    with pytest.raises(ConfigurationError, match="something to compare with"):
        judge(evidence(rules, collected()))
    with pytest.raises(ConfigurationError, match="--format: 'nvfp5' is not in the rules default; there are: bf16, fp8"):
        judge(evidence(rules, collected(), format="nvfp5", reference=collected()))


def test_another_corpus_cannot_be_compared(rules: GateRules) -> None:
    other = collected().model_copy(update={"corpus": "1" * 64})
    with pytest.raises(ConfigurationError, match="collect it again with this version"):
        judge(evidence(rules, collected(), format="bf16", reference=other))


def test_the_same_evidence_gives_the_same_verdict(rules: GateRules) -> None:
    given = evidence(rules, collected(fault=0.05), format="bf16", reference=collected())
    first, second = judge(given), judge(given)
    assert first.findings == second.findings


def test_it_says_what_it_cannot_see(rules: GateRules) -> None:
    verdict = judge(evidence(rules, collected(), format="bf16", reference=collected()))
    assert any("above 0.0030, on a floor of 0.0005 measured on cpu-epyc" in line for line in verdict.sees)
    assert any(line.startswith("long context: left out") for line in verdict.blind)
    assert any(line.startswith("which configuration this was") for line in verdict.blind)
    bare = judge(evidence(rules, collected(), format="bf16", reference=collected(), floor=None))
    assert any("for want of a floor" in line for line in bare.sees)


def test_what_to_compare_with_is_said_in_the_rules_own_words(rules: GateRules) -> None:
    named = rules.model_copy(update={"references": {"reference": "the FP8 checkpoint"}, "questions": ("engine", "model")})
    verdict = judge(evidence(named, collected(**QUANTIZATION), matched=collected(**QUANTIZATION)))
    assert verdict.reason.startswith("question.model: not asked: is the checkpoint good enough; give --reference")
    assert verdict.reason.endswith("; --reference: the FP8 checkpoint")


def test_the_original_need_not_be_bf16(rules: GateRules) -> None:
    published = rules.model_copy(update={"reference_format": "fp8"})
    same = judge(evidence(published, collected(), format="fp8", reference=collected()))
    assert same.outcome == "pass", same.reason
    assert "quantized" not in {found.name for found in same.findings}
    none = judge(evidence(published, collected(), format="nvfp4a16", reference=collected(), matched=collected(**QUANTIZATION)))
    assert none.reason.startswith("quantized: ")
