"""The gate's limits as data: read with the catalog, checked against it, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.catalog.gate_rules import rules_of
from serving.catalog.load import load_catalog
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED, copy_of_catalog, spoil


def test_a_profile_has_its_own_rules_or_the_default_ones() -> None:
    gates = load_catalog(SHIPPED).gates
    own, other = rules_of(gates, "smollm2-135m-cpu"), rules_of(gates, "gpt-oss-120b-b200")
    assert own is not None and own.name == "smollm2-135m" and "cpu-epyc" in own.floors
    assert other is not None and other.name == "default" and not other.floors
    assert rules_of({}, "smollm2-135m-cpu") is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "profiles: [smollm2-135m-cpu,",
            "profiles: [smollm2-135m-gpu,",
            "profiles.0: 'smollm2-135m-gpu' is not in the catalog; did you",
        ),
        ("  cpu-epyc:\n", "  cpu-epic:\n", "floors.cpu-epic: 'cpu-epic' is not in the catalog; did you mean cpu-epyc"),
        (
            "kl: {passes: 0.002, fails: 0.003}",
            "kl: {passes: 0.004, fails: 0.003}",
            "matched.kl: fails: must be at least passes, 0.004",
        ),
        ("  decode: >-", "  decoding: >-", "reasons.decode: is missing"),
        ("  t: 4", "  tt: 4", "stored_run.tt: is not a field"),
        ("    repeat_kl: 0.0\n", "    repeat_kl: -1\n", "floors.cpu-epyc.repeat_kl: input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    root = copy_of_catalog(tmp_path)
    spoil(root / "gate" / "smollm2-135m.yaml", old, new)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    assert said in str(caught.value)
    assert "gate/smollm2-135m.yaml" in str(caught.value)


def test_a_profile_has_one_set_of_rules(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    spoil(root / "gate" / "default.yaml", "questions: [engine]", "profiles: [smollm2-135m-cpu]\nquestions: [engine]")
    with pytest.raises(ConfigurationError, match=r"'smollm2-135m-cpu' has the rules 'default' already"):
        load_catalog(root)


def test_a_catalog_may_do_without(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    for path in (root / "gate").iterdir():
        path.unlink()
    (root / "gate").rmdir()
    assert load_catalog(root).gates == {}
