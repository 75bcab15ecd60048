"""What is known of a checkpoint's configuration, and that everything else is refused by its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints.recipes import recipe_for
from serving.gate.checkpoints.scheme import Scheme, parse_quantization, read_quantization

INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}


def compressed(weights: dict[str, Any], form: str = "nvfp4-pack-quantized", inputs: Any = None, **others: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, **others}


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        (compressed(NVFP4), Scheme("nvfp4", None)),
        (compressed(NVFP4, inputs={"num_bits": 4}), Scheme("nvfp4", 4)),
        (compressed(NVFP4 | {"strategy": "group", "group_size": 32}, "mxfp4-pack-quantized"), Scheme("mxfp4", None)),
        (compressed(NVFP4 | {"type": "int", "strategy": "group", "group_size": 64}, "pack-quantized"), Scheme("int4", None)),
        (
            compressed(
                {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, "int-quantized", {"num_bits": 8}
            ),
            Scheme("int8", 8),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Scheme("nvfp4", 4)),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, Scheme("nvfp4", None)),
    ],
)
def test_a_known_format_is_read(config: dict[str, Any], scheme: Scheme) -> None:
    assert parse_quantization(config, "here").schemes == (scheme,)


def test_a_mixed_checkpoint_has_a_scheme_for_each_group() -> None:
    config = compressed(NVFP4)
    float8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    config["config_groups"]["group_1"] = {"weights": float8, "input_activations": {"num_bits": 8}, "format": "float-quantized"}
    found = parse_quantization(config, "here")
    assert found.formats == {"nvfp4", "fp8"}
    assert not found.weight_only


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "quark"}, r"here\.quant_method: 'quark' is not known"),
        ({"quant_method": "compressed-tensors"}, r"here\.config_groups: must be an object"),
        (
            compressed(NVFP4 | {"num_bits": 3}),
            r"here\.config_groups\.group_0: nvfp4-pack-quantized float 3 tensor_group 16 is not",
        ),
        (compressed(NVFP4 | {"group_size": 32}), r"group_0: nvfp4-pack-quantized float 4 tensor_group 32 is not known"),
        (compressed(NVFP4 | {"symmetric": False}), r"group_0\.weights\.symmetric: must be true"),
        (compressed(NVFP4 | {"actorder": "group"}), r"group_0\.weights\.actorder: reordered"),
        (compressed(NVFP4, "marlin-24"), r"group_0: marlin-24 float 4"),
        (compressed(NVFP4, transform_config={"config_groups": {"a": 1}}), r"here\.transform_config: transformed"),
        (compressed(NVFP4, sparsity_config={"format": "sparse-24"}), r"here\.sparsity_config: sparse"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, r"here\.quant_algo: 'FP8' is not known"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, r"here\.group_size: 32 is not known"),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_quantization(config, "here")


def test_an_unquantized_model_is_its_own_reference(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"quantization_config is missing: this model is not quantized"):
        read_quantization(tmp_path)


def test_older_modelopt_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    (tmp_path / "hf_quant_config.json").write_text(text)
    found = read_quantization(tmp_path)
    assert found.schemes == (Scheme("nvfp4", 4),)
    assert found.quantizes_cache


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.json: (is not JSON|must hold a JSON object)"):
        read_quantization(tmp_path)


def test_a_recipe_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--format fp3: is not known; known are nvfp4a16, nvfp4"):
        recipe_for("fp3", {})


def test_a_size_that_no_group_divides_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"intermediate_size is 1000, which is no multiple of 16, the group of nvfp4"):
        recipe_for("nvfp4a16", {"hidden_size": 512, "intermediate_size": 1000})


@pytest.mark.parametrize(("hidden", "group"), [(512, 128), (576, 64), (1056, 32)])
def test_int4_has_the_largest_group_that_divides_every_matrix(hidden: int, group: int) -> None:
    assert recipe_for("int4", {"hidden_size": hidden, "intermediate_size": 4096}).weights["group_size"] == group
