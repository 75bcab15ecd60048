"""How far answers are from the known ones: near-ties are near, other words are far, and what is no number is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.fleet.known_answers import (
    PROMPTS,
    PROMPTS_DIGEST,
    NoAnswer,
    Reference,
    apart,
    probe_request,
    read_answer,
    read_reference,
)
from tests.fleet.answers import completion

KNOWN, _ = read_answer(completion())
REFERENCE = Reference(
    model="tiny",
    target="cpu",
    engine="0.32.0",
    prompts=PROMPTS_DIGEST,
    answer=KNOWN,
    repeats=10,
    floor_nats=0.02,
    band_nats=0.2,
    made="2026-11-30T20:15:00Z",
)


def test_the_same_answer_is_at_no_distance() -> None:
    found = apart(KNOWN, read_answer(completion())[0])
    assert (found.nats, found.strange, found.tokens) == (0.0, 0.0, 8 * len(PROMPTS))


def test_less_sure_is_as_far_as_it_is() -> None:
    found = apart(KNOWN, read_answer(completion(0.25))[0])
    assert found.nats == pytest.approx(0.25) and found.inside(0.3) and not found.inside(0.2)


def test_a_near_tie_that_turns_is_near_and_nothing_behind_it_counts() -> None:
    document = json.loads(completion())
    for choice in document["choices"]:
        logprobs = choice["logprobs"]
        known = logprobs["tokens"][2]
        logprobs["tokens"][2:] = ["token_id:1", *["token_id:2"] * 5]
        logprobs["token_logprobs"][2] = -0.05
        logprobs["top_logprobs"][2] = {"token_id:1": -0.05, known: -0.15}
        logprobs["top_logprobs"][3:] = [{"token_id:2": -0.01}] * 5
    found = apart(KNOWN, read_answer(json.dumps(document).encode())[0])
    assert found.nats == pytest.approx(0.05 / 3) and found.strange == 0.0 and found.tokens == 3 * len(PROMPTS)


def test_other_words_are_far() -> None:
    found = apart(KNOWN, read_answer(completion(words="hgfedcba"))[0])
    assert found.nats > 3.0 and found.strange == 1.0 and not found.inside(100.0)


@pytest.mark.parametrize(
    "body",
    [
        completion(token_logprobs=[None] * 8),
        completion(top_logprobs=[{"token_id:97": None}] * 8),
        completion(token_logprobs=[math.nan] * 8),
        completion(token_logprobs=[-math.inf] * 8),
        completion(top_logprobs=[{}] * 8),
    ],
)
def test_what_is_no_number_is_wrong(body: bytes) -> None:
    assert apart(KNOWN, read_answer(body)[0]).nats == math.inf


def test_an_answer_that_is_not_there_is_far() -> None:
    assert apart(KNOWN, read_answer(completion(prompts=1))[0]).strange == 0.75
    assert apart(KNOWN, read_answer(completion(words=""))[0]).nats == 10.0


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices": [{"index": 0, "logprobs": null}]}', completion(tokens=["a"]), b"[" * 100_000, b"\xff"],
)
def test_what_holds_no_log_probabilities_is_said(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        read_answer(body)


def test_the_request_is_small() -> None:
    body = json.loads(probe_request("tiny").body)
    assert body["max_tokens"] * len(body["prompt"]) <= 32 and body["temperature"] == 0


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    path.write_text(REFERENCE.model_dump_json())
    assert read_reference(path) == REFERENCE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": "0"}, "made with other prompts"),
        ({"band_nats": 0}, "band_nats"),
        ({"floor_nats": "x"}, "floor_nats"),
        ({"more": 1}, "more"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, change: dict[str, Any] | None, said: str) -> None:
    path = tmp_path / "probes.json"
    if change is not None:
        path.write_text(json.dumps(json.loads(REFERENCE.model_dump_json()) | change))
    with pytest.raises(ConfigurationError, match=f"quality.references: {path}.*{said}"):
        read_reference(path)
