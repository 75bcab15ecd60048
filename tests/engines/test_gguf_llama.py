"""Converting a tiny GGUF made here; needs the packages that come with the CPU build of the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.engines.gguf_llama import convert

pytestmark = pytest.mark.engine

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, INNER = 32, 4, 2, 8, 64
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def write_gguf(
    path: Path, *, architecture: str = "llama", tokenizer: str = "smollm", extra: str | None = None
) -> dict[str, object]:
    """A one-layer llama with random weights, in the order of rows that GGUF has; returns the original matrices."""
    import gguf
    import numpy

    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "1", "2", "12"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    shapes = {
        "token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD_SIZE, HIDDEN), "blk.0.attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN), "blk.0.ffn_up": (INNER, HIDDEN), "blk.0.ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    originals: dict[str, object] = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(numpy.float32)
        originals[name] = values
        if name.endswith(("attn_q", "attn_k")):
            heads = HEADS if name.endswith("q") else KV_HEADS
            values = values.reshape(heads, 2, HEAD_SIZE // 2, HIDDEN).swapaxes(1, 2).reshape(shape)
        if name.endswith("ffn_up"):
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(f"{name}.weight", numpy.ascontiguousarray(values))
    if extra is not None:
        writer.add_tensor(extra, numpy.zeros((4, 4), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return originals


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


def test_weights_come_back_in_the_order_of_the_original(tmp_path: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    originals = write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", folder, lambda line: None)
    weights = load_file(folder / "model.safetensors")
    assert len(weights) == len(originals)
    assert all(tensor.dtype == torch.bfloat16 for tensor in weights.values())
    layer = "model.layers.0."
    for ours, theirs in {
        f"{layer}self_attn.q_proj": "blk.0.attn_q",
        f"{layer}self_attn.k_proj": "blk.0.attn_k",
        f"{layer}self_attn.v_proj": "blk.0.attn_v",
        "model.embed_tokens": "token_embd",
    }.items():
        assert torch.equal(weights[f"{ours}.weight"], torch.tensor(originals[theirs]).to(torch.bfloat16)), ours
    up = torch.tensor(originals["blk.0.ffn_up"])
    assert (weights[f"{layer}mlp.up_proj.weight"].float() - up).abs().max() < 0.25, "four bits are coarse, not wrong"


def test_configuration_and_tokenizer(tmp_path: Path, folder: Path) -> None:
    from tokenizers import Tokenizer

    write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", folder, lambda line: None)
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab 12<|im_end|>").ids == [0, 4, 5, 6, 7, 1], "digits stay single"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"architecture": "qwen2"}, "holds the architecture 'qwen2'"),
        ({"tokenizer": "llama-bpe"}, "tokenizer is gpt2/llama-bpe"),
        ({"extra": "blk.0.attn_sinks.weight"}, "holds the tensor blk.0.attn_sinks.weight"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path: Path, folder: Path, options: dict[str, str], expected: str) -> None:
    write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(ConfigurationError, match=expected):
        convert(tmp_path / "m.gguf", folder, lambda line: None)


def test_a_file_that_is_no_gguf(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not at all, and long enough to be read")
    with pytest.raises(ConfigurationError, match="is not a readable GGUF file"):
        convert(tmp_path / "m.gguf", folder, lambda line: None)
