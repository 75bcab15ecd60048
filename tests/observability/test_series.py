"""The definitions are whole, and the page is made of them."""

from __future__ import annotations

import re

import pytest

from scripts.metrics_page import PAGE, page
from serving.observability.series import GROUPS, LABELS
from serving.observability.series.definition import INTER_CHUNK_SECONDS, TTFT_SECONDS, Series

ALL = [series for group in GROUPS.values() for series in group]


def test_the_page_is_what_the_definitions_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python scripts/metrics_page.py`"


def test_no_name_is_given_twice() -> None:
    names = [series.exposed for series in ALL]
    assert len(set(names)) == len(names)


def test_each_label_is_explained_and_each_explanation_is_of_a_label() -> None:
    assert {label for series in ALL for label in series.labels} == set(LABELS)


@pytest.mark.parametrize("series", ALL, ids=lambda series: series.name)
def test_a_name_is_ours_and_says_its_unit_as_prometheus_wants_it(series: Series) -> None:
    assert re.fullmatch(r"serving_[a-z0-9_]+", series.name)
    assert not series.name.endswith("_total"), "the exposition adds it"
    assert series.documentation.endswith(".")
    assert series.kind != "histogram" or series.name.endswith("_seconds")


def test_histograms_carry_model_and_pool_only() -> None:
    histograms = [series for series in ALL if series.kind == "histogram"]
    assert histograms
    assert all(set(series.labels) <= {"model", "pool"} for series in histograms)


def test_buckets_fit() -> None:
    """A first token may take ten minutes, and chunks come every millisecond."""
    assert TTFT_SECONDS[-1] == 600.0
    assert INTER_CHUNK_SECONDS[0] == 0.001
    assert all(list(series.bounds_seconds) == sorted(set(series.bounds_seconds)) for series in ALL)
