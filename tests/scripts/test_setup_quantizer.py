"""The folder of llm-compressor: made once, made anew when its lock changes, and never there by half."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Pip:
    """In pip's place: puts one file where it is told, and can be killed on the way."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_killed = False

    def __call__(self, *arguments: str) -> None:
        self.calls += 1
        target = Path(arguments[arguments.index("--target") + 1])
        (target / "llmcompressor").mkdir(parents=True)
        if self.is_killed:
            raise KeyboardInterrupt


@pytest.fixture
def quantizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("setup_quantizer_script", SCRIPTS / "setup_quantizer.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "setup")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "quantizer.txt").write_text("thing==1\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "fetched", lambda layer, lock: tmp_path / "wheels")
    monkeypatch.setattr(module, "pip", Pip())
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path / "cache"))
    return module


def test_what_is_there_costs_nothing(quantizer: ModuleType, tmp_path: Path) -> None:
    quantizer.make_overlay()
    quantizer.make_overlay()
    assert quantizer.pip.calls == 1
    assert (tmp_path / "cache" / "quantizer" / "llmcompressor").is_dir()


def test_a_changed_lock_is_installed_anew(quantizer: ModuleType, tmp_path: Path) -> None:
    quantizer.make_overlay()
    (tmp_path / "requirements" / "quantizer.txt").write_text("thing==2\n")
    quantizer.make_overlay()
    assert quantizer.pip.calls == 2


def test_one_that_was_cut_off_is_not_there(quantizer: ModuleType, tmp_path: Path) -> None:
    quantizer.pip.is_killed = True
    with pytest.raises(KeyboardInterrupt):
        quantizer.make_overlay()
    assert not (tmp_path / "cache" / "quantizer").exists()
    quantizer.pip.is_killed = False
    quantizer.make_overlay()
    assert (tmp_path / "cache" / "quantizer" / "llmcompressor").is_dir()
