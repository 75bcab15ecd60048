"""The formats that `serving quantize` writes: what llm-compressor is told for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints.scheme import Format

IGNORED = ("lm_head", "re:.*mlp.gate$", "re:.*router.*")
"""Left in bfloat16: the last layer and the routers of experts, as everybody's published checkpoints have it."""
INT4_GROUPS = (128, 64, 32)


@dataclass(frozen=True)
class Recipe:
    """`weights` and `inputs` are arguments of compressed-tensors' QuantizationArgs; `group` must divide each matrix's columns."""

    format: Format
    weights: dict[str, Any]
    inputs: dict[str, Any] | None = None
    group: int = 1
    calibrated: bool = False
    """Whether the scales of activations are measured beforehand, on texts."""


def _nvfp4(dynamic: bool | str) -> dict[str, Any]:
    scale = {"scale_dtype": "torch.float8_e4m3fn"}
    return {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": dynamic, **scale}


def _mxfp4(dynamic: bool) -> dict[str, Any]:
    scale = {"scale_dtype": "torch.uint8"}
    return {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": dynamic, **scale}


RECIPES = {
    "nvfp4a16": Recipe("nvfp4", _nvfp4(False), group=16),
    "nvfp4": Recipe("nvfp4", _nvfp4(False), _nvfp4("local"), group=16, calibrated=True),
    "mxfp4a16": Recipe("mxfp4", _mxfp4(False), group=32),
    "mxfp4": Recipe("mxfp4", _mxfp4(False), _mxfp4(True), group=32),
    "int8": Recipe(
        "int8",
        {"num_bits": 8, "type": "int", "strategy": "channel"},
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    ),
    "int4": Recipe("int4", {"num_bits": 4, "type": "int", "strategy": "group"}, group=INT4_GROUPS[-1]),
}


def recipe_for(name: str, config: dict[str, Any]) -> Recipe:
    """The recipe `name` for the model of `config`, the object of config.json.

    Raises:
        ConfigurationError: there is no such recipe, or a size of the model is no multiple of its groups.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ConfigurationError(f"--format {name}: is not known; known are {', '.join(RECIPES)}")
    sizes = _columns(config)
    for field, size in sizes.items():
        if size % recipe.group:
            raise ConfigurationError(
                f"config.json: {field} is {size}, which is no multiple of {recipe.group}, the group of {recipe.format}"
            )
    if name == "int4":
        group = next(group for group in INT4_GROUPS if all(size % group == 0 for size in sizes.values()))
        return Recipe("int4", {**recipe.weights, "group_size": group}, group=group)
    return recipe


def _columns(config: dict[str, Any]) -> dict[str, int]:
    """The inputs' sizes of a transformer's matrices, by their fields in config.json."""
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    fields = ("hidden_size", "intermediate_size", "moe_intermediate_size")
    return {field: inner[field] for field in fields if isinstance(inner.get(field), int)}
