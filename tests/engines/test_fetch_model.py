"""The program that fills a pod's model volume: as a plain file, with the hub's library in its place."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "serving" / "engines" / "pod" / "fetch_model.py"
WEIGHTS = b"weights"
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
HUB = """
from pathlib import Path
def snapshot_download(repository, *, revision, local_dir, allow_patterns):
    assert "*.safetensors" in allow_patterns
    Path(local_dir, "model.safetensors").write_bytes(CONTENT)
    with open(Path(__file__).with_name("calls"), "a") as calls:
        calls.write(f"{repository}@{revision}\\n")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def fetch(folder: Path, *files: str, content: bytes | None = WEIGHTS) -> tuple[int, str, int]:
    """Exit status, what was said, and how often the hub was asked so far. Without `content` there is no hub library."""
    place = folder.parent / "library"
    place.mkdir(exist_ok=True)
    if content is not None:
        (place / "huggingface_hub.py").write_text(HUB.replace("CONTENT", repr(content)))
    command = [sys.executable, "-S", str(PROGRAM), "org/name", "abc", str(folder), *files]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(place)}, timeout=60)
    calls = place / "calls"
    return done.returncode, done.stdout + done.stderr, len(calls.read_text().splitlines()) if calls.exists() else 0


def test_a_model_is_fetched_once_and_checked(model: Path) -> None:
    assert fetch(model, f"model.safetensors={DIGEST}") == (0, "fetching org/name@abc\nfetched and checked\n", 1)
    assert fetch(model, f"model.safetensors={DIGEST}") == (0, "org/name@abc is there already\n", 1)


def test_a_file_that_is_another_one_is_refused_each_time(model: Path) -> None:
    for turn in (1, 2):
        status, said, calls = fetch(model, f"model.safetensors={DIGEST}", content=b"other")
        assert (status, calls) == (1, turn)
        assert "has the SHA-256" in said and DIGEST in said


def test_a_file_that_does_not_come_is_refused(model: Path) -> None:
    status, said, _ = fetch(model, f"model.safetensors={DIGEST}", f"tokenizer.json={DIGEST}")
    assert status == 1 and "tokenizer.json cannot be read" in said


def test_a_volume_that_holds_the_model_needs_no_hub_and_is_not_written(model: Path) -> None:
    (model / "model.safetensors").write_bytes(WEIGHTS)
    assert fetch(model, f"model.safetensors={DIGEST}", content=None) == (0, "org/name@abc is there already\n", 0)
    assert [path.name for path in model.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("files", [(), ("model.safetensors",)])
def test_a_wrong_call_says_what_is_right(model: Path, files: tuple[str, ...]) -> None:
    status, said, _ = fetch(model, *files)
    assert status == 2 and "usage: python3 fetch_model.py REPOSITORY REVISION FOLDER" in said
