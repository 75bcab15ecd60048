"""The matched reference of a quantized checkpoint: the very weights that it packs, expanded to bfloat16.

A right engine gives the reference's answers up to its arithmetic, so that one wrong scale shows. Weights quantized anew from
the original would not do: another rounding differs as much as one broken matrix.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from serving.core.errors import ConfigurationError
from serving.engines.model_store import MANIFEST
from serving.gate.checkpoints.files import INDEX, CheckpointReader, CheckpointWriter, modules
from serving.gate.checkpoints.layouts import LAYOUTS, Layout, Unreadable
from serving.gate.checkpoints.place import require_new, write_folder
from serving.gate.checkpoints.scheme import Quantization, read_json, read_quantization

LEFT_OUT = ("config.json", "hf_quant_config.json", "recipe.yaml", INDEX, MANIFEST)
"""Files of a quantized checkpoint that its expanded weights no longer fit, or that are written anew."""
CACHE_SCALES = ("k_scale", "v_scale", "q_scale", "prob_scale")
PACKED_TYPES = (torch.uint8, torch.int8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


@dataclass(frozen=True)
class Expanded:
    """What was done: how many matrices of each format, and the names of the scales of the cache that were left out."""

    quantization: Quantization
    matrices: dict[str, int]
    cache_scales: tuple[str, ...]


def dequantize(checkpoint: Path, out: Path, report: Callable[[str], None], shard_bytes: int | None = None) -> Expanded:
    """Write the folder `out` with the weights of `checkpoint` in bfloat16, whole or not at all.

    Raises:
        ConfigurationError: `out` is there already, `checkpoint` is not quantized, or packed in a way that is not known.
    """
    quantization = read_quantization(checkpoint)
    require_new(out)
    result: list[Expanded] = []

    def build(folder: Path) -> None:
        with CheckpointReader(checkpoint) as reader:
            writer = CheckpointWriter(folder, **({} if shard_bytes is None else {"shard_bytes": shard_bytes}))
            result.append(_expand(reader, writer, quantization, report))
        _copy_others(checkpoint, folder)

    write_folder(out, build, report)
    return result[0]


def _expand(
    reader: CheckpointReader, writer: CheckpointWriter, quantization: Quantization, report: Callable[[str], None]
) -> Expanded:
    layouts = [layout for layout in LAYOUTS[quantization.method] if layout.format in quantization.formats]
    counts: dict[str, int] = {}
    cache_scales: list[str] = []
    for done, (prefix, names) in enumerate(modules(reader.names)):
        if done % 256 == 0:
            report(f"expanding: {done} modules done")
        cache_scales += [names.pop(last) for last in CACHE_SCALES if last in names]
        tensors = {last: reader.read(name) for last, name in names.items()}
        if not _is_packed(tensors):
            for last, name in names.items():
                writer.add(name, tensors[last])
            continue
        bias = tensors.pop("bias", None)
        layout = _layout(prefix, tensors, layouts, quantization)
        try:
            writer.add(f"{prefix}.weight", layout.expand(tensors).to(torch.bfloat16))
        except Unreadable as error:
            raise ConfigurationError(f"{prefix}: {error}") from None
        if bias is not None:
            writer.add(f"{prefix}.bias", bias)
        counts[layout.format] = counts.get(layout.format, 0) + 1
    if missing := sorted(quantization.formats - counts.keys()):
        raise ConfigurationError(
            f"quantization_config names {', '.join(missing)} and no matrix is packed so; the quantization did not happen"
        )
    writer.close()
    return Expanded(quantization, counts, tuple(cache_scales))


def _is_packed(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether something in a module is no plain weight: then all of it has to be understood."""
    return any(tensor.dtype in PACKED_TYPES or last.startswith("weight_") for last, tensor in tensors.items())


def _layout(prefix: str, tensors: dict[str, torch.Tensor], layouts: list[Layout], quantization: Quantization) -> Layout:
    for layout in layouts:
        if layout.matches(tensors):
            return layout
    told = ", ".join(f"{name} {str(tensor.dtype).removeprefix('torch.')}" for name, tensor in sorted(tensors.items()))
    raise ConfigurationError(f"{prefix}: holds {told}, which is not {quantization}")


def _copy_others(checkpoint: Path, folder: Path) -> None:
    """Tokenizer, chat template and the like as they are; the configuration without its quantization."""
    for path in checkpoint.iterdir():
        if path.is_file() and path.suffix not in (".safetensors", ".lock", ".partial") and path.name not in LEFT_OUT:
            shutil.copyfile(path, folder / path.name)
    config = read_json(checkpoint / "config.json")
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
