"""Each sabotage breaks what it says and nothing else; a campaign whose broken checkpoints are whole would prove nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doubles.tiny_model import tiny_model
from tests.gate.quantized import quantized_tiny
from tests.gate.sabotage import INPUT_SCALES, SABOTAGES, Sabotage

pytestmark = pytest.mark.engine

TOUCHED = {
    "roll-scales": {"model.layers.2.mlp.down_proj.weight"},
    "double-matrix": {"model.layers.2.mlp.down_proj.weight"},
    "swap-heads": {"model.layers.2.self_attn.q_proj.weight"},
    "wrong-rope-base": set(),
    "other-template": set(),
}
"""Matrices with other values, once both checkpoints are expanded; the rest is tested by itself."""


def expanded(folder: Path, out: Path) -> dict[str, object]:
    from safetensors.torch import load_file

    from serving.gate.checkpoints.dequantize import dequantize

    dequantize(folder, out, lambda line: None)
    found: dict[str, object] = load_file(out / "model.safetensors")
    return found


def broken(sabotage: Sabotage, tmp_path: Path, recipe: str = "nvfp4a16") -> set[str]:
    """Names of the matrices that changed. The honest checkpoint stays as it is."""
    import torch

    honest = quantized_tiny(recipe)
    sabotage.write(honest, tiny_model(), tmp_path / "broken")
    before, after = expanded(honest, tmp_path / "before"), expanded(tmp_path / "broken", tmp_path / "after")
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}  # type: ignore[arg-type]


def by_name(name: str) -> Sabotage:
    (found,) = (sabotage for sabotage in SABOTAGES if sabotage.name == name)
    return found


@pytest.mark.parametrize("name", ["roll-scales", "double-matrix", "swap-heads"])
@pytest.mark.parametrize("recipe", ["nvfp4a16", "mxfp4a16"])
def test_one_matrix_is_touched(tmp_path: Path, name: str, recipe: str) -> None:
    assert broken(by_name(name), tmp_path, recipe) == TOUCHED[name]


def test_doubled_is_twice(tmp_path: Path) -> None:
    import torch

    name = "model.layers.2.mlp.down_proj.weight"
    for recipe in ("nvfp4a16", "mxfp4a16", "int8"):
        honest = quantized_tiny(recipe)
        by_name("double-matrix").write(honest, tiny_model(), tmp_path / recipe)
        before, after = expanded(honest, tmp_path / f"{recipe}-0"), expanded(tmp_path / recipe, tmp_path / f"{recipe}-2")
        assert torch.equal(before[name] * 2, after[name])  # type: ignore[operator, arg-type]


def test_the_wrong_table_has_no_six_in_any_matrix(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from serving.gate.checkpoints import e2m1

    touched = broken(by_name("wrong-table"), tmp_path)
    assert len(touched) == 4 * 7
    for name, tensor in load_file(tmp_path / "broken" / "model.safetensors").items():
        if name.endswith("weight_packed"):
            assert e2m1.values(e2m1.unpack(tensor)).abs().max() == 4


def test_the_stale_layer_is_the_one_before(tmp_path: Path) -> None:
    import torch

    broken(by_name("stale-layer"), tmp_path)
    after = expanded(tmp_path / "broken", tmp_path / "again")
    for part in ("mlp.up_proj", "self_attn.o_proj"):
        weights = [after[f"model.layers.{layer}.{part}.weight"] for layer in (1, 2)]
        assert torch.equal(*weights)  # type: ignore[call-overload]


def test_the_rope_base_is_the_only_other_figure(tmp_path: Path) -> None:
    assert broken(by_name("wrong-rope-base"), tmp_path) == set()
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (quantized_tiny("nvfp4a16"), tmp_path / "broken")
    )
    assert after["rope_parameters"].pop("rope_theta") == pytest.approx(before["rope_parameters"].pop("rope_theta") / 10)
    assert before == after


def test_the_silent_no_op_is_the_original(tmp_path: Path) -> None:
    by_name("silent-no-op").write(quantized_tiny("nvfp4a16"), tiny_model(), tmp_path / "broken")
    weights = "model.safetensors"
    assert (tmp_path / "broken" / weights).read_bytes() == (tiny_model() / weights).read_bytes()


def test_a_template_that_cannot_be_changed_is_no_sabotage(tmp_path: Path) -> None:
    """The tiny model has no `<|im_start|>`."""
    with pytest.raises(AssertionError, match="has no chat template that this can change"):
        by_name("other-template").write(quantized_tiny("nvfp4a16"), tiny_model(), tmp_path / "broken")


def test_wrong_input_scales_are_all_that_changes(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from tests.gate.packed import write_checkpoint

    honest = write_checkpoint(tmp_path / "honest", "nvfp4", layers__0__input_global_scale=torch.tensor([64.0]))
    INPUT_SCALES.write(honest, tmp_path, tmp_path / "broken")
    before, after = (load_file(folder / "model.safetensors") for folder in (honest, tmp_path / "broken"))
    assert after.pop("layers.0.input_global_scale").tolist() == [1.0] and before.pop("layers.0.input_global_scale").tolist() == [
        64.0
    ]
    assert before.keys() == after.keys()
    assert all(before[name].view(torch.uint8).equal(after[name].view(torch.uint8)) for name in before)
