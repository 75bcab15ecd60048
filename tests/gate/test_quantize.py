"""llm-compressor writes each format as vLLM wants it; what cannot be quantized is refused before it starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints.quantize import quantize
from serving.gate.checkpoints.recipes import RECIPES
from serving.gate.checkpoints.scheme import read_quantization
from tests.doubles.tiny_model import tiny_model
from tests.gate.quantized import quantized_tiny

LOSS = {"nvfp4": 0.11, "mxfp4": 0.14, "int4": 0.14, "int8": 0.01}
"""Largest relative error of a matrix (norm of the difference by the norm) of normally distributed weights."""


def quiet(line: str) -> None:
    pass


def write_model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 64, "intermediate_size": 128, **config}))
    return folder


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", quantization_config={"quant_method": "fp8"})
    with pytest.raises(ConfigurationError, match=r"quantization_config: this model is quantized already"):
        quantize(model, "nvfp4a16", tmp_path / "out", quiet)


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="is there already"):
        quantize(model, "nvfp4a16", model, quiet)


def test_texts_for_a_format_without_calibration_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="--calibration: --format mxfp4 needs none"):
        quantize(model, "mxfp4", tmp_path / "out", quiet, tmp_path / "texts.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "holds no text"), ('{"text": "a"}\n{"prompt": "b"}', "line 2: must be a JSON object"), ("words", "line 1: must be")],
)
def test_texts_that_cannot_be_used_are_named_by_their_line(tmp_path: Path, text: str, said: str) -> None:
    model = write_model(tmp_path / "model")
    texts = tmp_path / "texts.jsonl"
    texts.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        quantize(model, "nvfp4", tmp_path / "out", quiet, texts)


def test_without_llm_compressor_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="llm-compressor is not there; `make setup-quantizer` brings it"):
        quantize(write_model(tmp_path / "model"), "int8", tmp_path / "out", quiet)


@pytest.mark.engine
def test_what_llm_compressor_says_when_it_fails_is_passed_on_and_nothing_is_left(tmp_path: Path) -> None:
    quantized_tiny("int8")  # skips where llm-compressor is not set up
    model = write_model(tmp_path / "model", model_type="no-such-type")
    with pytest.raises(ConfigurationError, match=r"(?s)llm-compressor failed with status 1:.*no-such-type"):
        quantize(model, "int8", tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


@pytest.mark.engine
@pytest.mark.parametrize("recipe", RECIPES)
def test_each_format_is_written_as_asked_and_loses_what_it_must(recipe: str) -> None:
    from safetensors.torch import load_file

    from serving.gate.checkpoints.layouts import COMPRESSED_LAYOUTS

    folder = quantized_tiny(recipe)
    found = read_quantization(folder)
    assert found.formats == {RECIPES[recipe].format}
    assert found.weight_only == (RECIPES[recipe].inputs is None)
    original, packed = load_file(tiny_model() / "model.safetensors"), load_file(folder / "model.safetensors")
    (layout,) = (layout for layout in COMPRESSED_LAYOUTS if layout.format == RECIPES[recipe].format)
    errors = []
    for name in [name for name in original if name.endswith("_proj.weight")]:
        prefix = name.removesuffix("weight")
        tensors = {key.removeprefix(prefix): value for key, value in packed.items() if key.startswith(prefix)}
        assert layout.matches(tensors), name
        weight = original[name].float()
        errors.append(((layout.expand(tensors) - weight).norm() / weight.norm()).item())
    assert max(errors) < LOSS[RECIPES[recipe].format]
    assert min(errors) > 0
    assert "lm_head.weight" in packed
    for kept in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / kept).read_bytes() == (tiny_model() / kept).read_bytes()


@pytest.mark.engine
@pytest.mark.parametrize("scale", ["weight_global_scale", "input_global_scale"])
def test_matrices_that_the_engine_fuses_share_their_global_scale(scale: str) -> None:
    """vLLM keeps the largest of them for all and only warns: with different ones a model loses its mind."""
    from safetensors.torch import load_file

    packed = load_file(quantized_tiny("nvfp4") / "model.safetensors")
    for layer in range(4):
        for group in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            assert len({packed[f"model.layers.{layer}.{name}.{scale}"].item() for name in group}) == 1
