"""The catalog is right, and each kind of fault gives one error: file, field, what is wrong, what would be right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.catalog.findings import Finding
from serving.catalog.lint import lint
from tests.doubles.catalogs import SHIPPED, copy_of_catalog, spoil

MI355X = "profiles/glm-5.2-mxfp4-mi355x.yaml"
MI300X = "profiles/deepseek-r1-fp8-mi300x.yaml"
B200 = "profiles/glm-5.2-nvfp4-b200.yaml"
H200 = "profiles/glm-5.2-fp8-h200.yaml"
EPYC = "profiles/qwen3-0.6b-epyc-9005.yaml"
DEMO = "profiles/smollm2-135m-cpu.yaml"
IMAGES = "engines/images.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_of_catalog(tmp_path)


def errors(root: Path, level: str = "error") -> list[Finding]:
    return [entry for entry in lint(root)[0] if entry.level == level]


def test_the_shipped_catalog_is_clean() -> None:
    found, catalog = lint(SHIPPED)
    assert catalog is not None and len(catalog.profiles) >= 22
    assert [str(entry) for entry in found if entry.level != "note"] == []
    assert {entry.file for entry in found} == {IMAGES, "targets/cuda-rubin.yaml"}


PLANTED: dict[str, tuple[str, list[tuple[str, str]], str, str, str]] = {
    # file, texts and what takes their place, field, what is wrong, what would be right
    "dead environment name": (
        B200,
        [("environment:\n", 'environment:\n  VLLM_USE_FLASHINFER_MOE_FP4: "1"\n')],
        "environment.VLLM_USE_FLASHINFER_MOE_FP4",
        "is not a variable of vLLM 0.31.0",
        "use the argument moe-backend: flashinfer_trtllm or flashinfer_cutlass",
    ),
    "unknown flag": (
        MI355X,
        [("arguments:\n", "arguments:\n  max-num-seq: 3\n")],
        "arguments.max-num-seq",
        "is not a flag of vLLM 0.31.0",
        "did you mean max-num-seqs?",
    ),
    "flag of another version": (
        MI355X,
        [("arguments:\n", "arguments:\n  enable-shm-tensor-arena: true\n")],
        "arguments.enable-shm-tensor-arena",
        "is not a flag of vLLM 0.31.0",
        "vLLM 0.32.0 has it: leave it out, or take an image of that version",
    ),
    "variable of another version": (
        MI355X,
        [("environment:\n", 'environment:\n  VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA: "1"\n')],
        "environment.VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA",
        "is not a variable of vLLM 0.31.0",
        "vLLM 0.32.0 has it: leave it out, or take an image of that version",
    ),
    "wrong parser": (
        "models/glm-5.2.yaml",
        [("tool_call_parser: glm47", "tool_call_parser: glm46")],
        "tool_call_parser",
        "'glm46' is no tool call parser of vLLM 0.31.0",
        "glm47",
    ),
    "MXFP4 on MI300X without consent": (
        MI300X,
        [("checkpoint: fp8", "checkpoint: mxfp4")],
        "checkpoint",
        "mxfp4 is only emulated on rocm-mi300x",
        "choose a checkpoint in bf16 or int8 or int4 or fp8 or mxfp4-w4a16, or set allow_emulation: true",
    ),
    "NVFP4 on AMD": (
        MI355X,
        [("checkpoint: mxfp4", "checkpoint: nvfp4")],
        "checkpoint",
        "nvfp4 is only emulated on rocm-mi355x",
        "or set allow_emulation: true",
    ),
    "FP8 on EPYC": (
        EPYC,
        [("model: qwen3-0.6b", "model: llama-3.3-70b-instruct"), ("checkpoint: bf16", "checkpoint: fp8")],
        "checkpoint",
        "fp8 is refused on cpu-epyc-9005 (its kernels need AMX, which no EPYC has)",
        "choose a checkpoint in bf16 or int8 or int4",
    ),
    "GLM-5.2 on EPYC": (
        H200,
        [("target: cuda-h200", "target: cpu-epyc-9005")],
        "target",
        "cpu-epyc-9005 has no sparse attention, which the model needs",
        "choose another target",
    ),
    "missing digest": (
        IMAGES,
        [("    digest: sha256:749f6f3f944f12af49966ac523c1f8573e4b229594b541954bd5f879b4496b1f\n", "")],
        "images[0.31.0 rocm].digest",
        "vllm/vllm-openai-rocm:v0.31.0 has none",
        "sha256:… as the registry tells it, or digest_missing_because with the reason",
    ),
    "anchor above roofline": (
        MI355X,
        [("value: 2626", "value: 50_400")],  # what it would be if all tokens were meant
        "anchors.0.value",
        "wafer-mi355x: 50,400 output tokens/s are more than the 19,573 that the hardware allows at 128 requests",
        "in the unit it was published in",
    ),
    "misspelt key": (
        MI355X,
        [("environment:", "enviroment:")],
        "enviroment",
        "is not a field",
        "did you mean environment?",
    ),
    "image of no version": (
        MI300X,
        [("engine_version: 0.31.0", "engine_version: 0.32.0")],
        "engine_version",
        "engines/images.yaml has no image of vLLM 0.32.0 for rocm",
        "there are: 0.32.0 for cpu, 0.31.0 for rocm, 0.31.0 for cuda",
    ),
    "more accelerators than a node has": (
        MI300X,
        [("tensor-parallel-size: 8", "tensor-parallel-size: 16")],
        "arguments",
        "is 16, and a node of rocm-mi300x has 8 accelerators",
        "set nodes_per_engine: 2",
    ),
    "no room for one request": (
        MI300X,
        [("tensor-parallel-size: 8", "tensor-parallel-size: 4")],
        "arguments",
        "lacks 10.1 GB on each accelerator of rocm-mi300x",
        "`serving plan deepseek-r1-fp8-mi300x` says what would make it fit",
    ),
    "a KV format of other hardware": (
        DEMO,
        [("  dtype: bfloat16", "  dtype: bfloat16\n  kv-cache-dtype: fp8")],
        "arguments.kv-cache-dtype",
        "cpu-epyc keeps no KV cache in fp8",
        "leave it out, for bf16",
    ),
    "what every engine has, switched off": (
        MI355X,
        [("arguments:\n", "arguments:\n  enable-prefix-caching: false\n")],
        "arguments.enable-prefix-caching",
        "is always on",
        "leave it out",
    ),
    "a figure without a source": (
        "targets/rocm-mi300x.yaml",
        [("  power_watts: Semi", "  power_wats: Semi")],
        "sources.power_watts",
        "is missing",
        "where the figure comes from",
    ),
    "parameters that the shape does not have": (
        "models/llama-2-70b-chat.yaml",
        [("  layers: 80", "  layers: 81")],
        "parameters",
        "68.98 B are said and the shape has 69.83 B",
        "within a hundredth",
    ),
    "speculation that is not switched on": (
        MI355X,
        [("num_speculative_tokens: 3", "num_speculative_tokens: 5")],
        "speculation.draft_tokens",
        "is 3 and arguments.speculative-config has 5",
        "the same number in both",
    ),
    "measured, without a measurement": (
        MI355X,
        [("status: untested", "status: measured")],
        "status",
        "is measured, and the file holds no measurement",
        "untested",
    ),
    "a comparison with nothing": (
        MI355X,
        [("baseline: glm-5.2-nvfp4-b200", "baseline: glm-5.2-nvfp4-b100")],
        "comparisons.0.baseline",
        "'glm-5.2-nvfp4-b100' is not there",
        "glm-5.2-nvfp4-b200",
    ),
    "a series of no engine": (
        "engines/metrics.yaml",
        [("vllm:num_requests_waiting", "vllm:num_requests_queued")],
        "names",
        "vllm:num_requests_queued is no series of vLLM 0.31.0",
        "did you mean vllm:num_requests_",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_gives_one_clear_error(root: Path, name: str) -> None:
    file, spoilt, field, wrong, right = PLANTED[name]
    for old, new in spoilt:
        spoil(root / file, old, new)
    found = errors(root)
    if name == "a series of no engine":  # said for each version that is used
        assert [entry.file for entry in found] == [file, file]
        found = found[:1]
    if name == "a figure without a source":  # and the misspelt source is the source of nothing
        assert [entry.field for entry in found] == ["sources.power_wats", "sources.power_watts"]
        found = found[1:]
    (error,) = found
    assert (error.file, error.field) == (file, field)
    assert wrong in error.wrong
    assert right in f"{error.wrong} {error.right}"
    assert error.right


@pytest.mark.parametrize(
    "change",
    [
        lambda root: spoil(root / MI300X, "checkpoint: fp8", "checkpoint: mxfp4\nallow_emulation: true"),
        lambda root: spoil(
            root / IMAGES,
            "    digest: sha256:749f6f3f944f12af49966ac523c1f8573e4b229594b541954bd5f879b4496b1f\n",
            "    digest_missing_because: the mirror makes its own\n",
        ),
    ],
    ids=["emulation with consent", "no digest, with a reason"],
)
def test_what_is_said_with_consent_or_reason_is_no_error(root: Path, change: Callable[[Path], None]) -> None:
    change(root)
    assert errors(root) == []


def test_a_version_without_a_snapshot_is_said_to_be_unchecked(root: Path) -> None:
    (root / "engines" / "vllm-0.31.0.json").unlink()
    found = errors(root, "unchecked")
    users = [path for path in (root / "profiles").iterdir() if "engine_version: 0.31.0" in path.read_text()]
    assert len(found) == len(users) == 16
    assert {entry.field for entry in found} == {"engine_version"}
    assert "vLLM 0.31.0 has no snapshot, so arguments, environment, parsers and metrics are not checked" in found[0].wrong
    assert "serving snapshot" in found[0].right
    assert errors(root) == []


def test_an_anchor_that_nothing_bounds_is_unchecked(root: Path) -> None:
    spoil(root / "targets/cuda-b200.yaml", ", bf16: 2.25e+15}", "}")
    found = errors(root, "unchecked")
    assert {entry.file for entry in found} >= {B200}
    assert "peak_flops.bf16: is not known" in found[0].wrong


def test_the_command(root: Path) -> None:
    done = CliRunner().invoke(cli.app, ["lint", "--catalog", str(root)])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "22 profiles, 7 models, 12 targets: 0 errors, 0 unchecked, 2 notes"
    spoil(root / MI355X, "value: 2626", "value: 50_400")
    done = CliRunner().invoke(cli.app, ["lint", "--json", "--catalog", str(root)])
    assert done.exit_code == 1
    (error,) = [entry for entry in json.loads(done.stdout) if entry["level"] == "error"]
    assert error["file"] == MI355X and error.keys() == {"level", "file", "field", "wrong", "right"}
    spoil(root / MI355X, "environment:", "enviroment:")
    done = CliRunner().invoke(cli.app, ["lint", "--catalog", str(root)])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == f"error: {MI355X}: enviroment: is not a field"
    assert done.stdout.splitlines()[-1] == "1 errors, 0 unchecked, 0 notes"


def test_it_needs_no_engine() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom serving.catalog.lint import lint\n"
        f"lint(Path({str(SHIPPED)!r}))\n"
        "print(sorted({'vllm', 'torch', 'transformers', 'huggingface_hub', 'fastapi'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_name_of_a_dead_variable_stands_in_any_profile() -> None:
    from serving.catalog.load import load_catalog

    dead = set(load_catalog(SHIPPED).removed.environment)
    for path in (SHIPPED / "profiles").iterdir():
        assert not dead & set(re.findall(r"VLLM_[A-Z0-9_]+", path.read_text())), path.name


def test_the_silent_killers_are_off_where_weights_are_mxfp4_on_rocm() -> None:
    from serving.catalog.load import load_catalog

    catalog = load_catalog(SHIPPED)
    found = [
        profile
        for profile in catalog.profiles.values()
        if profile.model == "glm-5.2" and profile.checkpoint == "mxfp4" and catalog.targets[profile.target].engine_build == "rocm"
    ]
    assert len(found) == 3
    for profile in found:
        assert profile.environment["VLLM_ROCM_USE_AITER"] == "1"
        assert profile.environment["VLLM_ROCM_USE_AITER_FP4BMM"] == "0"
        assert profile.environment["VLLM_ROCM_USE_AITER_FP8BMM"] == "0"
        assert profile.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_the_metrics_that_the_product_reads_are_listed() -> None:
    from serving.catalog.load import load_catalog

    listed = set(load_catalog(SHIPPED).engine_metrics)
    repository = SHIPPED.parent
    places = [*(repository / "helm/serving/files/dashboards").iterdir(), *(repository / "helm/serving/files/rules").iterdir()]
    places += (repository / "serving/fleet").glob("*.py")
    for path in places:
        for name in re.findall(r"vllm:[a-z_]+[a-z]", path.read_text()):
            stem = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert stem in listed, f"{path.name} reads {name}; add it to configs/engines/metrics.yaml"
