"""A llama-type GGUF file as the folder that vLLM loads: bfloat16 safetensors, configuration, tokenizer, chat template.

GGUF keeps the rows of the query and key projections in another order (rotary pairs side by side); that is undone here.
Quantized weights are expanded; what their few bits lost stays lost. Needs the packages gguf, torch, tokenizers and
safetensors, which come with the CPU build of the engine and the extra `cpu`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving.core.errors import ConfigurationError

CONVERTER_VERSION = 1
"""Part of the name under which a result is kept: a conversion that gives other files gets another number."""

Report = Callable[[str], None]

SPECIAL_TOKEN_TYPE = 3
TENSOR_NAME = re.compile(r"blk\.(\d+)\.([a-z_]+)\.weight")
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, destination: Path, report: Report) -> None:
    """Write the folder `destination` (which exists and is empty) from the GGUF file `source`.

    Raises:
        ConfigurationError: the file is no llama-type GGUF, its tokenizer is not known here, or a package is missing.
    """
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the package {error.name} is missing to convert {source.name}; install the extra cpu: "
            "pip install 'serving-stack[cpu]'"
        ) from None
    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError) as error:
        raise ConfigurationError(f"{source.name}: is not a readable GGUF file: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ConfigurationError(f"{source.name}: holds the architecture {architecture!r}; only llama can be converted")
    try:
        config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
        _write_tokenizer(fields, destination)
    except KeyError as error:
        raise ConfigurationError(f"{source.name}: lacks the field {error.args[0]}") from None
    _write_json(destination / "config.json", config)
    _write_json(
        destination / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_weights(reader.tensors, config, destination / "model.safetensors", report)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json of a `LlamaForCausalLM`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields.get("llama.rope.freq_base", 10_000.0),
        # The file holds a 32-bit float; rounded it is the number of the original again (1e-05 and not 9.99…e-06).
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id", fields["tokenizer.ggml.eos_token_id"]),
    }


def _write_weights(tensors: list[Any], config: dict[str, Any], path: Path, report: Report) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    for done, tensor in enumerate(tensors):
        if done % 64 == 0:
            report(f"converting weights: {done} of {len(tensors)} tensors")
        name = _weight_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = _rotary_halves(values, heads)
        # A copy: values that were not quantized are a read-only view of the file.
        weights[name] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    save_file(weights, path, metadata={"format": "pt"})


def _weight_name(name: str) -> str:
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    match = TENSOR_NAME.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        raise ConfigurationError(f"the GGUF file holds the tensor {name}, which a llama does not have")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"


def _rotary_halves(values: Any, heads: int) -> Any:
    """Rows [heads × pairs × 2] back to [heads × 2 × pairs]; `values` is a matrix of rows × columns."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(fields: dict[str, Any], destination: Path) -> None:
    """tokenizer.json, its configuration and the chat template, from the byte-level BPE that the file carries."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ConfigurationError(f"the GGUF file's tokenizer is {'/'.join(kind)}; only gpt2/smollm can be converted")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL_TOKEN_TYPE]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(destination / "tokenizer.json"))
    padding = fields.get("tokenizer.ggml.padding_token_id", fields["tokenizer.ggml.eos_token_id"])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[padding],
        "extra_special_tokens": special,
        "chat_template": fields["tokenizer.chat_template"],
    }
    _write_json(destination / "tokenizer_config.json", settings)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
