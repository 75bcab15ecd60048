"""Runs llm-compressor in a process of its own, over the packages that it wants; `quantize` starts it as a file.

A job comes as JSON on standard input: `model` and `out` (folders), `weights` and `inputs` (the arguments of compressed-tensors'
QuantizationArgs, or null), `ignore` (names of modules), `texts` (for calibration; empty: none is needed) and `text_tokens`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    job = json.load(sys.stdin)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**job["weights"]),
        input_activations=QuantizationArgs(**job["inputs"]) if job["inputs"] else None,
    )
    recipe = QuantizationModifier(config_groups={"group_0": scheme}, ignore=job["ignore"])
    options = _calibration(job["model"], job["texts"], job["text_tokens"]) if job["texts"] else {"pipeline": "datafree"}
    oneshot(model=model, recipe=recipe, **options)
    model.save_pretrained(job["out"], save_compressed=True)


def _calibration(model: str, texts: list[str], text_tokens: int) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [dict(tokenizer(text, truncation=True, max_length=text_tokens)) for text in texts]
    tensors = [{name: torch.tensor(values) for name, values in row.items()} for row in rows]
    return {
        "dataset": DataLoader(tensors, batch_size=1),  # type: ignore[arg-type, unused-ignore]
        "num_calibration_samples": len(tensors),
        "max_seq_length": text_tokens,
        "pipeline": "basic",
    }


if __name__ == "__main__":
    main()
