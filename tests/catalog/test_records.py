"""Figures of a catalog's files that contradict each other or are beyond sense: one error with the file and the field."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from serving import cli
from serving.catalog.load import load_catalog
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED

MODEL, TARGET, PROFILE = "models/glm-5.2.yaml", "targets/rocm-mi355x.yaml", "profiles/glm-5.2-mxfp4-mi355x.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "catalog"))


def change(path: Path, *field: str, to: Any) -> None:
    whole = yaml.safe_load(path.read_text())
    inner = whole
    for part in field[:-1]:
        inner = inner[part]
    inner[field[-1]] = to
    path.write_text(yaml.safe_dump(whole))


@pytest.mark.parametrize(
    ("file", "field", "value", "message"),
    [
        (MODEL, "shape.experts.layers", 500, "experts.layers: must be at most the 78 layers, not 500"),
        (MODEL, "shape.experts.experts_per_token", 5000, "experts_per_token: must be at most the 256 experts, not 5000"),
        (MODEL, "shape.attention.indexer.layers", 500, "attention.indexer.layers: must be at most the 78 layers, not 500"),
        (MODEL, "shape.dense_intermediate_size", None, "dense_intermediate_size: is missing; 3 of 78 layers have no experts"),
        (MODEL, "checkpoints.fp8.unloaded_bytes", 10**15, "unloaded_bytes: must be less than weights_bytes"),
        (
            MODEL,
            "checkpoints.fp8.weights_bytes",
            1,
            "checkpoints.fp8.weights_bytes: 1 cannot be right; the shape in fp8 counts 7",
        ),
        ("models/qwen3-0.6b.yaml", "shape.attention.kv_heads", 3, "kv_heads: must divide the 16 heads, not 3"),
        (TARGET, "peak_flops.fp4", 1e-300, "peak_flops.fp4: input should be greater than or equal to 1000000"),
        (TARGET, "peak_flops.fp4", 1e308, "peak_flops.fp4: input should be less than or equal to"),
        (TARGET, "memory_bytes", None, "memory_bytes: is missing; amd.com/gpu counts accelerators with a memory of their own"),
        (TARGET, "price.date", "2026-13", "price.date: "),
        (PROFILE, "arguments.gpu-memory-utilization", 1.5, "gpu-memory-utilization: must be above 0 and at most 1, not 1.5"),
        (PROFILE, "arguments.gpu-memory-utilization", float("nan"), "gpu-memory-utilization: must be above 0 and at most 1"),
        (PROFILE, "arguments.some-number", float("inf"), "arguments.some-number: must be a finite number, not inf"),
        (PROFILE, "arguments.block-size", 0, "arguments.block-size: must be 1 or more, not 0"),
        (PROFILE, "arguments.kv-cache-memory-bytes", -5, "arguments.kv-cache-memory-bytes: must be 1 or more, not -5"),
    ],
)
def test_a_figure_that_cannot_be(root: Path, file: str, field: str, value: Any, message: str) -> None:
    change(root / file, *field.split("."), to=value)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    assert str(caught.value).startswith(f"{root / file}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("suffix", [".yml", ".YAML", ".YML"])
def test_a_file_that_would_be_overlooked(root: Path, suffix: str) -> None:
    (root / "profiles" / f"x{suffix}").write_text("name: x")
    with pytest.raises(ConfigurationError, match=r"must end in \.yaml"):
        load_catalog(root)


def test_a_snapshot_needs_its_folder_before_the_engine_is_loaded(tmp_path: Path) -> None:
    vllm_before = "vllm" in sys.modules
    done = CliRunner().invoke(cli.app, ["snapshot", "--catalog", str(tmp_path)])
    assert isinstance(done.exception, ConfigurationError)
    assert f"--catalog: {tmp_path / 'engines'} is not a folder" in str(done.exception)
    assert ("vllm" in sys.modules) == vllm_before


@pytest.mark.parametrize(
    ("words", "breaks"),
    [
        (["plan", "glm-5.2"], lambda root: change(root / PROFILE, "arguments", "tensor-parallel-size", to="x")),
        (["lint"], lambda root: change(root / PROFILE, "arguments", "tensor-parallel-size", to="x")),
        (["lint"], lambda root: change(root / PROFILE, "arguments", "max-num-seqs", to="x")),
        (["lint"], lambda root: change(root / PROFILE, "arguments", "tensor-parallel-size", to=3)),
    ],
)
def test_one_wrong_profile_is_named(root: Path, words: list[str], breaks: Callable[[Path], None]) -> None:
    breaks(root)
    done = CliRunner().invoke(cli.app, [*words, "--catalog", str(root)])
    assert done.exit_code == 1
    assert "glm-5.2-mxfp4-mi355x" in f"{done.output}{done.exception}"
    assert "arguments." in f"{done.output}{done.exception}"
    assert isinstance(done.exception, SystemExit | ConfigurationError)


def test_a_terminal_without_utf8_and_no_output_at_all() -> None:
    command = [sys.executable, "-m", "serving"]
    narrow = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "plan", "glm-5.2-mxfp4-mi355x"], capture_output=True, text=True, env=narrow, check=True)
    assert "8 ? 2.90 = 23.20 dollars an hour" in done.stdout
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command, "targets"], capture_output=True, text=True, check=False)
    assert "Traceback" not in closed.stderr
