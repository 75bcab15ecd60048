"""A model that the catalog does not know, read from its `config.json`: shape, context and format of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.catalog.memory import BITS
from serving.catalog.model import Checkpoint, DirectorySource, Model
from serving.catalog.records import Format
from serving.catalog.shape import Experts, GroupedAttention, Indexer, LatentAttention, Shape
from serving.core.errors import ConfigurationError

QUANTIZATIONS: dict[str, Format] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4-w4a16", "quark": "mxfp4", "modelopt": "fp8", "nvfp4": "nvfp4",
    "compressed-tensors": "int8", "awq": "int4", "gptq": "int4",
}  # fmt: skip
"""`quant_method`, or the word that the rest of the quantization's description holds, which goes before it."""
TELLING_WORDS = ("nvfp4", "mxfp4", "fp8")
EXPERT_NAMES = ("n_routed_experts", "num_local_experts", "num_experts")
WIDTHS = {"float32": 2.0, "torch.float32": 2.0}
"""Of a checkpoint in 32 bits over what the engine keeps, which is 16."""


def model_from_config(path: Path) -> Model:
    """The model of a `config.json`, or of a folder that holds one; with weights beside it, their size is the files'.

    Raises:
        ConfigurationError: the file cannot be read, or lacks what the arithmetic needs; the message names the field.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(whole, dict):
        raise ConfigurationError(f"{file}: must be a JSON object, as a model's config.json is")
    inner = whole.get("text_config")
    try:
        return _model(file, {**whole, **(inner if isinstance(inner, dict) else {})})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{file}: makes no sense as a model: {place}: {first['msg']}, not {first['input']!r}") from None


def _model(file: Path, config: Mapping[str, Any]) -> Model:
    shape = Shape(
        hidden_size=_need(file, config, "hidden_size"),
        layers=_need(file, config, "num_hidden_layers"),
        vocabulary_size=_need(file, config, "vocab_size"),
        tied_embeddings=config.get("tie_word_embeddings", False) is True,
        attention=_attention(file, config),
        dense_intermediate_size=config.get("intermediate_size"),
        experts=_experts(file, config),
        draft_layers=config.get("num_nextn_predict_layers") or 0,
    )
    weight_format = _format(config)
    name = _name(file)
    rest: Format | None = "bf16" if shape.experts and BITS[weight_format] < BITS["fp8"] else None
    counted = round((shape.routed_parameters * BITS[weight_format] + shape.resident_parameters * BITS[rest or weight_format]) / 8)
    found = _weight_files(file.parent)
    return Model(
        name=name,
        description=f"read from {file}",
        licence="unknown",
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        parameters=shape.parameters,
        shape=shape,
        max_context_tokens=_need(file, config, "max_position_embeddings"),
        checkpoints={
            weight_format: Checkpoint(
                format=weight_format,
                rest_format=rest,
                weights_bytes=round(found / WIDTHS.get(str(config.get("dtype") or config.get("torch_dtype")), 1.0)) or counted,
                size_source="its files" if found else "counted from the shape",
                sources=(DirectorySource(kind="directory", path=str(file.parent)),),
            )
        },
    )


def _name(file: Path) -> str:
    kept = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in file.resolve().parent.name.lower())
    return kept.strip(".-")[:63] or "model"


def _attention(file: Path, config: Mapping[str, Any]) -> GroupedAttention | LatentAttention:
    heads = _need(file, config, "num_attention_heads")
    if config.get("kv_lora_rank"):
        return LatentAttention(
            kind="latent",
            heads=heads,
            query_rank=config.get("q_lora_rank"),
            kv_rank=config["kv_lora_rank"],
            rope_size=_need(file, config, "qk_rope_head_dim"),
            nope_size=_need(file, config, "qk_nope_head_dim"),
            value_size=_need(file, config, "v_head_dim"),
            indexer=_indexer(file, config),
        )
    kinds = config.get("layer_types") or []
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return GroupedAttention(
        kind="grouped",
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or _need(file, config, "hidden_size") // heads,
        sliding_layers=kinds.count("sliding_attention") if window else 0,
        sliding_window=window if "sliding_attention" in kinds else None,
    )


def _indexer(file: Path, config: Mapping[str, Any]) -> Indexer | None:
    if not config.get("index_topk"):
        return None
    kinds = config.get("indexer_types")
    return Indexer(
        heads=_need(file, config, "index_n_heads"),
        head_size=_need(file, config, "index_head_dim"),
        top_tokens=config["index_topk"],
        layers=kinds.count("full") if isinstance(kinds, list) else _need(file, config, "num_hidden_layers"),
    )


def _experts(file: Path, config: Mapping[str, Any]) -> Experts | None:
    count = next((config[name] for name in EXPERT_NAMES if config.get(name)), None)
    if count is None:
        return None
    layers = _need(file, config, "num_hidden_layers")
    return Experts(
        layers=layers - (config.get("first_k_dense_replace") or 0),
        experts=count,
        experts_per_token=_need(file, config, "num_experts_per_tok"),
        intermediate_size=config.get("moe_intermediate_size") or _need(file, config, "intermediate_size"),
        shared_experts=config.get("n_shared_experts") or 0,
    )


def _format(config: Mapping[str, Any]) -> Format:
    described = config.get("quantization_config")
    if not isinstance(described, dict):
        return "bf16"
    method, text = str(described.get("quant_method", "")).lower(), json.dumps(described).lower()
    if method in ("modelopt", "modelopt_fp4", "compressed-tensors"):
        word = next((word for word in TELLING_WORDS if word in text), method)
        return QUANTIZATIONS.get(word, "int8")
    if method not in QUANTIZATIONS:
        known = ", ".join(sorted(QUANTIZATIONS))
        raise ConfigurationError(f"quantization_config.quant_method: {method!r} is not known here; there are: {known}")
    return QUANTIZATIONS[method]


def _weight_files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _need(file: Path, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{file}: {field}: must be a whole number of 1 or more, not {value!r}")
    return value
