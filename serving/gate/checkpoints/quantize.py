"""`serving quantize`: a model's folder as a quantized checkpoint, by llm-compressor in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.engines.model_store import MANIFEST
from serving.gate.checkpoints.place import require_new, write_folder
from serving.gate.checkpoints.recipes import IGNORED, Recipe, recipe_for
from serving.gate.checkpoints.scheme import read_json, read_quantization
from serving.settings import cache_dir, child_environment

PROGRAM = Path(__file__).with_name("compressor_program.py")
TEXT_TOKENS = 256
TEXTS = 16
"""For calibration, where no texts are given: the scale of an activation is the largest one seen, which few texts settle."""
LAST_LINES = 8


def quantize(model: Path, recipe_name: str, out: Path, report: Callable[[str], None], calibration: Path | None = None) -> None:
    """Write the folder `out`, whole or not at all: the model's files as they are, its matrices packed.

    Raises:
        ConfigurationError: the model, the format or the texts cannot be used, `out` is there already, or llm-compressor is
            missing or failed.
    """
    config = read_json(model / "config.json")
    if config.get("quantization_config"):
        raise ConfigurationError(f"{model}/config.json: quantization_config: this model is quantized already")
    recipe = recipe_for(recipe_name, config)
    if calibration is not None and not recipe.calibrated:
        raise ConfigurationError(f"--calibration: --format {recipe_name} needs none; only nvfp4 measures activations beforehand")
    require_new(out)
    texts = _texts(calibration) if recipe.calibrated else []
    overlay = _overlay()

    def build(folder: Path) -> None:
        packed = folder / "packed"
        report(f"llm-compressor quantizes {model.name} to {recipe_name}")
        _compress(model, packed, recipe, texts, overlay)
        _assemble(model, packed, folder)

    write_folder(out, build, report)
    found = read_quantization(out)
    if found.formats != {recipe.format}:
        raise ConfigurationError(f"{out}: llm-compressor wrote {found} where {recipe_name} was asked for")


def _overlay() -> Path | None:
    """The folder with llm-compressor, or None where it is installed beside us."""
    folder = cache_dir() / "quantizer"
    if (folder / "llmcompressor").is_dir():
        return folder
    if importlib.util.find_spec("llmcompressor") is not None:
        return None
    raise ConfigurationError("llm-compressor is not there; `make setup-quantizer` brings it, or `pip install llmcompressor`")


def _compress(model: Path, packed: Path, recipe: Recipe, texts: list[str], overlay: Path | None) -> None:
    job = {
        "model": str(model),
        "out": str(packed),
        "weights": recipe.weights,
        "inputs": recipe.inputs,
        "ignore": list(IGNORED),
        "texts": texts,
        "text_tokens": TEXT_TOKENS,
    }
    additions = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "LLM_COMPRESSOR_LOG_DISABLED": "true"}
    additions["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait starve a machine that does other work as well
    if overlay is not None:
        additions["PYTHONPATH"] = str(overlay)
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM)],
        input=json.dumps(job),
        env=child_environment(additions),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        told = "\n".join(done.stdout.replace("\r", "\n").splitlines()[-LAST_LINES:])
        raise ConfigurationError(f"llm-compressor failed with status {done.returncode}:\n{told}")


def _assemble(model: Path, packed: Path, folder: Path) -> None:
    """The weights of `packed` under the model's own configuration, tokenizer and template, so that nothing else differs."""
    for path in packed.glob("*.safetensors*"):
        path.rename(folder / path.name)
    for path in model.iterdir():
        if path.is_file() and ".safetensors" not in path.name and path.name not in ("config.json", MANIFEST):
            shutil.copyfile(path, folder / path.name)
    written = read_json(packed / "config.json")
    if "quantization_config" not in written:
        raise ConfigurationError("llm-compressor wrote no quantization_config; the quantization did not happen")
    config = read_json(model / "config.json") | {"quantization_config": written["quantization_config"]}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(packed)


def _texts(calibration: Path | None) -> list[str]:
    """The texts of a JSONL file by their field `text`; without one, pages of Python's own documentation."""
    if calibration is None:
        from pydoc_data.topics import topics

        return [topics[name] for name in sorted(topics, key=lambda name: len(topics[name]))[-TEXTS:]]
    texts = []
    try:
        lines = calibration.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--calibration {calibration}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f'--calibration {calibration}, line {number}: must be a JSON object such as {{"text": "…"}}')
        texts.append(text)
    if not texts:
        raise ConfigurationError(f"--calibration {calibration}: holds no text")
    return texts
