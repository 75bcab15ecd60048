"""`serving quantize` and `serving gate dequantize`: checkpoints of the formats that the gate judges."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from serving.core.errors import ConfigurationError

NEEDED = ("torch", "safetensors")


def quantize(
    model: Annotated[Path, typer.Argument(help="Folder of the model: config.json, safetensors, tokenizer.")],
    recipe: Annotated[str, typer.Option("--format", help="nvfp4a16, nvfp4, mxfp4a16, mxfp4, int8 or int4.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not be there.")],
    calibration: Annotated[
        Path | None, typer.Option(help='For nvfp4: a JSONL file of {"text": "…"}; default: pages of Python\'s documentation.')
    ] = None,
) -> None:
    """Write a model as a quantized checkpoint, with llm-compressor on the CPU."""
    from serving.gate.checkpoints.quantize import quantize as write

    write(model, recipe, out, _report, calibration)
    print(out)


def dequantize(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of the candidate's checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not be there.")],
) -> None:
    """Write the matched reference: the checkpoint's own packed weights as a bfloat16 model."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the packages {' and '.join(missing)} are needed to read weights; they come with vLLM")
    from serving.gate.checkpoints.dequantize import dequantize as write

    done = write(checkpoint, out, _report)
    _report(", ".join(f"{count} matrices of {name}" for name, count in done.matrices.items()) + f": {done.quantization}")
    if not done.quantization.weight_only:
        _report(
            "the candidate quantizes activations too, which this reference does not: "
            "compare candidate and a stored honest run each with one common reference"
        )
    if done.cache_scales or done.quantization.quantizes_cache:
        _report("the candidate's scales of the cache are left out: this reference keeps its cache in bfloat16")
    print(out)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
