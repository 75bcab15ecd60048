"""In which format a `config.json` says that its weights are. What it does not say clearly is an error, never a guess."""

from __future__ import annotations

import json
from typing import Any

from serving.catalog.config_fields import ConfigFields
from serving.catalog.records import Format

PLAIN: dict[str, Format] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4-w4a16", "nvfp4": "nvfp4"}
"""By a `quant_method` that says all."""
METHODS = (*PLAIN, "awq", "gptq", "modelopt", "modelopt_fp4", "compressed-tensors", "quark")
INTEGERS: dict[object, Format] = {4: "int4", 8: "int8"}
QUARK: dict[object, Format] = {"fp4": "mxfp4", "fp8_e4m3": "fp8", "int4": "int4", "int8": "int8"}
TELLING_WORDS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8")
TYPES: dict[tuple[object, object], Format] = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
PACKED: dict[object, Format] = {"float-quantized": "fp8", "int-quantized": "int8"}
WIDTHS = {"bfloat16": 1.0, "float16": 1.0, "half": 1.0, "auto": 1.0, "float32": 2.0, "float": 2.0}
"""Of a checkpoint's numbers over what the engine keeps of them, which is 16 bits."""
FIELD = "quantization_config"


def weight_format(config: ConfigFields) -> Format:
    """Raises: ConfigurationError: the format cannot be told; the message names the field and what is known here."""
    described = config.get(FIELD)
    if described is None:
        return "bf16"
    if not isinstance(described, dict):
        raise config.error(FIELD, f"must be an object with quant_method, not {described!r}")
    method = described.get("quant_method")
    if method not in METHODS:
        raise config.error(f"{FIELD}.quant_method", f"{method!r} is not known here; there are: {', '.join(sorted(METHODS))}")
    if method in PLAIN:
        return PLAIN[method]
    if method in ("awq", "gptq"):
        return _known(config, "bits", described.get("bits", described.get("w_bit")), INTEGERS)
    if method == "quark":
        weight = _inside(_inside(described, "global_quant_config"), "weight")
        return _known(config, "global_quant_config.weight.dtype", weight.get("dtype"), QUARK)
    if method == "compressed-tensors":
        return _compressed(config, described)
    algorithm = described.get("quant_algo")
    word = next((word for word in TELLING_WORDS if word in str(algorithm).lower()), None)
    return word or _known(config, "quant_algo", algorithm, {"NVFP4": "nvfp4", "FP8": "fp8"})


def dtype_width(config: ConfigFields) -> float:
    """How many bytes of its files make one byte in the engine. Raises: ConfigurationError: an unknown `dtype`."""
    field = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(field)
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name is not None and (not isinstance(name, str) or name not in WIDTHS):
        raise config.error(field, f"must be one of {', '.join(WIDTHS)}, not {value!r}; 8 and 4 bits are said by {FIELD}")
    return WIDTHS.get(name or "auto", 1.0)


def _compressed(config: ConfigFields, described: dict[str, Any]) -> Format:
    groups = _inside(described, "config_groups").values()
    told = json.dumps([described.get("format"), *groups]).lower()
    word = next((word for word in TELLING_WORDS[:2] if word in told), None)
    if word:
        return word
    weights = [_inside(group, "weights") for group in groups]
    kinds = {(entry.get("type", "int"), entry.get("num_bits")) for entry in weights if _plain(entry)}
    if len(kinds) == 1 and len(weights) == sum(map(_plain, weights)):
        (kind,) = kinds
        return _known(config, "config_groups.*.weights.type, num_bits", kind, TYPES)
    if kinds:
        raise config.error(f"{FIELD}.config_groups", f"weights of several kinds are not counted here: {sorted(map(str, kinds))}")
    return _known(config, "format", described.get("format"), PACKED)


def _plain(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("num_bits"), int) and isinstance(entry.get("type", "int"), str)


def _inside(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _known(config: ConfigFields, field: str, value: object, known: dict[Any, Format]) -> Format:
    found = next((entry for key, entry in known.items() if key == value), None)
    if found is None:
        there = ", ".join(map(str, known))
        raise config.error(f"{FIELD}.{field}", f"{value!r} is not known here; there are: {there}")
    return found
