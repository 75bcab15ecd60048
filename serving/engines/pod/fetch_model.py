"""Fills a pod's model volume from the hub before the engine starts, and does nothing when the model is there already.

    python3 fetch_model.py REPOSITORY REVISION FOLDER [FILE=SHA256 …]

Files whose digests the call does not name are checked against those that the hub has for that revision. Of several pods that
share the volume one downloads and the others wait for it. Runs in vLLM's own image, which has huggingface_hub, as a plain file:
standard library only besides that, nothing of this package, Python 3.10 and later. HF_TOKEN and HF_ENDPOINT are the hub
library's own variables.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""Without the other formats that many repositories carry beside these."""
PIECE_BYTES = 1 << 20
HASHES_AT_ONCE = 4


class WrongFile(Exception):
    """A file is missing or is not the one that the catalog names; the message is a sentence without a full stop."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 the model is there, 1 a file is wrong, 2 the call is."""
    if len(arguments) < 3 or not all("=" in pair for pair in arguments[3:]):
        print(f"usage: {(__doc__ or '').splitlines()[2].strip()}", file=sys.stderr)
        return 2
    repository, revision, folder = arguments[0], arguments[1], Path(arguments[2])
    digests = dict(pair.rsplit("=", 1) for pair in arguments[3:])
    mark = folder / f".fetched-{revision}"
    try:
        if mark.exists() or _is_whole(folder, digests):
            print(f"{repository}@{revision} is there already", flush=True)
            return 0
        with _alone(folder):
            if mark.exists():
                print(f"{repository}@{revision} was fetched by another pod", flush=True)
                return 0
            print(f"fetching {repository}@{revision}", flush=True)
            _download(repository, revision, folder)
            _check(folder, {**_hub_digests(repository, revision), **digests})
            mark.touch()
    except WrongFile as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    print("fetched and checked", flush=True)
    return 0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other pod with this volume is in here. File systems without locks are left to the hub library's own."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".fetching").open("a")
    except OSError as error:
        raise WrongFile(
            f"{folder} cannot be written: {error.strerror}; is it a folder that group 0 or user 2000 may write?"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another pod is fetching; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            print("this file system has no locks", flush=True)
        yield


def _is_whole(folder: Path, digests: Mapping[str, str]) -> bool:
    """Whether somebody else has put the model here, perhaps on a volume that cannot be written."""
    if not digests:
        return False
    try:
        _check(folder, digests)
    except WrongFile:
        return False
    return True


def _download(repository: str, revision: str, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=PATTERNS)


def _hub_digests(repository: str, revision: str) -> dict[str, str]:
    """Digests of the large files, by name; small ones are part of the revision itself."""
    from huggingface_hub import HfApi

    files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    return {f.rfilename: f.lfs.sha256 for f in files if f.lfs is not None and Path(f.rfilename).match("*.safetensors")}


def _check(folder: Path, digests: Mapping[str, str]) -> None:
    with ThreadPoolExecutor(HASHES_AT_ONCE) as pool:
        for name, found in zip(digests, pool.map(lambda name: _sha256(folder / name), digests), strict=True):
            if found != digests[name]:
                raise WrongFile(f"{folder / name} has the SHA-256 {found} and not {digests[name]}, which is the right one")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    except OSError as error:
        raise WrongFile(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
