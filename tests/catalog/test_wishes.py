"""What the user asks of `serving plan` is planned, refused, or said to be planned otherwise; never silently replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.catalog.evidence import Workload
from serving.catalog.load import load_catalog
from serving.catalog.model import Profile
from serving.catalog.plan import Plan, Wishes, plan_profile
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED

CATALOG = load_catalog(SHIPPED)
GLM = "glm-5.2-mxfp4-mi355x"
LLAMA = "llama-2-70b-bf16-mi300x"


def plan(name: str, **wishes: Any) -> Plan:
    return plan_profile(CATALOG, CATALOG.profiles[name], Wishes(**wishes))


def ask(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["plan", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_requests_longer_than_the_context_are_shortened_in_their_own_proportion_and_it_is_said() -> None:
    found = plan(LLAMA, workload=Workload(prompt_tokens=6000, output_tokens=6000, cached_share=0.1))
    assert (found.workload.prompt_tokens, found.workload.output_tokens, found.workload.cached_share) == (2048, 2048, 0.1)
    assert found.notes == (
        "requests of 6,000 and 6,000 tokens are longer than the 4,096 that the engine takes; planned with 2,048 and 2,048",
    )


def test_of_more_requests_than_fit_the_rest_waits_and_it_is_said() -> None:
    found = plan(GLM, concurrency=5000)
    assert found.used.batch == 128
    assert found.notes == ("of 5,000 requests at once 128 run and the others wait: 194 fit, and the engine takes 128",)


def test_a_published_figure_is_not_one_of_another_concurrency() -> None:
    found = plan(GLM, concurrency=1)
    assert found.throughput and found.used.bound
    assert found.throughput.kind == "assumed"
    assert found.throughput.output_tokens_per_second < found.used.bound.output_tokens_per_second
    assert plan(GLM).notes == ()


def test_a_throughput_that_the_hardware_does_not_allow_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"--throughput: the hardware allows at most 19,573 .* 128 requests of 20,000/1,0"
    ):
        plan(GLM, output_tokens_per_second=20_000.0)


@pytest.mark.parametrize(
    "words",
    [
        ["--price", "inf"], ["--price", "1e400"], ["--throughput", "inf"], ["--concurrency", "9" * 400],
        ["--prompt-tokens", "9" * 30], ["--output-tokens", "9" * 30], ["--cached", "nan"],
    ],
)  # fmt: skip
def test_a_number_beyond_sense_names_its_option(words: list[str]) -> None:
    status, text = ask(GLM, *words)
    assert status == 2 and words[0] in text


@pytest.mark.parametrize("targets", ["", " ", ",", "all,rocm-mi300x", "ALL"])
def test_targets_that_are_none(targets: str) -> None:
    with pytest.raises(ConfigurationError, match="--targets: "):
        ask("glm-5.2", "--targets", targets)


def test_a_target_named_twice_is_one_row() -> None:
    assert len(json.loads(ask("glm-5.2", "--targets", "rocm-mi300x, rocm-mi300x", "--json")[1])) == 1


def test_the_table_says_what_was_planned_otherwise() -> None:
    status, text = ask("llama-2-70b-chat", "--targets", "rocm-mi300x")
    assert status == 0
    assert f"{LLAMA}: requests of 20,000 and 1,000 tokens are longer than the 4,096" in text


def test_a_comparison_in_which_nothing_runs_ends_with_1() -> None:
    assert ask("glm-5.2", "--targets", "cpu-epyc")[0] == 1


def test_a_users_price_is_not_called_the_catalogs() -> None:
    assert "times at your price against the catalog's" in ask(GLM, "--price", "5")[1]
    assert "times at the catalog's prices" in ask(GLM)[1]


@pytest.mark.parametrize("place", ["nowhere/x.html", "", "x" * 300])
def test_a_page_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--html: .* cannot be written: "):
        ask("glm-5.2", "--targets", "rocm-mi300x", "--html", str(tmp_path / place))


def test_a_catalog_without_targets(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "catalog")
    for shelf in ("targets", "profiles", "gate"):
        for path in (tmp_path / "catalog" / shelf).iterdir():
            path.unlink()
    with pytest.raises(ConfigurationError, match="--catalog: has no targets"):
        ask("glm-5.2", "--catalog", str(tmp_path / "catalog"))


def changed(**arguments: Any) -> Profile:
    profile = CATALOG.profiles[GLM]
    return profile.model_copy(
        update={"arguments": profile.arguments | {name.replace("_", "-"): value for name, value in arguments.items()}}
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"gpu_memory_utilization": "0.9"}, {"gpu_memory_utilization": True}, {"max_model_len": "auto"}, {"max_num_seqs": 1.5},
        {"block_size": True}, {"kv_cache_memory_bytes": "x"}, {"kv_cache_dtype": "fp9"}, {"swap_space": 4},
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["0.31.0", "9.9.9"])
def test_an_argument_that_is_none_is_not_planned_with_a_default(arguments: dict[str, Any], version: str) -> None:
    profile = changed(**arguments).model_copy(update={"engine_version": version})
    if version == "9.9.9" and arguments.keys() & {"kv_cache_dtype", "swap_space"}:
        return  # of an engine without a snapshot nobody knows the names
    (name,) = arguments
    with pytest.raises(ConfigurationError, match=rf"profile {GLM}: arguments\.{name.replace('_', '-')}: "):
        plan_profile(CATALOG, profile)


def test_heads_that_ranks_cannot_share_and_a_context_beyond_the_models() -> None:
    heads = plan_profile(CATALOG, changed(tensor_parallel_size=3))
    assert not heads.runs and "64 heads of glm-5.2 cannot be shared by 3" in heads.problems[0]
    context = plan_profile(CATALOG, changed(max_model_len=2_000_000))
    assert not context.runs and "2000000 is more than the 1048576 tokens" in context.problems[0]
