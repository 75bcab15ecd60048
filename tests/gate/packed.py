"""A small packed checkpoint made by hand, with random weights, in the names of either tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROWS, COLUMNS = 8, 64
SCHEMES: dict[str, dict[str, Any]] = {
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "format": "nvfp4-pack-quantized"},
    "mxfp4": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "format": "mxfp4-pack-quantized"},
    "int4": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "format": "pack-quantized"},
    "int8": {"num_bits": 8, "type": "int", "strategy": "channel", "format": "int-quantized"},
    "fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "format": "float-quantized"},
}


def any_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def any_scales(*shape: int) -> torch.Tensor:
    """E4M3, from 0.5 to 100."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 100 + 0.5).to(torch.float8_e4m3fn)


def matrix(kind: str) -> dict[str, torch.Tensor]:
    """The tensors of one matrix by the last part of their names."""
    if kind in ("nvfp4", "modelopt"):
        packed, scales = any_bytes(ROWS, COLUMNS // 2), any_scales(ROWS, COLUMNS // 16)
        if kind == "nvfp4":
            return {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": torch.tensor([1024.0])}
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": torch.tensor(1 / 1024), "input_scale": torch.ones(())}
    if kind == "mxfp4":
        return {"weight_packed": any_bytes(ROWS, COLUMNS // 2), "weight_scale": any_bytes(ROWS, COLUMNS // 32) % 20 + 110}
    if kind == "int4":
        words = any_bytes(ROWS, COLUMNS // 2).view(torch.int32)
        scales = any_scales(ROWS, COLUMNS // 32).to(torch.bfloat16)
        return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor([ROWS, COLUMNS])}
    values = any_bytes(ROWS, COLUMNS)
    scales = any_scales(ROWS, 1).to(torch.bfloat16)
    if kind == "int8":
        return {"weight": values.view(torch.int8), "weight_scale": scales}
    return {"weight": (values % 120).view(torch.float8_e4m3fn), "weight_scale": scales}


def quantization_config(*kinds: str) -> dict[str, Any]:
    if kinds == ("modelopt",):
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    groups = {
        f"group_{place}": {"weights": SCHEMES[kind] | {"symmetric": True}, "format": SCHEMES[kind]["format"]}
        for place, kind in enumerate(kinds)
    }
    return {"quant_method": "compressed-tensors", "config_groups": groups}


def write_checkpoint(folder: Path, *kinds: str, shards: int = 1, **more: torch.Tensor) -> Path:
    """A matrix `layers.NUMBER` for each kind, a norm, and `more` by full names with __ for points."""
    folder.mkdir()
    tensors = {"norm.weight": torch.ones(COLUMNS, dtype=torch.bfloat16)}
    for number, kind in enumerate(kinds):
        tensors |= {f"layers.{number}.{last}": tensor for last, tensor in matrix(kind).items()}
    tensors |= {name.replace("__", "."): tensor for name, tensor in more.items()}
    names = list(tensors)
    places = {}
    for shard in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        held = {name: tensors[name].contiguous() for name in names[shard::shards]}
        save_file(held, folder / file)
        places |= dict.fromkeys(held, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"hidden_size": COLUMNS, "quantization_config": quantization_config(*kinds)}))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "as it was"}')
    (folder / "hf_quant_config.json").write_text("{}")
    return folder
