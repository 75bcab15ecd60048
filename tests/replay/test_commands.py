from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from serving import cli
from serving.core.errors import ConfigurationError
from serving.replay.report import read_report, write_report
from tests.doubles.real_engine import free_port
from tests.replay.stages import a_report

SHORT = ("--scale", "0.05", "--concurrency", "8", "--settle", "0.5", "--seconds", "2", "--drain", "5")


def call(*words: str) -> Result:
    """The command line, by its exit status; an error that names what is wrong comes as it is."""
    return CliRunner().invoke(cli.app, ["replay", *words], catch_exceptions=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A simulated engine in a process of its own, as fast as fifty."""
    port = free_port()
    command = [sys.executable, "-m", "serving", "sim", "--profile", "smollm2-135m-cpu", "--port", str(port), "--speed", "50"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert next((line for line in process.stderr if "SIMULATED" in line), None) is not None
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_run_its_repetition_from_the_report_alone_and_their_comparison(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    first, second = tmp_path / "first", tmp_path / "second"
    # Other work on the machine may make the client late; the figures are not what is looked at here.
    done = call("production", "--url", f"{url}/v1", "--price-per-hour", "2", "--output", str(first), *SHORT)
    assert done.exit_code in (0, 1), done.output
    assert "SIMULATED" in done.output
    assert "production × 0.05" in done.output
    again = call("--repeat", f"{first}.json", "--output", str(second))
    assert again.exit_code in (0, 1), again.output
    one, other = read_report(first.with_suffix(".json")), read_report(second.with_suffix(".json"))
    assert one.options == other.options
    assert one.profile == other.profile
    assert one.nonce != other.nonce
    assert other.stages[0].cached_share == pytest.approx(0.6, abs=0.03)
    assert "SIMULATED" in first.with_suffix(".html").read_text()
    assert "sk-very-secret" not in first.with_suffix(".json").read_text() + first.with_suffix(".html").read_text()
    compared = call("compare", f"{first}.json", f"{second}.json", "--anyway")
    assert compared.exit_code == 0, compared.output
    assert "A [SIMULATED]" in compared.output
    assert "$/M output tokens" in compared.output
    as_json = json.loads(call("compare", f"{first}.json", f"{second}.json", "--anyway", "--json").output)
    assert as_json["simulated"][0]


def test_a_run_that_proves_nothing_has_an_exit_status(url: str, tmp_path: Path) -> None:
    rare = ("--scale", "0.05", "--rate", "3", "--settle", "0", "--seconds", "1")
    done = call("production", "--url", url, "--output", str(tmp_path / "r"), *rare)
    assert done.exit_code == 1
    assert "INVALID" in done.output
    assert "measure longer" in done.output
    with pytest.raises(ConfigurationError, match="A is not valid"):
        call("compare", str(tmp_path / "r.json"), str(tmp_path / "r.json"))


@pytest.mark.parametrize("words", [("production",), ("--seconds", "9"), ("--price-per-hour", "1")])
def test_what_the_repeated_report_says_is_not_said_again(words: tuple[str, ...], tmp_path: Path) -> None:
    write_report(a_report(), tmp_path / "r.json")
    with pytest.raises(ConfigurationError, match="stands in the report"):
        call(*words, "--repeat", str(tmp_path / "r.json"))


def test_the_profiles_are_listed() -> None:
    assert [line.split()[0] for line in call("profiles").output.splitlines()] == ["agents", "batch", "chat", "production", "rag"]
    assert {profile["name"] for profile in json.loads(call("profiles", "--json").output)} >= {"production", "agents"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("production",), "--url: is missing"),
        (("--url", "http://127.0.0.1:9"), "PROFILE: is missing"),
        (("producton", "--url", "http://127.0.0.1:9"), "did you mean production"),
        (("production", "--url", "127.0.0.1:9"), "--url: must be like"),
        (("production", "--url", "http://user:word@127.0.0.1:9"), "no user"),
        (("production", "--url", "http://127.0.0.1:9", "--rate", "1,x"), "--rate: must be numbers"),
        (("production", "--url", "http://127.0.0.1:9", "--rate", "0"), "--rate: must be above zero"),
        (("production", "--url", "http://127.0.0.1:9", "--concurrency", "1.5"), "--concurrency: must be whole"),
        (("production", "--url", "http://127.0.0.1:9", "--pace", "fast"), "--pace: must be"),
        (("production", "--url", "http://127.0.0.1:9", "--body", "[]"), "--body: must be"),
        (("production", "--url", "http://127.0.0.1:9", "--target", "cpu-epic"), "did you mean cpu-epyc"),
        (("production", "--url", "http://127.0.0.1:9", "--search", "--rate", "1"), "--search: finds the rate"),
        (("production", "--url", "http://127.0.0.1:9", "--timeout", "inf"), "--timeout: must be a finite number"),
        (("production", "--url", "http://127.0.0.1:9", "--seconds", "inf"), "--seconds: must be a finite number"),
        (("production", "--url", "http://127.0.0.1:9", "--price-per-hour", "1e999"), "--price-per-hour: must be a finite number"),
        (("production", "--url", "http://127.0.0.1:9", "--output", "a.json"), "--output: is without its ending; give a"),
        (("batch", "--url", "http://127.0.0.1:9", "--search"), "--search: needs objectives"),
        (("production", "--url", "http://127.0.0.1:9", "--output", "/nowhere/x"), "--output: /nowhere is not a folder"),
        (("production", "--url", "http://127.0.0.1:9"), "cannot be reached"),
    ],
)
def test_wrong_options_are_errors_that_name_them(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call(*words)
    assert said in str(caught.value)


def test_a_key_on_the_command_line_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.replay.commands import _shown_argv

    monkeypatch.setattr(sys, "argv", ["serving", "replay", "--api-key", "sk-a", "--api-key=sk-b", "production"])
    assert _shown_argv() == ("replay", "--api-key", "…", "--api-key=…", "production")
