"""A random four-layer Llama of 5 MB with a byte tokenizer: a real model for a real engine, made here, the same each time.

Only printable ASCII has weight in its last layer, so that greedy and sampled answers are readable text that never ends by
itself: an answer has exactly `max_tokens` tokens, and each token is one character.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from serving.settings import cache_dir

VOCABULARY_SIZE = 288
SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_model() -> Path:
    """The model's directory; built on first use."""
    return built("tests.doubles.tiny_model", Path(__file__), "tiny-llama")


def built(module: str, source: Path, name: str) -> Path:
    """The directory of the model that `module` makes, anew when its source has changed. Raises: RuntimeError."""
    recipe = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    target = cache_dir() / "test-models" / f"{name}-{recipe}"
    if not target.is_dir():
        # in a process of its own: torch and transformers stay out of the test process
        command = [sys.executable, "-m", module, str(target)]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=110, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} could not be built:\n{done.stderr[-4000:]}")
    return target


def build(target: Path) -> None:
    in_place(target, lambda work: _write_weights(work, _write_tokenizer(work)))


def in_place(target: Path, write: Callable[[Path], None]) -> None:
    """Write a model beside `target` and put it in place in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    try:
        write(work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was quicker and made the same
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_tokenizer(directory: Path) -> dict[str, int]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<|unused-{number}|>" for number in range(len(words), VOCABULARY_SIZE)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    begin, end, pad = SPECIAL_TOKENS
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token=pad)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    return vocabulary


def _write_weights(directory: Path, vocabulary: dict[str, int]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    printable = [vocabulary[chr(code)] for code in range(33, 127)]
    silent = torch.ones(VOCABULARY_SIZE, dtype=torch.bool)
    silent[printable] = False
    with torch.no_grad():
        model.lm_head.weight[silent] = 0.0
        model.lm_head.weight[~silent] *= 20.0  # far above the zero of all other tokens, also when sampled
    model.to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    build(Path(sys.argv[1]))
