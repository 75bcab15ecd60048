from __future__ import annotations

import pytest

from serving.catalog.evidence import PRODUCTION
from serving.catalog.load import load_catalog
from serving.catalog.speed import roofline_of
from serving.replay.money import Hardware, Seen, find_hardware, roofline
from serving.replay.report import Options
from serving.settings import catalog_dir

URL = "http://127.0.0.1:8000"


def hardware(profile: str) -> Hardware:
    return find_hardware(Options(url=URL, engine_profile=profile), catalog_dir())


@pytest.mark.parametrize("running", [1, 16])
def test_the_share_of_the_roofline_is_of_the_bound_that_the_catalog_computes(running: int) -> None:
    """Experts that a step does not touch and drafts that it accepts are in it."""
    catalog = load_catalog(catalog_dir())
    bounds = roofline_of(catalog, catalog.profiles["glm-5.2-mxfp4-mi355x"])
    most = bounds.bound(running, PRODUCTION).output_tokens_per_second
    found = roofline(hardware("glm-5.2-mxfp4-mi355x"), 1, Seen(most / 4, running, PRODUCTION))
    assert found.share == pytest.approx(0.25, rel=1e-3)


def test_between_whole_numbers_of_requests_the_bound_lies_between_theirs() -> None:
    there = hardware("gpt-oss-120b-b200")
    shares = [roofline(there, 1, Seen(1000.0, running, PRODUCTION)).share for running in (16.0, 20.0, 24.0)]
    assert all(share is not None for share in shares)
    assert shares == sorted(shares, reverse=True)  # type: ignore[type-var]


def test_a_node_holds_as_many_engines_as_its_accelerators_allow() -> None:
    one = roofline(hardware("gpt-oss-120b-b200"), 1, Seen(1000.0, 64.0, PRODUCTION))
    two = roofline(hardware("gpt-oss-120b-b200"), 2, Seen(2000.0, 128.0, PRODUCTION))
    assert "8 engines of gpt-oss-120b-b200 on 1 node " in one.said
    assert "16 engines of gpt-oss-120b-b200 on 2 nodes " in two.said
    assert one.share == two.share


@pytest.mark.parametrize(
    ("profile", "seen", "why"),
    [
        (None, Seen(1000.0, 8.0, PRODUCTION), "--engine-profile says which"),
        ("gpt-oss-120b-b200", Seen(None, 8.0, PRODUCTION), "no tokens were made"),
        ("gpt-oss-120b-b200", Seen(1000.0, 8.0, None), "no tokens were made"),
    ],
)
def test_an_unknown_share_says_why(profile: str | None, seen: Seen, why: str) -> None:
    found = roofline(Hardware() if profile is None else hardware(profile), 1, seen)
    assert found.share is None
    assert why in found.said


def test_the_roofline_of_every_profile_is_known_or_says_what_is_missing() -> None:
    catalog = load_catalog(catalog_dir())
    for name, profile in catalog.profiles.items():
        there = Hardware(catalog.targets[profile.target], profile, roofline_of(catalog, profile))
        found = roofline(there, 1, Seen(1000.0, 8.0, PRODUCTION))
        assert (found.share is None) == found.said.startswith("not known: "), name
