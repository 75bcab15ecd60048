"""The tiny model, and mixtures of it, as quantized checkpoints: written by llm-compressor on first use and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from serving.gate.checkpoints.quantize import PROGRAM, quantize
from serving.settings import cache_dir
from tests.doubles.tiny_model import tiny_model


def quantized_tiny(recipe: str) -> Path:
    """Its folder. The test is skipped where llm-compressor is not set up."""
    sources = [PROGRAM, PROGRAM.with_name("recipes.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = tiny_model().with_name(f"{tiny_model().name}-{recipe}-{digest}")
    if not folder.is_dir():
        if not (cache_dir() / "quantizer" / "llmcompressor").is_dir():
            pytest.skip("llm-compressor is not set up: run `make setup-quantizer`")
        quantize(tiny_model(), recipe, folder, lambda line: None)
    return folder


def mixed_tiny(out: Path, lower: str, upper: str) -> Path:
    """Layers 0 and 1 of one recipe, 2 and 3 of the other, so that one engine serves both."""
    from safetensors.torch import load_file, save_file

    folders = {lower: quantized_tiny(lower), upper: quantized_tiny(upper)}
    shutil.copytree(folders[lower], out)
    (out / "serving-manifest.json").unlink()
    tensors = {n: t for n, t in load_file(folders[lower] / "model.safetensors").items() if not _is_upper(n)}
    tensors |= {n: t for n, t in load_file(folders[upper] / "model.safetensors").items() if _is_upper(n)}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folders[lower] / "config.json").read_text(encoding="utf-8"))
    groups = {}
    for name, (recipe, layers) in enumerate(((lower, "01"), (upper, "23"))):
        other = json.loads((folders[recipe] / "config.json").read_text(encoding="utf-8"))["quantization_config"]
        groups[f"group_{name}"] = other["config_groups"]["group_0"] | {"targets": [rf"re:.*layers\.[{layers}]\..*_proj"]}
    config["quantization_config"] |= {"config_groups": groups, "format": "mixed-precision"}
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return out


def _is_upper(name: str) -> bool:
    return name.startswith(("model.layers.2.", "model.layers.3."))
