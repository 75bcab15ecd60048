"""What a verdict is tied to: the image, the checkpoint, the command, the environment and the hardware, as one digest.

The same candidate with other flags has another digest and needs a verdict of its own. Where an engine listens and whom it
asks for a secret changes no answer, so the arguments for that are left out; everything else counts, also the order of words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from serving.catalog.records import Record, Text

ADDRESS_FLAGS = frozenset({"--host", "--port", "--uds", "--root-path", "--master-addr", "--master-port", "--node-rank"})
"""Each has one value behind it."""
SECRET_FLAGS = frozenset({"--api-key", "--hf-token"})
"""Not counted, and not written down either."""
_FORMAT = "serving gate configuration 1"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Configuration(Record):
    """Of one engine. A field that nobody knows is the word `unknown`, which makes a digest of its own."""

    image: Text
    """Of the engine: `repository@sha256:…`, `repository:tag`, or `vllm 0.32.0 (cpu)` where no image runs."""
    checkpoint: Text
    """The weights: `repository@revision`, or `sha256:…` of the folder."""
    argv: tuple[str, ...]
    target: Text
    """Hardware, by the catalog's name."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that were set for the engine by intent; no secret and nothing that differs from pod to pod."""

    @property
    def digest(self) -> str:
        return configuration_digest(self.image, self.checkpoint, self.argv, self.target, self.environment)

    @property
    def is_known(self) -> bool:
        return "unknown" not in (self.image, self.checkpoint, self.target)


def configuration_digest(
    image: str, checkpoint: str, argv: Sequence[str], target: str, environment: Mapping[str, str] | None = None
) -> str:
    """SHA-256 in hexadecimal, of a canonical form; the same on every machine."""
    data = {
        "format": _FORMAT,
        "image": image,
        "checkpoint": checkpoint,
        "argv": list(counted_words(argv)),
        "target": target,
        "environment": dict(environment or {}),
    }
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def counted_words(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command without its addresses and secrets, as `--port 8000` or `--port=8000`."""
    skips = False
    for word in argv:
        if skips:
            skips = False
            continue
        name, equals, _ = word.partition("=")
        if name in ADDRESS_FLAGS or name in SECRET_FLAGS:
            skips = not equals
            continue
        yield word
