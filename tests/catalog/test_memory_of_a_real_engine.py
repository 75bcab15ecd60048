"""Memory and KV cache as planned against what a real vLLM on the CPU reports and takes."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import psutil
import pytest

from serving.catalog.config_json import model_from_config
from serving.catalog.fit import fit
from serving.catalog.load import load_catalog
from serving.catalog.memory import Load, device_memory, device_memory_of
from serving.catalog.model import Model
from serving.catalog.parallel import Parallel
from serving.engines.weights import expected_path
from serving.settings import cache_dir
from tests.doubles.catalogs import SHIPPED
from tests.doubles.real_engine import RealEngine, running_engine
from tests.doubles.tiny_model import tiny_model

pytestmark = pytest.mark.engine
CATALOG = load_catalog(SHIPPED)
DEMO = CATALOG.profiles["smollm2-135m-cpu"]
TARGET = CATALOG.targets["cpu-epyc"]
MAX_MODEL_LEN = 4096


def reported(engine: RealEngine) -> tuple[int, float]:
    """Tokens that the KV cache holds, by its metric, and gigabytes of weights, by its log."""
    text = urllib.request.urlopen(f"{engine.url}/metrics", timeout=10).read().decode()
    tokens = re.search(r'kv_cache_size_tokens="(\d+)"', text)
    weights = re.search(r"Checkpoint size: ([\d.]+) GiB", engine.log.read_text(errors="replace"))
    assert tokens is not None and weights is not None
    return int(tokens[1]), float(weights[1]) * 2**30 / 1e9


def taken_bytes(engine: RealEngine) -> int:
    """Of all its processes, pages that they share counted once."""
    root = psutil.Process(engine.pid)
    return sum(process.memory_full_info().pss for process in [root, *root.children(recursive=True)])


def test_the_tiny_model_read_from_its_config(tmp_path: Path) -> None:
    path = tiny_model()
    model: Model = model_from_config(path)
    (checkpoint,) = model.checkpoints.values()
    load = Load(model, checkpoint, "bf16", max_model_len=MAX_MODEL_LEN, block_tokens=TARGET.kv_block_tokens, kv_bytes=200_000_000)
    planned = device_memory(load, TARGET, Parallel())
    with running_engine(path, tmp_path / "engine.log", max_model_len=MAX_MODEL_LEN) as engine:
        tokens, weights = reported(engine)
    assert planned.kv_tokens == pytest.approx(tokens, rel=0.05)
    assert planned.weights_bytes / 1e9 == pytest.approx(weights, rel=0.10, abs=0.0055)  # the log rounds to hundredths of a GiB


def test_the_demo_profile(tmp_path: Path) -> None:
    path = expected_path(CATALOG.models[DEMO.model], DEMO.checkpoint, cache_dir())
    if not (path / "config.json").is_file():
        pytest.skip("the demo model is not in the cache; `make up` fetches it")
    planned = device_memory_of(CATALOG.models[DEMO.model], DEMO, TARGET)
    kv_bytes = str(DEMO.arguments["kv-cache-memory-bytes"])
    arguments = ["--kv-cache-memory-bytes", kv_bytes, "--max-num-seqs", "32", "--dtype", "bfloat16"]  # the last one counts
    with running_engine(path, tmp_path / "engine.log", arguments, max_model_len=8192) as engine:
        tokens, weights = reported(engine)
        taken = taken_bytes(engine)
    assert planned.kv_tokens == pytest.approx(tokens, rel=0.05)
    assert planned.weights_bytes / 1e9 == pytest.approx(weights, rel=0.10)
    print(f"planned {fit(CATALOG, DEMO).needed_bytes / 1e9:.3f} GB, taken {taken / 1e9:.3f} GB")
    assert fit(CATALOG, DEMO).needed_bytes == pytest.approx(taken, rel=0.10)
