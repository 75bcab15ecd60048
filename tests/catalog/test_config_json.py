"""A stranger's config.json: what it does not say clearly is one error with file and field, and never a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.config_json import model_from_config
from serving.catalog.find_model import find_model
from serving.catalog.load import load_catalog
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED

DENSE = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128_256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "max_position_embeddings": 131_072,
}  # fmt: skip
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
SPARSE = LATENT | {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}


def config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({name: value for name, value in (DENSE | changes).items() if value != "left out"}))
    return path


def groups(*kinds: tuple[str, int]) -> dict[str, Any]:
    return {str(place): {"weights": {"type": kind, "num_bits": bits}} for place, (kind, bits) in enumerate(kinds)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": "left out"}, "intermediate_size: must be a whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: must be a whole number of 1 or more, not 0"),
        ({"num_key_value_heads": 3}, "kv_heads: must divide the 32 heads, not 3"),
        ({"num_key_value_heads": 64}, "kv_heads: must divide the 32 heads, not 64"),
        ({"num_attention_heads": 10_000, "num_key_value_heads": 8}, "num_attention_heads: must be at most hidden_size"),
        ({"head_dim": 0}, "head_dim: must be a whole number of 1 or more"),
        ({"vocab_size": 10**400}, "vocab_size: must be a whole number of 1 or more, not one beyond"),
        ({"max_position_embeddings": 1}, "max_position_embeddings: must be a whole number of 2 or more"),
        ({"tie_word_embeddings": "true"}, "tie_word_embeddings: must be true or false, not 'true'"),
        ({"architectures": 5}, "architectures: must be a list of texts, not 5"),
        ({"architectures": [None]}, "architectures: must be a list of texts"),
        ({"text_config": [1]}, "text_config: must be an object"),
        ({"dtype": "weird"}, "dtype: must be one of bfloat16"),
        ({"torch_dtype": ["x"]}, "torch_dtype: must be one of bfloat16"),
        (MIXTURE | {"num_experts_per_tok": "left out"}, "num_experts_per_tok: must be a whole number"),
        (MIXTURE | {"num_experts_per_tok": 16}, "experts_per_token: must be at most the 8 experts, not 16"),
        (MIXTURE | {"first_k_dense_replace": "3"}, "first_k_dense_replace: must be a whole number of 0 or more, not '3'"),
        (MIXTURE | {"first_k_dense_replace": 32}, "first_k_dense_replace: leaves none of the 32 layers"),
        (
            MIXTURE | {"decoder_sparse_step": 2, "moe_intermediate_size": 512, "intermediate_size": "left out"},
            "dense_intermediate_size: is missing; 16 of 32 layers have no experts",
        ),
        ({"layer_types": 5}, "layer_types: must be a list of texts, not 5"),
        ({"layer_types": "sliding_attention"}, "layer_types: must be a list of texts"),
        ({"layer_types": ["full_attention"]}, "layer_types: must name the kind of each of the 32 layers, not of 1"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types: 'linear_attention' is not counted here"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window: is missing"),
        ({"sliding_window": 4096}, "layer_types: is missing, and which layers look back 4096 tokens only"),
        ({"ssm_state_size": 16}, "ssm_state_size: tells of layers that are not counted here"),
        (SPARSE | {"indexer_types": ["shared"]}, "indexer_types: must name at least one layer 'full'"),
        (SPARSE | {"index_topk": "x"}, "index_topk: must be a whole number"),
        ({"kv_lora_rank": [1]}, "kv_lora_rank: must be a whole number"),
    ],
)
def test_what_cannot_be_counted_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        model_from_config(config(tmp_path, **changes))
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("described", "field"),
    [
        ("fp8", ""),
        ([], ""),
        ({}, ".quant_method"),
        ({"quant_method": ["fp8"]}, ".quant_method"),
        ({"quant_method": "awq", "bits": 3}, ".bits"),
        ({"quant_method": "modelopt"}, ".quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, ".quant_algo"),
        ({"quant_method": "quark"}, ".global_quant_config.weight.dtype"),
        ({"quant_method": "compressed-tensors"}, ".format"),
        ({"quant_method": "compressed-tensors", "config_groups": groups(("int", 3))}, ".config_groups.*.weights.type, num_bits"),
        ({"quant_method": "compressed-tensors", "config_groups": groups(("int", 4), ("int", 8))}, ".config_groups"),
    ],
)
def test_a_format_that_is_not_told_clearly(tmp_path: Path, described: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        model_from_config(config(tmp_path, quantization_config=described))
    assert f"config.json: quantization_config{field}: " in str(caught.value)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups(("int", 4))}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": groups(("float", 8))}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["nvfp4"]}, "fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8"),
    ],
)
def test_a_format_is_that_of_the_weights(tmp_path: Path, described: Any, expected: str) -> None:
    assert list(model_from_config(config(tmp_path, quantization_config=described)).checkpoints) == [expected]


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, 32),
        ({"decoder_sparse_step": 2}, 16),
        ({"mlp_only_layers": [0, 1]}, 30),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 1}, 29),
        ({"moe_layer_freq": [0] * 8 + [1] * 24}, 24),
    ],
)
def test_only_the_layers_with_experts_count_as_such(tmp_path: Path, changes: dict[str, Any], layers: int) -> None:
    assert model_from_config(config(tmp_path, **MIXTURE, **changes)).shape.expert_layers == layers


def test_a_shared_expert_given_by_its_size(tmp_path: Path) -> None:
    found = model_from_config(config(tmp_path, **MIXTURE, moe_intermediate_size=512, shared_expert_intermediate_size=1024))
    assert found.shape.experts and found.shape.experts.shared_experts == 2


@pytest.mark.parametrize("size", [134, 2_000_000_000, 90_000_000_000])
def test_weights_that_are_not_all_there_or_of_another_model(tmp_path: Path, size: int) -> None:
    with (tmp_path / "model-00001-of-00004.safetensors").open("wb") as file:
        file.truncate(size)
    with pytest.raises(ConfigurationError, match=rf"checkpoints\.bf16\.weights_bytes: {size} cannot be right; the shape in bf16"):
        model_from_config(config(tmp_path))


def test_weights_that_lie_there_twice(tmp_path: Path) -> None:
    for name in ("model.safetensors", "consolidated.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(16_000_000_000)
    assert model_from_config(config(tmp_path)).checkpoints["bf16"].weights_bytes == 16_000_000_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{", "is not UTF-8 text"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "a number is too large"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "the field 'hidden_size' is given twice"),
        (b'{"hidden_size": NaN}', "hidden_size: must be a whole number of 1 or more, not nan"),
        (b'{"hidden_size": 1e400}', "hidden_size: must be a whole number of 1 or more, not inf"),
    ],
)
def test_a_file_that_holds_something_else(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        model_from_config(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is neither a profile nor a model"),
        ("x" * 5000, "is neither a profile nor a model"),
        ("a\0b", "is neither a profile nor a model"),
        ("/" + "x" * 5000 + "/config.json", "config.json: cannot be read: File name too long"),
        ("/nowhere/config.json", "/nowhere/config.json: cannot be read: No such file or directory"),
        ("~nobody-of-that-name/config.json", "cannot be read: No such file or directory"),
    ],
)
def test_a_name_that_is_no_model(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_model(load_catalog(SHIPPED), name)


def test_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigurationError, match=r"config\.json: cannot be read: Is a directory"):
        find_model(load_catalog(SHIPPED), str(tmp_path / "config.json"))
