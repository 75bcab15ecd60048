"""The program that fills a pod's model volume: as a plain file, with the hub's library in its place."""

from __future__ import annotations

import fcntl
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
class Listed:
    def __init__(self, name, sha256):
        self.rfilename, self.lfs = name, Lfs(sha256) if sha256 else None
class Lfs:
    def __init__(self, sha256):
        self.sha256 = sha256
class HfApi:
    def model_info(self, repository, *, revision, files_metadata):
        self.siblings = [Listed("model.safetensors", LISTED), Listed("config.json", None)]
        return self
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def fetch(
    folder: Path, *files: str, content: bytes | None = WEIGHTS, listed: str = DIGEST, library: Path | None = None
) -> tuple[int, str, int]:
    """Exit status, what was said, and how often the hub was asked so far. Without `content` there is no hub library."""
    place = library or folder.parent / "library"
    place.mkdir(exist_ok=True)
    if content is not None:
        (place / "huggingface_hub.py").write_text(HUB.replace("CONTENT", repr(content)).replace("LISTED", repr(listed)))
    command = [sys.executable, "-S", str(PROGRAM), "org/name", "abc", str(folder), *files]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(place)}, timeout=180)
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


def test_what_the_call_does_not_name_is_checked_against_the_hub(model: Path) -> None:
    status, said, _ = fetch(model, listed="0" * 64, library=model.parent / "another")
    assert status == 1 and "has the SHA-256" in said and "0" * 64 in said
    assert fetch(model)[:2] == (0, "fetching org/name@abc\nfetched and checked\n")
    assert fetch(model, content=None)[:2] == (0, "org/name@abc is there already\n")


def test_the_folder_is_made(model: Path) -> None:
    assert fetch(model / "models" / "one", f"model.safetensors={DIGEST}", library=model.parent / "library")[0] == 0
    assert (model / "models" / "one" / ".fetched-abc").exists()


def test_of_two_pods_one_fetches(model: Path) -> None:
    """The second finds the lock taken, waits, and then finds the mark of the first."""
    with (model / ".fetching").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (model.parent / "library").mkdir()
        command = [sys.executable, "-S", str(PROGRAM), "org/name", "abc", str(model), f"model.safetensors={DIGEST}"]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(model.parent / "library")})
        assert other.stdout is not None and other.stdout.readline() == "another pod is fetching; waiting for it\n"
        (model / ".fetched-abc").touch()
    said, _ = other.communicate(timeout=180)
    assert (other.returncode, said) == (0, "org/name@abc was fetched by another pod\n")


def test_a_folder_that_cannot_be_written_is_said(model: Path) -> None:
    (model / "file").touch()
    status, said, _ = fetch(model / "file" / "models", f"model.safetensors={DIGEST}", library=model.parent / "library")
    assert status == 1 and "cannot be written" in said and "user 2000" in said


def test_a_wrong_call_says_what_is_right(model: Path) -> None:
    status, said, _ = fetch(model, "model.safetensors")
    assert status == 2 and "usage: python3 fetch_model.py REPOSITORY REVISION FOLDER" in said
