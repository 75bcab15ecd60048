from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import copy_of_catalog


def run(*words: str) -> str:
    done = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def printed_by(*words: str) -> tuple[str, str]:
    """Standard output, and what was said beside it."""
    done = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_dry_run_is_one_line_for_a_shell(cache: Path) -> None:
    printed, said = printed_by("engine", "smollm2-135m-cpu", "--dry-run", "--port", "8123")
    (line,) = printed.splitlines()
    place = cache / "models" / "SmolLM2-135M-Instruct"
    assert said == f"the model is not at {place} yet; `serving engine smollm2-135m-cpu` fetches it when it starts\n"
    words = shlex.split(line)
    assert "HF_HUB_OFFLINE=1" in words
    assert words[words.index("--port") + 1] == "8123"
    assert str(cache / "models" / "SmolLM2-135M-Instruct") in words
    assert not cache.exists()


def test_dry_run_as_json() -> None:
    printed = json.loads(printed_by("engine", "smollm2-135m-cpu", "--dry-run", "--json", "--uds", "/run/e.sock")[0])
    assert printed["argv"][printed["argv"].index("--uds") + 1] == "/run/e.sock"
    assert printed["environment"]["VLLM_NO_USAGE_STATS"] == "1"


def test_dry_run_with_the_model_in_place_says_no_more(tmp_path: Path) -> None:
    arguments = ("engine", "smollm2-135m-cpu", "--dry-run", "--model-path", str(tmp_path))
    assert printed_by(*arguments)[1] == f"the model is not at {tmp_path} yet; give another --model-path\n"
    (tmp_path / "config.json").write_text("{}")
    assert printed_by(*arguments)[1] == ""


def test_up_takes_a_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.engines import up

    given: list[up.UpOptions] = []
    monkeypatch.setattr(up, "run_up", lambda options, screen: given.append(options) or 0)
    run("up", "--model-path", str(tmp_path))
    assert given[0].model_path == tmp_path


def test_json_without_dry_run() -> None:
    with pytest.raises(ConfigurationError, match="needs --dry-run"):
        CliRunner().invoke(cli.app, ["engine", "smollm2-135m-cpu", "--json"], catch_exceptions=False)


def test_engine_becomes_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.catalog.argv import EngineCommand
    from serving.engines import launch

    became: list[EngineCommand] = []
    command = EngineCommand(argv=("x",), environment={})

    def prepare(profile: str, **options: Any) -> EngineCommand:
        assert (profile, options["host"], options["port"]) == ("p", "127.0.0.1", 8001)
        options["report"]("told")
        return command

    monkeypatch.setattr(launch, "prepare_engine", prepare)
    monkeypatch.setattr(launch, "become_engine", became.append)
    assert "told" in run("engine", "p")
    assert became == [command]


@pytest.mark.parametrize(("shelf", "name"), [("profiles", "smollm2-135m-cpu"), ("models", "qwen3-0.6b"), ("targets", "cpu-epyc")])
def test_shelves_are_listed(shelf: str, name: str) -> None:
    assert name in run(shelf)
    assert name in {record["name"] for record in json.loads(run(shelf, "--json"))}


def test_another_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of_catalog(tmp_path)
    for path in (root / "profiles").glob("qwen3-*.yaml"):
        path.unlink()
    assert "qwen3" not in run("profiles", "--catalog", str(root))
    monkeypatch.setenv("SERVING_CATALOG_DIR", str(root))
    assert "qwen3" not in run("profiles")


def test_an_error_is_one_sentence_and_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "serving", "engine", "smollm2-135m-cup", "--dry-run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("serving: profile 'smollm2-135m-cup' is not in the catalog; did you mean smollm2-135m-cpu?")


def test_no_command_imports_an_engine() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom serving.cli import app\n"
        "done = CliRunner().invoke(app, ['engine', 'smollm2-135m-cpu', '--dry-run'])\n"
        "assert done.exit_code == 0, done.output\n"
        "print(sorted({'vllm', 'torch', 'gguf', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
