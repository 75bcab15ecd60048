"""What a profile says of its simulated engine, and what it must not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.catalog.load import load_catalog
from serving.catalog.speed import priors_of
from serving.core.errors import ConfigurationError
from serving.sim.plan import EnginePlan, plan
from tests.doubles.catalogs import SHIPPED, copy_of_catalog

PROFILE = "smollm2-135m-cpu"
SIMULATION: dict[str, Any] = {
    "source": "made up",
    "kv_capacity_tokens": 20_000,
    "prefill_tokens_per_second": 1000.0,
    "step_seconds": 0.01,
}


def planned(root: Path, *, adapters: tuple[str, ...] = (), arguments: dict[str, Any] | None = None, **fields: Any) -> EnginePlan:
    """With fields of the simulation and arguments replaced."""
    catalog = copy_of_catalog(root)
    path = catalog / "profiles" / f"{PROFILE}.yaml"
    profile = yaml.safe_load(path.read_text())
    profile["simulation"] = {**SIMULATION, **fields}
    profile["arguments"] |= arguments or {}
    path.write_text(yaml.safe_dump(profile))
    return plan(load_catalog(catalog), PROFILE, adapters=adapters)


def test_limits_and_rates_are_the_profiles_own(tmp_path: Path) -> None:
    found = planned(tmp_path, jitter=0.1, arguments={"max-num-queued-reqs": 5, "block-size": 32, "max-num-batched-tokens": "4k"})
    assert (found.model, found.target, found.version) == ("smollm2-135m-instruct", "cpu-epyc", "0.32.0")
    assert (found.limits.max_num_seqs, found.limits.max_model_len) == (32, 8192)
    assert (found.limits.max_num_queued_reqs, found.limits.max_num_batched_tokens) == (5, 4000)
    assert (found.block_tokens, found.capacity_blocks, found.rates.jitter) == (32, 625, 0.1)
    assert found.rates.step_seconds == 0.01 and found.shutdown_seconds == 30.0


def test_defaults_are_vllms(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert (found.limits.max_num_batched_tokens, found.limits.max_num_queued_reqs, found.block_tokens) == (2048, None, 16)
    assert (found.limits.max_loras, found.adapters, found.ranks) == (0, (), 1)


def test_adapters_ranks_and_priorities(tmp_path: Path) -> None:
    arguments = {
        "lora-modules": ["one=/a", "two=/b"],
        "enable-lora": True,
        "max-loras": 2,
        "data-parallel-size": 2,
        "scheduling-policy": "priority",
    }
    found = planned(tmp_path, adapters=("three",), arguments=arguments)
    assert (found.adapters, found.limits.max_loras, found.ranks) == (("one", "two", "three"), 2, 2)
    assert found.limits.by_priority and "enable-lora" in found.options


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_capacity_tokens": 100}, "kv_capacity_tokens: must be at least max-model-len"),
        ({"step_seconds": 0.0}, "step_seconds"),
        ({"step_seconds": -1.0}, "step_seconds"),
        ({"prefill_tokens_per_second": float("inf")}, "prefill_tokens_per_second"),
        ({"step_second": 1.0}, "is not a field; did you mean step_seconds"),
        ({"jitter": 2.0}, "jitter"),
        ({"bytes_per_token": 9}, "bytes_per_token"),
        ({"arguments": {"max-num-seqs": "many"}}, "max-num-seqs"),
    ],
)
def test_what_cannot_be_simulated_is_said_with_its_field(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        planned(tmp_path, **fields)


@pytest.mark.parametrize("name", sorted(load_catalog(SHIPPED).profiles))
def test_what_nobody_has_measured_is_simulated_by_what_routing_starts_from(name: str) -> None:
    catalog = load_catalog(SHIPPED)
    profile, found = catalog.profiles[name], plan(catalog, name)
    priors = priors_of(catalog, profile)
    assert found.rates.prefill_tokens_per_second == priors.prefill_tokens_per_second
    assert found.rates.step_seconds == priors.step_seconds
    assert found.capacity_blocks * found.block_tokens <= priors.kv_capacity_tokens
    assert found.model == profile.model


def test_an_engine_version_without_metrics_has_those_of_the_next(tmp_path: Path) -> None:
    assert load_catalog(SHIPPED).profiles["glm-5.2-mxfp4-mi355x"].engine_version == "0.31.0"
    assert plan(load_catalog(SHIPPED), "glm-5.2-mxfp4-mi355x").version == "0.32.0"


def test_without_any_rates_nothing_is_simulated(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    path = root / "targets" / "cpu-epyc.yaml"
    target = yaml.safe_load(path.read_text())
    del target["memory_bandwidth_bytes_per_second"]
    path.write_text(yaml.safe_dump(target))
    with pytest.raises(
        ConfigurationError, match=r"profile qwen3-0\.6b-cpu: simulation: is missing, and its speed cannot be estimated"
    ):
        plan(load_catalog(root), "qwen3-0.6b-cpu")
