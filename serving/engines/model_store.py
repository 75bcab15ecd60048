"""Model folders that are whole or not there: built beside their place under a lock, sealed by a manifest, renamed.

The manifest lists every file with its size and SHA-256. A folder without one, or one that differs from it, is damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Report = Callable[[str], None]

MANIFEST = "serving-manifest.json"
PROGRESS_PERIOD_SECONDS = 5.0


def damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, as a phrase; None when every file is as the manifest says."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {name: (int(entry["size_bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest is missing or cannot be read"
    for name, (size_bytes, sha256) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size_bytes:
            return f"{name} has {path.stat().st_size} bytes instead of {size_bytes}"
        if sha256_of(path) != sha256:
            return f"{name} has changed"
    return None if expected else "its manifest is empty"


def keep(folder: Path, build: Callable[[Path], None], report: Report) -> None:
    """Make `folder` whole: call `build` with an empty folder beside it, seal the result and rename it into place.

    Another process that builds the same folder is waited for, and its result is used. What `build` raises is passed on
    and leaves nothing behind. A damaged `folder` is replaced.
    """
    with _locked(folder, report):
        if folder.exists():
            if damage(folder) is None:
                return
            shutil.rmtree(folder)
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            _seal(partial)
            partial.rename(folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def progress(folder: Path, total_bytes: int, what: str, report: Report) -> Iterator[None]:
    """While the block runs, tell every few seconds how many bytes lie in `folder`."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PROGRESS_PERIOD_SECONDS):
            report(f"{what}: {_size_bytes(folder) / 1e6:.0f} of {total_bytes / 1e6:.0f} MB")

    thread = threading.Thread(target=watch, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process prepares {folder.name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _seal(folder: Path) -> None:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        path.chmod(0o644)
        files[path.relative_to(folder).as_posix()] = {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        _sync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a file that was renamed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total
