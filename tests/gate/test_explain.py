"""What a failed distance looks like."""

from __future__ import annotations

import dataclasses

import pytest

from serving.gate.compare import Distance, distance
from serving.gate.explain import growth, looks_like
from serving.gate.statistics import Estimate
from tests.gate.conftest import collected


def apart(by_position: float = 0.0) -> Distance:
    """A distance whose KL is `by_position` times the position, or the same everywhere."""
    found = distance(collected(), collected(fault=0.1))
    assert found is not None
    pairs = tuple(
        dataclasses.replace(
            pair,
            positions=tuple(dataclasses.replace(one, kl=by_position * one.index or 0.01) for one in pair.positions),
        )
        for pair in found.pairs
    )
    return dataclasses.replace(found, pairs=pairs)


def test_what_grows_along_the_passages_is_about_positions() -> None:
    assert growth(apart()) == pytest.approx(1.0)
    assert growth(apart(0.001)) > 3
    assert "wrong positions" in looks_like(apart(0.001), "matched")


@pytest.mark.parametrize(
    ("kl", "words"), [(0.0204, "scales in the wrong place"), (0.117, "doubled scales"), (0.4, "whole layer"), (1.6, "table")]
)
def test_sizes_that_were_measured(kl: float, words: str) -> None:
    assert words in looks_like(dataclasses.replace(apart(), kl=Estimate(kl, kl, kl)), "matched")
    assert looks_like(dataclasses.replace(apart(), kl=Estimate(kl, kl, kl)), "repeat").startswith("another engine")
