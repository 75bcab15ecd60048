from __future__ import annotations

from typing import Any

import pytest

from serving.catalog.load import load_catalog
from serving.catalog.model import Catalog, Profile
from serving.catalog.vocabulary import check, environment_problems, size_bytes
from tests.doubles.catalogs import SHIPPED

CATALOG = load_catalog(SHIPPED)


def profile(arguments: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **changes: Any) -> Profile:
    base = CATALOG.profiles["smollm2-135m-cpu"]
    return base.model_copy(update={"arguments": arguments or {}, "environment": environment or {}, **changes})


@pytest.mark.parametrize("shipped", CATALOG.profiles.values(), ids=lambda shipped: shipped.name)
def test_shipped_profiles_have_no_problem(shipped: Profile) -> None:
    assert shipped.engine_version in CATALOG.vocabularies
    assert check(CATALOG, shipped) == []


@pytest.mark.parametrize("arguments", [
    {"max-model-len": "8k"},
    {"max-model-len": 8192, "enforce-eager": False, "disable-log-stats": True},
    {"gpu-memory-utilization": 0.9, "cpu-offload-gb": 4},
    {"moe-backend": "marlin", "tool-call-parser": "hermes", "optimization-level": 3},
    {"compilation-config": {"mode": 3}, "hf-overrides": '{"a": 1}', "attention-config": "{}"},
    {"middleware": ["a.b", "c.d"], "cudagraph-capture-sizes": [1, 2, 4], "max-lora-rank": 16},
])  # fmt: skip
def test_right_arguments(arguments: dict[str, Any]) -> None:
    assert check(CATALOG, profile(arguments)) == []


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"max-modle-len": 1}, "arguments.max-modle-len: is not a flag of vLLM 0.32.0; did you mean max-model-len?"),
    ({"swap-space": 4}, "arguments.swap-space: is not a flag of vLLM 0.32.0; it is gone; preempted requests are computed again"),
    ({"guided-decoding-backend": "x"}, "use structured-outputs-config"),
    ({"no-enforce-eager": True}, "arguments.no-enforce-eager: write enforce-eager: false"),
    ({"kv-cache-memory-bytes": "1GiB"}, "must be a whole number, or one with k, m, g, t (decimal)"),
    ({"kv-cache-memory-bytes": "1.5G"}, "must be a whole number"),
    ({"max-num-seqs": "32"}, "must be a whole number, not '32'"),
    ({"max-num-seqs": True}, "must be a whole number, not True"),
    ({"max-num-seqs": [1, 2]}, "must be one value, not a list"),
    ({"gpu-memory-utilization": "90%"}, "must be a number"),
    ({"enforce-eager": "yes"}, "must be true or false"),
    ({"disable-log-stats": False}, "must be true or be left out"),
    ({"dtype": "bf16"}, "'bf16' is not a choice; did you mean"),
    ({"moe-backend": "foo"}, "'foo' is not a choice; there are: aiter"),
    ({"tool-call-parser": "hermez"}, "did you mean hermes?"),
    ({"compilation-config": "{mode"}, "is not JSON"),
    ({"cudagraph-capture-sizes": [1, "x"]}, "must be a whole number, not 'x'"),
])  # fmt: skip
def test_wrong_arguments(arguments: dict[str, Any], expected: str) -> None:
    (problem,) = check(CATALOG, profile(arguments))
    assert expected in problem


@pytest.mark.parametrize(("name", "expected"), [
    ("VLLM_ROCM_USE_AITERR", "did you mean VLLM_ROCM_USE_AITER?"),
    ("VLLM_ATTENTION_BACKEND", "use the argument attention-backend"),
    ("VLLM_SERVICE_PORT", "is not a variable of vLLM 0.32.0"),
])  # fmt: skip
def test_wrong_variables(name: str, expected: str) -> None:
    (problem,) = check(CATALOG, profile(environment={name: "1", "OMP_NUM_THREADS": "2"}))
    assert problem.startswith(f"environment.{name}: ")
    assert expected in problem


def test_other_programs_variables_are_not_ours_to_judge() -> None:
    vocabulary = CATALOG.vocabularies["0.32.0"]
    assert environment_problems(["PATH", "HF_HOME", "VLLM_NO_USAGE_STATS"], vocabulary, CATALOG.removed) == []


def test_a_version_without_a_snapshot_is_not_judged() -> None:
    assert check(CATALOG, profile({"anything": 1}, engine_version="0.29.0")) == []


def test_removed_names_are_really_gone(catalog: Catalog = CATALOG) -> None:
    vocabulary = catalog.vocabularies["0.32.0"]
    assert not set(catalog.removed.flags) & set(vocabulary.flags)
    assert not set(catalog.removed.environment) & set(vocabulary.environment)


def test_the_metrics_that_the_gateway_reads_are_in_the_snapshot() -> None:
    names = CATALOG.vocabularies["0.32.0"].metrics
    assert names["vllm:num_requests_running"] == names["vllm:num_requests_waiting"] == "gauge"
    assert names["vllm:prefix_cache_hits"] == "counter"


@pytest.mark.parametrize(("text", "expected_bytes"), [
    (7, 7), ("7", 7), ("4k", 4000), ("4K", 4096), ("1.5g", 1_500_000_000), ("2G", 2**31), ("1.5G", None), ("x", None),
    (True, None), (1.5, None), (None, None),
])  # fmt: skip
def test_sizes_are_read_as_vllm_reads_them(text: object, expected_bytes: int | None) -> None:
    assert size_bytes(text) == expected_bytes
