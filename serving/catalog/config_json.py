"""A model that the catalog does not know, read from its `config.json`: shape, context and format of its weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.catalog.config_fields import ConfigFields
from serving.catalog.config_format import dtype_width, weight_format
from serving.catalog.model import Checkpoint, DirectorySource, Model, counted_bytes
from serving.catalog.records import BITS, Format
from serving.catalog.shape import Experts, GroupedAttention, Indexer, LatentAttention, Shape
from serving.core.errors import ConfigurationError

EXPERT_NAMES = ("n_routed_experts", "num_local_experts", "num_experts")
SHARED_EXPERT_NAMES = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SPARSE_STEP_NAMES = ("decoder_sparse_step", "interleave_moe_layer_step")
LAYER_KINDS = ("full_attention", "sliding_attention")
OTHER_SHAPES = (
    "linear_num_key_heads", "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "layers_block_type",
    "is_encoder_decoder", "intermediate_size_mlp",
)  # fmt: skip
"""Fields of models whose layers are counted by nothing here: state spaces, linear attention, encoders, Llama 4."""


def model_from_config(path: Path) -> Model:
    """The model of a `config.json`, or of a folder that holds one; with weights beside it, their size is the files'.

    Raises:
        ConfigurationError: the file cannot be read, or lacks what the arithmetic needs; the message names the field.
    """
    file = path / "config.json" if path.name != "config.json" and path.is_dir() else path
    config = ConfigFields(file, _fields(file))
    try:
        return _model(file, config)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            said = str(first["msg"]).removeprefix("Value error, ")
            raise ConfigurationError(f"{file}: makes no sense as a model: {said}") from None
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{file}: makes no sense as a model: {place}: {first['msg']}, not {first['input']!r}") from None


def _fields(file: Path) -> dict[str, Any]:
    """Of the file, and over them those of its language model where it has others, too."""
    try:
        whole = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: cannot be read as JSON: it is not UTF-8 text") from None
    except RecursionError:
        raise ConfigurationError(f"{file}: cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        why = "a number is too large" if "digits" in str(error) else str(error)
        raise ConfigurationError(f"{file}: cannot be read as JSON: {why}") from None
    if not isinstance(whole, dict):
        raise ConfigurationError(f"{file}: must be a JSON object, as a model's config.json is")
    inner = whole.get("text_config")
    if inner is not None and not isinstance(inner, dict):
        raise ConfigurationError(f"{file}: text_config: must be an object, not {inner!r}")
    return whole | (inner or {})


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return fields


def _model(file: Path, config: ConfigFields) -> Model:
    for field in OTHER_SHAPES:
        if config.get(field):
            raise config.error(field, "tells of layers that are not counted here; only attention and experts are")
    shape = Shape(
        hidden_size=config.count("hidden_size"),
        layers=config.count("num_hidden_layers"),
        vocabulary_size=config.count("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", otherwise=False),
        attention=_attention(config),
        dense_intermediate_size=_dense_size(config),
        experts=_experts(config),
        draft_layers=config.first_count("num_nextn_predict_layers"),
    )
    found_format = weight_format(config)
    rest: Format | None = "bf16" if shape.experts and BITS[found_format] < BITS["fp8"] else None
    width, found = dtype_width(config), _weight_files(file.parent)
    return Model(
        name=_name(file),
        description=f"read from {file}",
        licence="unknown",
        architecture=(config.texts("architectures") or ["unknown"])[0],
        parameters=shape.parameters,
        shape=shape,
        max_context_tokens=config.count("max_position_embeddings", least=2),
        checkpoints={
            found_format: Checkpoint(
                format=found_format,
                rest_format=rest,
                weights_bytes=round(found / width) or counted_bytes(shape, found_format, rest),
                size_source="its files" if found else "counted from the shape",
                sources=(DirectorySource(kind="directory", path=str(file.parent)),),
            )
        },
    )


def _name(file: Path) -> str:
    kept = "".join(letter if (letter.isascii() and letter.isalnum()) or letter in ".-" else "-" for letter in _folder(file))
    return kept.strip(".-")[:63].rstrip(".-") or "model"


def _folder(file: Path) -> str:
    return file.resolve().parent.name.lower()


def _dense_size(config: ConfigFields) -> int | None:
    size = config.count_if_said("intermediate_size")
    if size is None and not config.first_count(*EXPERT_NAMES):
        config.count("intermediate_size")  # says that it is missing
    return size


def _attention(config: ConfigFields) -> GroupedAttention | LatentAttention:
    heads = config.count("num_attention_heads")
    if config.get("kv_lora_rank"):
        return LatentAttention(
            kind="latent",
            heads=heads,
            query_rank=config.count_if_said("q_lora_rank"),
            kv_rank=config.count("kv_lora_rank"),
            rope_size=config.count("qk_rope_head_dim"),
            nope_size=config.count("qk_nope_head_dim"),
            value_size=config.count("v_head_dim"),
            indexer=_indexer(config),
        )
    head_size = config.count_if_said("head_dim") or config.count("hidden_size") // heads
    if not head_size:
        raise config.error("num_attention_heads", f"must be at most hidden_size, {config.count('hidden_size')}, not {heads}")
    sliding_layers, window = _sliding(config)
    return GroupedAttention(
        kind="grouped",
        heads=heads,
        kv_heads=config.count_if_said("num_key_value_heads") or heads,
        head_size=head_size,
        sliding_layers=sliding_layers,
        sliding_window=window,
    )


def _sliding(config: ConfigFields) -> tuple[int, int | None]:
    """How many layers look back a window only, and how far; a window as long as the context is none."""
    kinds, window = config.texts("layer_types"), config.count_if_said("sliding_window")
    for kind in kinds or ():
        if kind not in LAYER_KINDS:
            raise config.error("layer_types", f"{kind!r} is not counted here; there are: {', '.join(LAYER_KINDS)}")
    layers = config.count("num_hidden_layers")
    if kinds is not None and len(kinds) < layers:
        raise config.error("layer_types", f"must name the kind of each of the {layers} layers, not of {len(kinds)}")
    if window is None and "sliding_attention" in (kinds or ()):
        raise config.error("sliding_window", "is missing, and layer_types has sliding_attention")
    if window is None or window >= config.count("max_position_embeddings") or not config.flag("use_sliding_window", True):
        return 0, None
    if kinds is None:
        hint = f"add it with {' or '.join(LAYER_KINDS)} for each layer, or make sliding_window null"
        raise config.error("layer_types", f"is missing, and which layers look back {window} tokens only cannot be told; {hint}")
    sliding = kinds[:layers].count("sliding_attention")
    return sliding, window if sliding else None


def _indexer(config: ConfigFields) -> Indexer | None:
    top_tokens = config.first_count("index_topk")
    if not top_tokens:
        return None
    kinds, layers = config.texts("indexer_types"), config.count("num_hidden_layers")
    if kinds is not None and "full" not in kinds[:layers]:
        raise config.error("indexer_types", "must name at least one layer 'full', as index_topk says that there is an indexer")
    return Indexer(
        heads=config.count("index_n_heads"),
        head_size=config.count("index_head_dim"),
        top_tokens=top_tokens,
        layers=layers if kinds is None else kinds[:layers].count("full"),
    )


def _experts(config: ConfigFields) -> Experts | None:
    count = config.first_count(*(name for name in EXPERT_NAMES if config.get(name) != 0))
    if not count:
        return None
    size = config.count_if_said("moe_intermediate_size") or config.count("intermediate_size")
    shared_size = config.first_count("shared_expert_intermediate_size")
    return Experts(
        layers=_expert_layers(config),
        experts=count,
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=size,
        shared_experts=config.first_count(*SHARED_EXPERT_NAMES) or math.ceil(shared_size / size),
    )


def _expert_layers(config: ConfigFields) -> int:
    """How many layers have experts: those behind the first dense ones, each or every so many, but for those named dense."""
    layers, first = config.count("num_hidden_layers"), config.first_count("first_k_dense_replace")
    step = max(1, config.first_count(*SPARSE_STEP_NAMES))
    dense = set(config.numbers("mlp_only_layers") or ())
    if isinstance(config.get("moe_layer_freq"), list):
        chosen = [place for place, kind in enumerate((config.numbers("moe_layer_freq") or [])[:layers]) if kind]
    else:
        each = config.count_if_said("moe_layer_freq") or 1
        chosen = list(range(0, layers, each))
    if step > 1:
        chosen = [place for place in chosen if (place + 1) % step == 0]
    left = len([place for place in chosen if place >= first and place not in dense])
    if not left:
        raise config.error("first_k_dense_replace", f"leaves none of the {layers} layers for the experts")
    return left


def _weight_files(folder: Path) -> int:
    """Bytes of the weights beside the file, without a second copy of them in one file, as some repositories have."""
    files = list(folder.glob("*.safetensors"))
    return sum(path.stat().st_size for path in [f for f in files if not f.name.startswith("consolidated")] or files)
