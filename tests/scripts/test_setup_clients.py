"""The environment of the clients: made once, made anew when it changes or was cut off, and never half ready."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Machine:
    """In place of pip, venv and npm: notes what is run, and can be killed on the way."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.killed_in = ""

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.killed_in:
            raise KeyboardInterrupt

    def pip(self, *arguments: str) -> bool:
        self.note("pip")
        return True

    def run(self, command: list[str], **options: object) -> None:
        if "venv" in command:
            self.note("venv")
            (Path(command[-1]) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages").mkdir(parents=True, exist_ok=True)
            return
        self.note("npm")
        assert isinstance(options["cwd"], Path)
        (options["cwd"] / "node_modules").mkdir(exist_ok=True)

    def take(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("setup_clients_script", SCRIPTS / "setup_clients.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "setup")
    for folder in ("requirements", "node"):
        (tmp_path / folder).mkdir()
    (tmp_path / "requirements" / "clients.txt").write_text("thing==1\n")
    (tmp_path / "node" / "package-lock.json").write_text("{}")
    for name, value in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "ENVIRONMENT": tmp_path / ".venv-clients",
        "NODE_CLIENTS": tmp_path / "node",
        "fetched": lambda layer, lock: tmp_path / "wheels",
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.setup, "pip", machine.pip)
    monkeypatch.setattr(subprocess, "run", machine.run)
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path / "cache"))
    return module


def test_what_is_there_costs_nothing(clients: ModuleType, machine: Machine) -> None:
    clients.main()
    assert machine.take() == ["venv", "pip", "npm"]
    clients.main()
    assert machine.take() == []


@pytest.mark.parametrize(
    ("changed", "redone"), [("requirements/clients.txt", ["venv", "pip"]), ("node/package-lock.json", ["npm"])]
)
def test_a_changed_lock_is_installed_anew(
    clients: ModuleType, machine: Machine, tmp_path: Path, changed: str, redone: list[str]
) -> None:
    clients.main()
    machine.take()
    (tmp_path / changed).write_text("other==2\n")
    clients.main()
    assert machine.take() == redone


@pytest.mark.parametrize(("where", "redone"), [("pip", ["venv", "pip", "npm"]), ("npm", ["npm"])])
def test_what_was_cut_off_is_done_again(clients: ModuleType, machine: Machine, where: str, redone: list[str]) -> None:
    machine.killed_in = where
    with pytest.raises(KeyboardInterrupt):
        clients.main()
    machine.killed_in = ""
    machine.take()
    clients.main()
    assert machine.take() == redone


def test_the_environment_behind_is_seen_only_once_pip_is_done(clients: ModuleType, machine: Machine) -> None:
    """Or pip would take what is there for installed here."""
    machine.killed_in = "pip"
    with pytest.raises(KeyboardInterrupt):
        clients.main()
    pointer = clients.ENVIRONMENT / clients.SITE / "behind.pth"
    assert not pointer.exists()
    machine.killed_in = ""
    clients.main()
    behind = (pointer.parent / pointer.read_text().strip()).resolve()
    assert behind == (clients.VENV / clients.SITE).resolve()
