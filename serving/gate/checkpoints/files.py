"""The safetensors files of a checkpoint: tensors by name from however many shards, and new shards of bounded size.

A shard is held in memory while it is made, so that a model larger than the machine's memory can be expanded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints.scheme import read_json

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4_000_000_000


class CheckpointReader:
    """The tensors of a folder. Raises ConfigurationError where a file is missing, damaged or not listed."""

    def __init__(self, folder: Path) -> None:
        self._files = contextlib.ExitStack()
        self._place: dict[str, Any] = {}
        try:
            for path in self._shards(folder):
                opened = self._files.enter_context(safe_open(path, framework="pt"))
                self._place |= dict.fromkeys(opened.keys(), opened)
        except (SafetensorError, OSError) as error:
            self._files.close()
            raise ConfigurationError(f"{path}: is not a whole safetensors file: {error}") from None

    @staticmethod
    def _shards(folder: Path) -> list[Path]:
        index = folder / INDEX
        if index.is_file():
            names = read_json(index).get("weight_map")
            if not isinstance(names, dict) or not names:
                raise ConfigurationError(f"{index}: weight_map must say in which file each tensor is")
            return [folder / name for name in sorted(set(names.values()))]
        shards = sorted(folder.glob("*.safetensors"))
        if not shards:
            raise ConfigurationError(f"{folder}: holds no .safetensors file")
        return shards

    @property
    def names(self) -> list[str]:
        """In the order of the files, so that each is read once from begin to end."""
        return list(self._place)

    def read(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._place[name].get_tensor(name)
        return found

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.close()


class CheckpointWriter:
    """Writes tensors in the order they are added; `close` ends the last shard and writes the index where there are several."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._limit = shard_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._held and self._held_bytes + size > self._limit:
            self._flush()
        self._held[name] = tensor.contiguous()
        self._held_bytes += size
        self._total_bytes += size

    def close(self) -> None:
        self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        places: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            final = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self._folder / final)
            places |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": places}
        (self._folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")

    def _flush(self) -> None:
        save_file(self._held, self._part(len(self._shards)), metadata={"format": "pt"})
        self._shards.append(list(self._held))
        self._held, self._held_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}.safetensors"


def modules(names: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each module's prefix, in the order of its first tensor, with its tensors' full names by their last part."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        prefix, _, last = name.rpartition(".")
        found.setdefault(prefix, {})[last] = name
    yield from found.items()
