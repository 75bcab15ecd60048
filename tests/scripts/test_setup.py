"""What `make` runs first: nothing half installed is called ready, and what is damaged is named or fetched again."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.py"
WHEEL = "thing-1-py3-none-any.whl"


class Pip:
    """In pip's place: notes its calls, downloads one wheel, and can be killed on the way."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.killed = False

    def __call__(self, *arguments: str, may_fail: bool = False) -> bool:
        self.calls.append(arguments)
        if self.killed:
            raise KeyboardInterrupt
        if arguments[0] == "download":
            (Path(arguments[arguments.index("--dest") + 1]) / WHEEL).write_bytes(b"wheel")
        return True

    def take(self, command: str) -> list[tuple[str, ...]]:
        taken, self.calls = [call for call in self.calls if call[0] == command], []
        return taken


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for folder in ("requirements", ".venv/lib/python3/site-packages"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "requirements" / "gateway.txt").write_text("thing==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "make_venv", lambda: None)
    monkeypatch.setattr(module, "pip", Pip())
    monkeypatch.setattr(sys, "argv", ["setup.py", "gateway"])
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path / "cache"))
    return module


def manifest(setup: ModuleType) -> Path:
    (path,) = setup.cache_dir().glob("wheels/*/*/manifest.json")
    return Path(path)


def test_what_is_there_costs_nothing(setup: ModuleType) -> None:
    setup.main()
    layer, project = setup.pip.take("install")
    assert "--force-reinstall" not in (*layer, *project)
    setup.main()
    assert setup.pip.calls == []


@pytest.mark.parametrize("which", [0, 1], ids=["layer", "project"])
def test_a_killed_installation_is_done_again_from_the_ground(setup: ModuleType, which: int) -> None:
    setup.main()
    stamp = setup.VENV / (".installed-gateway", ".installed-project")[which]
    wanted = stamp.read_text()
    stamp.write_text("of former pins")
    setup.pip.killed = True
    with pytest.raises(KeyboardInterrupt):
        setup.main()
    # The former pins may come back, and their stamp is still there: the environment is broken all the same.
    stamp.write_text(wanted)
    setup.pip.killed = False
    setup.pip.calls.clear()
    setup.main()
    (again,) = setup.pip.take("install")
    assert "--force-reinstall" in again
    setup.main()
    assert setup.pip.calls == []


def test_halves_that_pip_could_not_uninstall_are_cleared(setup: ModuleType) -> None:
    setup.main()
    site = setup.VENV / "lib" / "python3" / "site-packages"
    for name, file in (("half-1.dist-info", "METADATA"), ("~alf-0.dist-info", "RECORD"), ("whole-1.dist-info", "RECORD")):
        (site / name).mkdir()
        (site / name / file).write_text("")
    (setup.VENV / ".installing-gateway").touch()
    setup.main()
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"thi', "null", "{}", '{"thing-1-py3-none-any.whl": 1}', '{"../x": "y"}', "\udcff", "[" * 100_000],
    ids=["empty", "list", "cut", "null", "no-wheels", "no-digest", "outside", "bytes", "deep"],
)
def test_a_damaged_manifest_is_fetched_again(setup: ModuleType, text: str) -> None:
    setup.main()
    manifest(setup).write_bytes(os.fsencode(text))
    (setup.VENV / ".installed-gateway").unlink()
    setup.pip.calls.clear()
    setup.main()
    assert len(setup.pip.take("download")) == 1
    assert list(json.loads(manifest(setup).read_text())) == [WHEEL]


def test_a_manifest_is_on_the_disk_before_it_has_its_name(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        assert not list(setup.cache_dir().glob("wheels/*/*/manifest.json"))

    monkeypatch.setattr(os, "fsync", fsync)
    setup.main()
    assert synced == ["manifest.partial"]


@pytest.mark.parametrize("cache", ["file/below", "~nobody-of-that-name/x"])
def test_a_cache_that_cannot_be_used_is_one_sentence(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVING_CACHE_DIR", cache if cache.startswith("~") else str(tmp_path / cache))
    with pytest.raises(SystemExit) as caught:
        setup.main()
    assert str(caught.value).startswith("setup: ")
    assert "SERVING_CACHE_DIR" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_half_made_environment_is_made_anew(tmp_path: Path, setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before pip was in it, Python runs there but nothing can be installed."""
    spec = importlib.util.spec_from_file_location("setup_script_whole", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    made: list[list[str]] = []
    run = subprocess.run

    def noted(command: list[str], **options: object) -> object:
        if "venv" in command:
            return made.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(module, "VENV", tmp_path / "bare")
    monkeypatch.setattr(module, "PYTHON", python)
    monkeypatch.setattr(subprocess, "run", noted)
    module.make_venv()
    assert len(made) == 1
