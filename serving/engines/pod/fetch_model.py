"""Fills a pod's model volume from the hub before the engine starts, and does nothing when the model is there already.

    python3 fetch_model.py REPOSITORY REVISION FOLDER FILE=SHA256 …

Runs in vLLM's own image, which has huggingface_hub, as a plain file: standard library only besides that, nothing of this
package, Python 3.10 and later. HF_TOKEN and HF_ENDPOINT are the hub library's own variables.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""Without the other formats that many repositories carry beside these."""
PIECE_BYTES = 1 << 20


class WrongFile(Exception):
    """A file is missing or is not the one that the catalog names; the message is a sentence without a full stop."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 the model is there, 1 a file is wrong, 2 the call is."""
    if len(arguments) < 4 or not all("=" in pair for pair in arguments[3:]):
        print(f"usage: {(__doc__ or '').splitlines()[2].strip()}", file=sys.stderr)
        return 2
    repository, revision, folder = arguments[0], arguments[1], Path(arguments[2])
    digests = dict(pair.rsplit("=", 1) for pair in arguments[3:])
    mark = folder / f".fetched-{revision}"
    try:
        if mark.exists() or _is_whole(folder, digests):
            print(f"{repository}@{revision} is there already", flush=True)
            return 0
        print(f"fetching {repository}@{revision}", flush=True)
        _download(repository, revision, folder)
        _check(folder, digests)
    except WrongFile as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    mark.touch()
    print("fetched and checked", flush=True)
    return 0


def _is_whole(folder: Path, digests: Mapping[str, str]) -> bool:
    """Whether somebody else has put the model here, perhaps on a volume that cannot be written."""
    try:
        _check(folder, digests)
    except WrongFile:
        return False
    return True


def _download(repository: str, revision: str, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=PATTERNS)


def _check(folder: Path, digests: Mapping[str, str]) -> None:
    for name, wanted in digests.items():
        found = _sha256(folder / name)
        if found != wanted:
            raise WrongFile(f"{folder / name} has the SHA-256 {found} and not {wanted}, which the catalog names")


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
