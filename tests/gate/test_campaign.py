"""The gate on real engines: honest checkpoints of every format, eight broken ones, and no false alarm in twenty repeats.

Some twenty starts of an engine, an hour or two. SERVING_GATE_CAMPAIGN names a folder in which what was collected is kept and
used again, so that a change of the gate's judgement is tried in seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gate.campaign import BROKEN, MATCHED, Campaign, original_model, say
from tests.gate.judged import HONEST_REPEATS, NOT_MATCHED, judged, said_by

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

EXPLANATIONS = {
    "roll-scales": ("matched.kl", "scales in the wrong place"),
    "double-matrix": ("matched.kl", "one matrix with doubled scales"),
    "wrong-table": ("matched.kl", "one wrong value in the table of all weights"),
    "swap-heads": ("matched.kl", "two swapped heads"),
    "wrong-rope-base": ("matched.kl", "the base of the rotary embedding"),
    "stale-layer": ("matched.kl", "a whole layer that is not the checkpoint's"),
    "silent-no-op": ("quantized", "the quantization to nvfp4a16 that was asked for did not happen"),
    "other-template": ("tokens", "the chat template changed (plain texts have the same tokens)"),
}
"""The finding that must fail first, and words that it must say."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    kept = os.environ.get("SERVING_GATE_CAMPAIGN")
    return Campaign(Path(kept) if kept else tmp_path_factory.mktemp("campaign"), original_model(say), say)


def test_the_original_against_itself_passes(campaign: Campaign) -> None:
    assert judged(campaign, "bf16", 1).outcome == "pass"


@pytest.mark.parametrize("name", [*MATCHED, "nvfp4a16-float32"])
def test_honest_weights_pass_against_their_expanded_selves(campaign: Campaign, name: str) -> None:
    found = judged(campaign, name)
    assert found.outcome == "pass", found.reason


@pytest.mark.parametrize("name", NOT_MATCHED)
def test_honest_rounding_of_activations_passes_beside_a_stored_honest_run(campaign: Campaign, name: str) -> None:
    found = judged(campaign, name)
    assert found.outcome == "pass", found.reason


@pytest.mark.parametrize("name", BROKEN)
def test_each_sabotage_fails_and_is_explained(campaign: Campaign, name: str) -> None:
    found = judged(campaign, name)
    assert found.outcome == "fail"
    finding, words = EXPLANATIONS[name]
    assert found.reason.startswith(f"{finding}: ")
    assert words in found.reason


def test_twenty_repeats_of_good_candidates_give_no_false_fail(campaign: Campaign) -> None:
    outcomes = [
        (name, number, judged(campaign, name, number)) for name, count in HONEST_REPEATS.items() for number in range(count)
    ]
    assert len(outcomes) >= 20
    assert [(name, number, said_by(found)) for name, number, found in outcomes if found.outcome != "pass"] == []
