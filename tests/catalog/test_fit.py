from __future__ import annotations

from typing import Any

import pytest

from serving.catalog.fit import fit, request_kv_bytes, shape_problems
from serving.catalog.hardware import FormatSupport
from serving.catalog.load import load_catalog
from serving.catalog.model import Profile
from tests.doubles.catalogs import SHIPPED

CATALOG = load_catalog(SHIPPED)
BASE = CATALOG.profiles["smollm2-135m-cpu"]


def profile(**arguments: Any) -> Profile:
    changed = {name.replace("_", "-"): value for name, value in arguments.items()}
    return BASE.model_copy(update={"arguments": {**BASE.arguments, **changed}})


@pytest.mark.parametrize("shipped", CATALOG.profiles.values(), ids=lambda shipped: shipped.name)
def test_shipped_profiles_agree_with_model_and_target(shipped: Profile) -> None:
    assert shape_problems(CATALOG, shipped) == []


def test_the_sum() -> None:
    found = fit(CATALOG, BASE)
    assert found.needed_bytes == 269_060_552 + 2**30 + 2_000_000_000
    assert found.problem(found.needed_bytes) is None
    assert "needs 3.3 GB of memory" in str(found.problem(found.needed_bytes - 1))


def test_without_a_size_the_kv_cache_holds_one_request() -> None:
    bare = BASE.model_copy(update={"arguments": {}})
    assert fit(CATALOG, bare).kv_bytes == request_kv_bytes(CATALOG, bare) == 8192 * 23_040


def test_a_kv_cache_too_small_for_one_request() -> None:
    (problem,) = shape_problems(CATALOG, profile(kv_cache_memory_bytes="100M"))
    assert "cannot hold one request of 8192 tokens; at least 188743680" in problem


def test_a_context_longer_than_the_models() -> None:
    (problem,) = shape_problems(CATALOG, profile(max_model_len=9000))
    assert "more than the 8192 tokens" in problem


@pytest.mark.parametrize(
    ("support", "consent", "problem"),
    [
        ("refused", True, "checkpoint: bf16 is refused on cpu-epyc (no unit for it); choose a checkpoint in int8 or int4"),
        (
            "emulated",
            False,
            "checkpoint: bf16 is only emulated on cpu-epyc (no unit for it); choose a checkpoint in int8 or int4, ",
        ),
        ("emulated", True, None),
        ("weight-only", False, None),
    ],
)
def test_a_format_without_kernels(support: Any, consent: bool, problem: str | None) -> None:
    target = CATALOG.targets["cpu-epyc"]
    entry = FormatSupport(support=support, computes_in="bf16", why="no unit for it")
    catalog = CATALOG.model_copy(
        update={"targets": {"cpu-epyc": target.model_copy(update={"formats": target.formats | {"bf16": entry}})}}
    )
    found = shape_problems(catalog, BASE.model_copy(update={"allow_emulation": consent}))
    assert [text[: len(problem or "")] for text in found] == ([problem] if problem else [])
