"""The matched reference: its values are those that vLLM and compressed-tensors read, its folder is whole, its limits are said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch comes with the engine")

import torch
from safetensors.torch import load_file, save_file

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints import e2m1, layouts
from serving.gate.checkpoints.dequantize import dequantize
from tests.gate.campaign import PLUGIN
from tests.gate.packed import COLUMNS, ROWS, any_bytes, any_scales, matrix, write_checkpoint

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # when it is imported
]


def quiet(line: str) -> None:
    pass


def test_codes_are_the_nearest_values_and_ties_go_to_the_even_code() -> None:
    numbers = torch.linspace(-7, 7, 2801)
    codes = e2m1.codes(numbers)
    table = e2m1.values(torch.arange(16))
    nearest = (numbers.unsqueeze(1) - table).abs().min(dim=1).values
    assert torch.equal((numbers - e2m1.values(codes)).abs(), nearest)
    middles = torch.tensor(e2m1.MIDDLES)
    assert e2m1.values(e2m1.codes(middles)).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert (e2m1.codes(-middles) == e2m1.codes(middles) + 8).all()


def test_packing_is_undone_by_unpacking() -> None:
    codes = any_bytes(4, 32) % 16
    assert torch.equal(e2m1.unpack(e2m1.pack(codes)), codes)
    assert e2m1.pack(torch.tensor([[1, 2]], dtype=torch.uint8)).tolist() == [[0x21]]


def test_nvfp4_is_what_vllm_reads() -> None:
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import dequantize_to_dtype

    packed, scales, scalar = any_bytes(ROWS, COLUMNS // 2), any_scales(ROWS, COLUMNS // 16), torch.tensor(1 / 1003.0)
    theirs = dequantize_to_dtype(packed, scales, scalar, torch.bfloat16, 16, swizzle=False)
    assert torch.equal(layouts.nvfp4_values(packed, scales, scalar).to(torch.bfloat16), theirs)


def test_mxfp4_is_what_compressed_tensors_and_the_plugin_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    monkeypatch.syspath_prepend(str(PLUGIN))
    fp4cpu = pytest.importorskip("fp4cpu")
    packed, scales = matrix("mxfp4").values()
    ours = layouts.mxfp4_values(packed, scales)
    theirs = unpack_fp4_from_uint8(packed, ROWS, COLUMNS, torch.float32).reshape(ROWS, -1, 32)
    assert torch.equal(ours, (theirs * decompress_mx_scale(scales).float().unsqueeze(-1)).reshape(ROWS, COLUMNS))
    codes = e2m1.unpack(packed).long().view(ROWS, -1, 32)
    assert torch.equal(ours, fp4cpu._mxfp4_values(codes, scales.float() - 127).view(ROWS, COLUMNS))
    monkeypatch.delitem(sys.modules, "fp4cpu")


def test_int4_is_what_compressed_tensors_reads() -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    words = matrix("int4")["weight_packed"]
    assert torch.equal(
        layouts.int4_codes(words, COLUMNS).to(torch.int8), unpack_from_int32(words, 4, torch.Size((ROWS, COLUMNS)))
    )


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["nvfp4", "modelopt", "mxfp4", "int4", "int8", "fp8"])
def test_a_checkpoint_becomes_a_plain_model(tmp_path: Path, kind: str, shards: int) -> None:
    bias = torch.arange(ROWS, dtype=torch.bfloat16)
    packed = write_checkpoint(tmp_path / "packed", kind, shards=shards, layers__0__bias=bias)
    done = dequantize(packed, tmp_path / "plain", quiet)
    assert done.matrices == {kind.replace("modelopt", "nvfp4"): 1}
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert plain.keys() == {"norm.weight", "layers.0.weight", "layers.0.bias"}
    assert plain["layers.0.weight"].dtype == torch.bfloat16
    assert plain["layers.0.weight"].shape == (ROWS, COLUMNS)
    assert torch.equal(plain["layers.0.bias"], bias)
    assert json.loads((tmp_path / "plain" / "config.json").read_text()) == {"hidden_size": COLUMNS}
    assert "as it was" in (tmp_path / "plain" / "tokenizer_config.json").read_text()
    assert not (tmp_path / "plain" / "hf_quant_config.json").exists()


def test_both_tools_names_give_the_same_values() -> None:
    compressed, modelopt = layouts.COMPRESSED_LAYOUTS[0], layouts.MODELOPT_LAYOUTS[0]
    assert torch.equal(compressed.expand(matrix("nvfp4")), modelopt.expand(matrix("modelopt")))


def test_a_mixed_checkpoint_is_expanded_matrix_by_matrix(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4", "mxfp4", "fp8")
    done = dequantize(packed, tmp_path / "plain", quiet)
    assert done.matrices == {"nvfp4": 1, "mxfp4": 1, "fp8": 1}


def test_large_models_are_written_in_shards_with_an_index(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4", "mxfp4")
    dequantize(packed, tmp_path / "plain", quiet, shard_bytes=ROWS * COLUMNS * 2)
    places = json.loads((tmp_path / "plain" / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(set(places.values())) == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for name, file in places.items():
        assert name in load_file(tmp_path / "plain" / file)


def test_scales_of_the_cache_are_left_out_and_told(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4", attention__k_scale=torch.ones(()), attention__v_scale=torch.ones(()))
    done = dequantize(packed, tmp_path / "plain", quiet)
    assert done.cache_scales == ("attention.k_scale", "attention.v_scale")
    assert "attention.k_scale" not in load_file(tmp_path / "plain" / "model.safetensors")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"layers__0__weight_zero_point": torch.zeros(1)}, r"layers\.0: holds .*weight_zero_point float32.*, which is not nvfp4"),
        ({"other__weight": torch.zeros(4, 4, dtype=torch.uint8)}, r"other: holds weight uint8, which is not nvfp4"),
        ({"layers__0__weight_scale": any_scales(ROWS, 3)}, r"layers\.0: weight_scale is \[8, 3\], which does not fit 8 × 64"),
    ],
)
def test_tensors_that_are_not_understood_are_named_and_nothing_is_left(
    tmp_path: Path, more: dict[str, torch.Tensor], said: str
) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4", **more)
    with pytest.raises(ConfigurationError, match=said):
        dequantize(packed, tmp_path / "plain", quiet)
    assert not (tmp_path / "plain").exists()


def test_a_quantization_that_did_not_happen_is_said(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4")
    save_file({"layers.0.weight": torch.zeros(4, 4)}, packed / "model.safetensors")
    with pytest.raises(ConfigurationError, match="names nvfp4 and no matrix is packed so; the quantization did not happen"):
        dequantize(packed, tmp_path / "plain", quiet)


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4")
    with pytest.raises(ConfigurationError, match="is there already"):
        dequantize(packed, packed, quiet)


def test_nothing_is_left_beside_the_folder(tmp_path: Path) -> None:
    dequantize(write_checkpoint(tmp_path / "packed", "nvfp4"), tmp_path / "plain", quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "plain"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"plain: cannot be written: "):
        dequantize(packed, tmp_path / "file" / "plain", quiet)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    packed = write_checkpoint(tmp_path / "packed", "nvfp4")
    (packed / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors: is not a whole safetensors file"):
        dequantize(packed, tmp_path / "plain", quiet)
