"""What a checkpoint's `quantization_config` says of its packed weights: the formats that can be expanded, and no other.

Two vocabularies are known: compressed-tensors (llm-compressor) and ModelOpt (NVIDIA). What is not known by name is refused with
the path of the field, since a wrong guess would give a wrong reference, and a wrong reference fails a right engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serving.core.errors import ConfigurationError

Format = Literal["nvfp4", "mxfp4", "int8", "int4", "fp8"]
"""How one matrix is packed; `fp8` stands beside NVFP4 in mixed checkpoints."""

COMPRESSED = "compressed-tensors"
MODELOPT = "modelopt"

Key = tuple[str, str, int, str, int | None]
"""Format of the file, type, bits, strategy and group size of weights; no size stands for a size that is read from the group."""

KNOWN: dict[Key, Format] = {
    ("nvfp4-pack-quantized", "float", 4, "tensor_group", 16): "nvfp4",
    ("mxfp4-pack-quantized", "float", 4, "group", 32): "mxfp4",
    ("int-quantized", "int", 8, "channel", None): "int8",
    ("int-quantized", "int", 8, "tensor", None): "int8",
    ("pack-quantized", "int", 4, "group", None): "int4",
    ("pack-quantized", "int", 4, "channel", None): "int4",
    ("float-quantized", "float", 8, "channel", None): "fp8",
    ("float-quantized", "float", 8, "tensor", None): "fp8",
}
SIZED = {("nvfp4-pack-quantized", "tensor_group"), ("mxfp4-pack-quantized", "group")}


@dataclass(frozen=True)
class Scheme:
    """How some of a checkpoint's matrices are packed.

    `activation_bits` is None where the engine leaves activations as they are: then the expanded weights give the very
    numbers that a right engine gives, up to its arithmetic.
    """

    format: Format
    activation_bits: int | None


@dataclass(frozen=True)
class Quantization:
    """A checkpoint's schemes, in the order of its configuration, under the tool's names of tensors."""

    method: Literal["compressed-tensors", "modelopt"]
    schemes: tuple[Scheme, ...]
    quantizes_cache: bool

    @property
    def formats(self) -> frozenset[Format]:
        return frozenset(scheme.format for scheme in self.schemes)

    @property
    def weight_only(self) -> bool:
        return all(scheme.activation_bits is None for scheme in self.schemes)

    def __str__(self) -> str:
        parts = [
            f"{s.format} ({'weights only' if s.activation_bits is None else f'activations in {s.activation_bits} bits'})"
            for s in self.schemes
        ]
        return f"{' and '.join(dict.fromkeys(parts))}, as {self.method} writes it"


def read_quantization(checkpoint: Path) -> Quantization:
    """What `checkpoint`'s config.json says.

    Raises:
        ConfigurationError: there is no such file, the model is not quantized, or not in a way that is known here.
    """
    config = read_json(checkpoint / "config.json")
    separate = checkpoint / "hf_quant_config.json"
    if isinstance(config.get("quantization_config"), dict):
        return parse_quantization(config["quantization_config"], f"{checkpoint}/config.json: quantization_config")
    if separate.is_file():  # as older ModelOpt wrote it
        inner = read_json(separate).get("quantization")
        place = f"{separate}: quantization"
        if not isinstance(inner, dict):
            raise ConfigurationError(f"{place}: must be an object with quant_algo")
        return parse_quantization({"quant_method": MODELOPT, **inner}, place)
    raise ConfigurationError(
        f"{checkpoint}/config.json: quantization_config is missing: this model is not quantized, and is its own reference"
    )


def parse_quantization(config: dict[str, Any], place: str) -> Quantization:
    """The same of the object itself, which stands at `place`. Raises: as `read_quantization`."""
    method = config.get("quant_method")
    if method == COMPRESSED:
        return _compressed(config, place)
    if method == MODELOPT:
        return _modelopt(config, place)
    raise ConfigurationError(f"{place}.quant_method: {method!r} is not known; known are {COMPRESSED} and {MODELOPT}")


def _compressed(config: dict[str, Any], place: str) -> Quantization:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ConfigurationError(f"{place}.config_groups: must be an object with at least one group")
    if _given(config.get("transform_config")):
        raise ConfigurationError(f"{place}.transform_config: transformed weights (rotations) cannot be expanded")
    if _given(config.get("sparsity_config")) and config["sparsity_config"].get("format") != "dense":
        raise ConfigurationError(f"{place}.sparsity_config: sparse weights cannot be expanded")
    schemes = tuple(
        _compressed_scheme(group, config.get("format"), f"{place}.config_groups.{name}") for name, group in groups.items()
    )
    return Quantization("compressed-tensors", schemes, quantizes_cache=bool(config.get("kv_cache_scheme")))


def _compressed_scheme(group: Any, outer_format: Any, place: str) -> Scheme:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise ConfigurationError(f"{place}.weights: must be an object; a group without quantized weights is not known here")
    if weights.get("symmetric") is not True:
        raise ConfigurationError(f"{place}.weights.symmetric: must be true; weights with zero points cannot be expanded")
    if weights.get("actorder") in ("group", True):
        raise ConfigurationError(f"{place}.weights.actorder: reordered columns cannot be expanded")
    kind = group.get("format") or outer_format
    strategy = weights.get("strategy")
    size = weights.get("group_size") if (kind, strategy) in SIZED else None
    key = (kind, weights.get("type"), weights.get("num_bits"), strategy, size)
    found = KNOWN.get(key)  # type: ignore[arg-type]
    if found is None:
        known = ", ".join(" ".join(str(part) for part in row if part is not None) for row in KNOWN)
        told = " ".join(str(part) for part in key if part is not None)
        raise ConfigurationError(f"{place}: {told} is not known; known are {known} (format, type, bits, strategy, group size)")
    inputs = group.get("input_activations")
    return Scheme(found, inputs["num_bits"] if isinstance(inputs, dict) and "num_bits" in inputs else None)


def _modelopt(config: dict[str, Any], place: str) -> Quantization:
    algorithm = config.get("quant_algo")
    if algorithm not in ("NVFP4", "W4A16_NVFP4"):
        raise ConfigurationError(f"{place}.quant_algo: {algorithm!r} is not known; known of {MODELOPT} are NVFP4 and W4A16_NVFP4")
    if config.get("group_size", 16) != 16:
        raise ConfigurationError(f"{place}.group_size: {config['group_size']!r} is not known; NVFP4 has groups of 16")
    bits = 4 if algorithm == "NVFP4" else None
    cache = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    return Quantization("modelopt", (Scheme("nvfp4", bits),), quantizes_cache=bool(cache))


def _given(section: Any) -> bool:
    return isinstance(section, dict) and any(section.values())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a checkpoint. Raises: ConfigurationError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: must hold a JSON object")
    return found
