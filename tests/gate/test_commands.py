"""`serving gate` from its command line: status, files, and errors that name what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from serving.core.errors import ConfigurationError
from serving.gate.collected import write_collected
from serving.gate.commands import app
from serving.gate.verdict import from_json
from tests.doubles.numeric_engine import NumericEngine
from tests.gate.conftest import collected

CPU = ("--format", "bf16", "--target", "cpu-epyc", "--rules", "smollm2-135m")


def gate(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "reference.json"
    write_collected(collected(), path)
    return path


def test_an_engine_is_collected_and_passes_against_itself(tmp_path: Path) -> None:
    with NumericEngine() as engine:
        done = gate("collect", engine.url, "-o", tmp_path / "c.json", "--parts", "passages,templates,decode")
        assert done.exit_code == 0, done.output
        judged = gate(
            "run", engine.url, "--reference", tmp_path / "c.json", *CPU, "--parts", "passages,decode", "-o", tmp_path / "report",
            "--save", tmp_path / "mine.json",
        )  # fmt: skip
    assert judged.exit_code == 0, judged.output
    assert judged.output.splitlines()[-2:] == [str(tmp_path / "report.json"), str(tmp_path / "report.html")]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"]["outcome"] == "pass"
    assert "<h2>Tests</h2>" in (tmp_path / "report.html").read_text()
    again = gate("run", tmp_path / "mine.json", "--reference", tmp_path / "c.json", *CPU)
    assert again.exit_code == 0


def test_a_broken_one_fails_with_its_worst_examples_on_the_page(tmp_path: Path, saved: Path) -> None:
    with NumericEngine(fault=0.5) as engine:
        done = gate("run", engine.url, "--reference", saved, *CPU, "--parts", "passages", "-o", tmp_path / "r")
    assert done.exit_code == 1
    assert done.output.startswith("FAIL matched.kl: mean KL 0.0") or "FAIL matched.kl" in done.output
    page = (tmp_path / "r.html").read_text()
    assert "Worst examples, against the reference" in page
    report = json.loads((tmp_path / "r.json").read_text())
    worst = report["worst_passages"][0]
    assert worst["mean_kl"] == max(report["compared"][0]["kl_by_passage"].values())
    assert len(worst["worst"]) == 6


def test_no_text_is_written_on_request(tmp_path: Path, saved: Path) -> None:
    with NumericEngine(fault=0.5) as engine:
        gate("run", engine.url, "--reference", saved, *CPU, "--parts", "passages", "-o", tmp_path / "r", "--without-prompts")
    for ending in (".json", ".html"):
        written = (tmp_path / f"r{ending}").read_text()
        assert "<12>" not in written and "&lt;12&gt;" not in written  # a token of the double
    assert "Texts were left out on request" in (tmp_path / "r.html").read_text()


def test_the_printed_verdict_keeps_the_customers_texts_to_itself_on_request(tmp_path: Path, saved: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"name": "our secret plan", "prompt": "x", "exact": "what we never say"}\n')
    with NumericEngine(answers=lambda prompt: "something") as engine:
        words = ("run", engine.url, "--reference", saved, *CPU, "--parts", "passages", "--prompts", prompts, "--json")
        told, kept = gate(*words), gate(*words, "--without-prompts")
    assert told.exit_code == kept.exit_code == 1
    assert "what we never say" in told.stdout and "our secret plan" in told.stdout
    assert "what we never say" not in kept.stdout and "our secret plan" not in kept.stdout
    assert "0.0% of your 1 checks hold" in kept.stdout


def test_the_verdict_as_json_is_tied_to_what_the_profile_runs(saved: Path) -> None:
    done = gate("run", saved, "--reference", saved, "--profile", "smollm2-135m-cpu", "--json")
    assert done.exit_code == 0
    verdict = from_json(done.stdout)
    assert verdict.configuration.target == "cpu-epyc"
    assert verdict.configuration.checkpoint.startswith("HuggingFaceTB/SmolLM2-135M-Instruct@")
    assert "--max-model-len" in verdict.configuration.argv
    assert verdict.rules.startswith("smollm2-135m@")


def test_another_target_is_uncalibrated(saved: Path) -> None:
    done = gate("run", saved, "--reference", saved, "--format", "bf16", "--target", "cuda-b200", "--rules", "smollm2-135m")
    assert done.exit_code == 3
    assert re.search(r"serving gate approve [0-9a-f]{64} --reason", done.output)


def test_a_floor_measured_here_calibrates(tmp_path: Path, saved: Path) -> None:
    with NumericEngine() as engine:
        done = gate("floor", engine.url, "--runs", "2", "-o", tmp_path / "floor.json", "--matched", saved)
    assert done.exit_code == 0, done.output
    assert "repeat_kl: 0.0" in done.stdout
    words = ("run", saved, "--reference", saved, "--format", "bf16", "--target", "cuda-b200")
    assert gate(*words).exit_code == 3
    assert gate(*words, "--floor", tmp_path / "floor.json").exit_code == 0


def test_compare_prints_figures_without_a_judgement(tmp_path: Path, saved: Path) -> None:
    other = tmp_path / "other.json"
    write_collected(collected(fault=0.5), other)
    done = gate("compare", saved, other)
    assert done.exit_code == 0
    assert re.search(r"mean KL, nats +0\.0\d", done.output)
    assert json.loads(gate("compare", saved, other, "--json").stdout)["tokens"] > 1500


def test_rules_are_shown_with_their_reasons() -> None:
    assert "smollm2-135m" in gate("rules").output
    assert "Two honest W4A4 implementations" in gate("rules", "default").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "cpu-epyc"), "--format: is missing; give it, or --profile"),
        (("--format", "bf16"), "--target: is missing"),
        (("--format", "bf16", "--target", "cuda-b20"), "--target: 'cuda-b20' is not in the catalog; did you mean cuda-b200"),
        (
            ("--format", "bf16", "--target", "cuda-b200", "--rules", "defaults"),
            "--rules: 'defaults' is not in the catalog; did you",
        ),
        (("--profile", "smollm2"), "profile 'smollm2' is not in the catalog"),
        ((*CPU, "-o", "/nowhere/at/all/report"), "/nowhere/at/all is not a folder"),
        ((*CPU, "--configuration", "/nowhere.json"), "/nowhere.json: cannot be read"),
    ],
)
def test_what_is_wrong_is_named(saved: Path, words: tuple[str, ...], said: str) -> None:
    done = gate("run", saved, "--reference", saved, *words)
    assert isinstance(done.exception, ConfigurationError)
    assert said in str(done.exception)


def test_a_reference_that_cannot_be_used_is_refused_before_the_candidate_is_asked(tmp_path: Path, saved: Path) -> None:
    other = tmp_path / "other.json"
    write_collected(collected().model_copy(update={"corpus": "1" * 64}), other)
    with NumericEngine() as engine:
        for given, said in ((tmp_path / "none.json", "cannot be read"), (other, "was collected with other texts")):
            done = gate("run", engine.url, "--reference", given, *CPU)
            assert said in str(done.exception)
        assert engine.requests == []


def test_a_configuration_of_ones_own(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "configuration.json"
    path.write_text('{"image": "i", "checkpoint": "c", "argv": ["vllm", "serve"], "target": "cpu-epyc"}')
    verdict = from_json(gate("run", saved, "--reference", saved, *CPU, "--configuration", path, "--json").stdout)
    assert (verdict.configuration.image, verdict.configuration.argv) == ("i", ("vllm", "serve"))
    assert verdict.digest == verdict.configuration.digest
