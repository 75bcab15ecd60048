"""Eight ways to break a model that answers on, each written as a checkpoint: what the gate must not let pass.

The broken checkpoint stands for an engine (or a converter) that makes this mistake with the honest one, so the reference is
always expanded from the honest one. Sources are NVFP4, MXFP4 or INT8 checkpoints in one shard, as `serving quantize` writes them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]
"""torch's tensors by name. torch is imported where it is used, so that tests can read the list without it."""
Config = dict[str, Any]

ROPE_FACTOR = 0.1
INPUT_SCALE_FACTOR = 1 / 64
SIX, FOUR = 7, 6
"""Codes of E2M1: the largest value and the one below."""


@dataclass(frozen=True)
class Sabotage:
    name: str
    what: str
    write: Callable[[Path, Path, Path], None]
    """Takes the honest quantized checkpoint, the original in bfloat16, and the folder to write."""


def middle_layer(config: Config) -> int:
    return int(config["num_hidden_layers"]) // 2


def roll_scales(honest: Path, original: Path, out: Path) -> None:
    """Each group of one matrix has its neighbour's scale, as after an index that is off by one."""

    def change(tensors: Tensors, config: Config) -> None:
        name = f"{_down(config)}.weight_scale"
        tensors[name] = tensors[name].roll(1, dims=1)

    _change(honest, out, change)


def double_matrix(honest: Path, original: Path, out: Path) -> None:
    """One matrix is twice itself, as when its scale is applied twice or meant for another."""

    def change(tensors: Tensors, config: Config) -> None:
        import torch

        prefix = _down(config)
        if f"{prefix}.weight_global_scale" in tensors:
            tensors[f"{prefix}.weight_global_scale"] = tensors[f"{prefix}.weight_global_scale"] / 2  # a divisor
        elif tensors[f"{prefix}.weight_scale"].dtype == torch.uint8:
            tensors[f"{prefix}.weight_scale"] = tensors[f"{prefix}.weight_scale"] + 1  # an exponent
        else:
            tensors[f"{prefix}.weight_scale"] = tensors[f"{prefix}.weight_scale"] * 2

    _change(honest, out, change)


def wrong_table(honest: Path, original: Path, out: Path) -> None:
    """The largest of the eight values of the FP4 table reads as the one below: 6 as 4, in every matrix."""

    def change(tensors: Tensors, config: Config) -> None:
        from serving.gate.checkpoints import e2m1

        for name in [name for name in tensors if name.endswith(".weight_packed")]:
            codes = e2m1.unpack(tensors[name])
            codes[(codes & 7) == SIX] -= SIX - FOUR
            tensors[name] = e2m1.pack(codes)

    _change(honest, out, change)


def swap_heads(honest: Path, original: Path, out: Path) -> None:
    """Two heads of one layer's queries have changed places, as after a wrong split or permutation."""

    def change(tensors: Tensors, config: Config) -> None:
        heads = int(config["num_attention_heads"])
        prefix = f"model.layers.{middle_layer(config)}.self_attn.q_proj."
        for name in [n for n in tensors if n.startswith(prefix) and n.endswith(("weight", "weight_packed", "weight_scale"))]:
            rows = tensors[name]
            order = list(range(heads))
            order[0], order[-1] = order[-1], order[0]
            tensors[name] = rows.reshape(heads, -1, rows.shape[-1])[order].reshape(rows.shape).contiguous()

    _change(honest, out, change)


def wrong_rope_base(honest: Path, original: Path, out: Path) -> None:
    """Positions turn at another rate, as after a conversion that lost a field of config.json and took its default."""

    def change(tensors: Tensors, config: Config) -> None:
        place = config.get("rope_parameters", config)
        place["rope_theta"] *= ROPE_FACTOR

    _change(honest, out, change)


def stale_layer(honest: Path, original: Path, out: Path) -> None:
    """One layer holds another's weights, as when a loader left a buffer from the layer before."""

    def change(tensors: Tensors, config: Config) -> None:
        stale, other = (f"model.layers.{middle_layer(config) - back}." for back in (0, 1))
        for name in [name for name in tensors if name.startswith(other)]:
            tensors[stale + name.removeprefix(other)] = tensors[name].clone()

    _change(honest, out, change)


def silent_no_op(honest: Path, original: Path, out: Path) -> None:
    """The quantization that was asked for did not happen: the candidate is the original, with its size and its speed."""
    shutil.copytree(original, out)


def other_template(honest: Path, original: Path, out: Path) -> None:
    """The chat template opens each message with another word, as a converted tokenizer may."""
    shutil.copytree(honest, out)
    places = [path for path in (out / "chat_template.jinja", out / "tokenizer_config.json") if path.is_file()]
    for path in places:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("<|im_start|>' + message['role'] + '", "<|im_start|>' + message['role'] + ': "))
    if all((honest / path.name).read_bytes() == path.read_bytes() for path in places):
        raise AssertionError(f"{honest} has no chat template that this can change")


def input_scales(honest: Path, original: Path, out: Path) -> None:
    """The stored scale of every matrix's activations (NVFP4 W4A4) is a 64th: their groups' scales lose their finest steps."""

    def change(tensors: Tensors, config: Config) -> None:
        for name in [name for name in tensors if name.endswith(".input_global_scale")]:
            tensors[name] = tensors[name] * INPUT_SCALE_FACTOR

    _change(honest, out, change)


SABOTAGES = (
    Sabotage("roll-scales", "one matrix's scales rolled by a group", roll_scales),
    Sabotage("double-matrix", "one matrix doubled", double_matrix),
    Sabotage("wrong-table", "one wrong value in the FP4 table", wrong_table),
    Sabotage("swap-heads", "two heads of one layer swapped", swap_heads),
    Sabotage("wrong-rope-base", "wrong rope base", wrong_rope_base),
    Sabotage("stale-layer", "a stale layer", stale_layer),
    Sabotage("silent-no-op", "a quantization that silently did nothing", silent_no_op),
    Sabotage("other-template", "a chat template changed", other_template),
)

INPUT_SCALES = Sabotage("input-scales", "wrong scales of all activations", input_scales)
"""Of formats that keep such scales, beside the eight."""


def _down(config: Config) -> str:
    return f"model.layers.{middle_layer(config)}.mlp.down_proj"


def _change(honest: Path, out: Path, change: Callable[[Tensors, Config], None]) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(honest, out, ignore=lambda _, names: [name for name in names if re.search(r"\.safetensors$", name)])
    (out / "serving-manifest.json").unlink(missing_ok=True)
    tensors = load_file(honest / "model.safetensors")
    config = json.loads((honest / "config.json").read_text(encoding="utf-8"))
    change(tensors, config)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
