"""Asking an engine: what is kept, what it costs, and what is made of an engine that does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Collected, read_collected, write_collected
from serving.gate.passages import corpus
from serving.gate.scoring import batches
from tests.doubles.numeric_engine import NumericEngine
from tests.gate.conftest import collected

PASSAGES_ONLY = CollectOptions(parts=("passages",))


def ask(engine: NumericEngine, options: CollectOptions = PASSAGES_ONLY) -> Collected:
    return collect(Address(engine.url, sleep=lambda seconds: None), options)


def test_everything_is_kept_and_comes_back_from_its_file(tmp_path: Path) -> None:
    found = collected()
    assert {passage.kind for passage in found.passages} == {"prose", "code", "spanish", "chat"}
    assert sum(passage.scored for passage in found.passages) > 1500
    assert [rendering.name for rendering in found.renderings] == ["user only", "system and user", "several turns", "with a tool"]
    assert all(run.decoded == run.prefilled and run.first_ranks == len(run.ids) == 32 for run in found.decode_runs)
    assert found.troubles == ()
    assert (found.engine.model, found.engine.version) == ("numeric", "0.32.0")
    assert found.cost.prompt_tokens > 2000 and found.cost.requests > 20
    write_collected(found, tmp_path / "c.json")
    assert read_collected(tmp_path / "c.json") == found


def test_no_request_scores_more_than_it_may() -> None:
    for limit in (64, 300, 1024):
        with NumericEngine() as engine:
            found = ask(engine, CollectOptions(parts=("passages",), tokens_at_once=limit))
            scored = [body for path, body in engine.requests if path == "/v1/completions" and "prompt_logprobs" in body]
        longest = max(len(passage.ids) for passage in found.passages)
        sizes = [sum(len(text) / 4 for text in body["prompt"]) for body in scored]
        assert max(sizes) <= max(limit, longest)
        assert found.cost.most_tokens_at_once == limit
    assert [len(batch) for batch in batches(corpus().passages[:3], 1)] == [1, 1, 1]


def test_batches_do_not_change_what_is_found() -> None:
    with NumericEngine() as engine:
        shapes = [ask(engine, CollectOptions(parts=("passages",), tokens_at_once=limit)).passages for limit in (64, 4096)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("behaviour", "kind", "said"),
    [
        ({"status": {"/v1/completions": 500}}, "garbage", "answered 500"),
        ({"status": {"/v1/completions": 400}}, "refused", "answered 400"),
        ({"not_a_number": True}, "garbage", "a log probability is nan"),
        ({"hang_up_after": 4}, "silent", "no answer, twice"),
    ],
)
def test_trouble_is_written_down(behaviour: dict[str, Any], kind: str, said: str) -> None:
    with NumericEngine(**behaviour) as engine:
        found = ask(engine)
    assert found.troubles[0].kind == kind
    assert said in found.troubles[0].said
    assert len(found.troubles) <= 3  # and then the engine is left alone


def test_a_busy_engine_is_asked_again() -> None:
    with NumericEngine() as engine:
        engine.behaviour.status["/v1/completions"] = 503
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            engine.behaviour.status.clear()

        found = collect(Address(engine.url, sleep=sleep), PASSAGES_ONLY)
    assert (len(waits), found.troubles) == (1, ())


def test_what_an_engine_does_not_offer_is_said_and_no_trouble() -> None:
    with NumericEngine(status={"/tokenize": 404, "/v1/chat/completions": 400}) as engine:
        found = ask(engine, CollectOptions(parts=("passages", "templates")))
    assert found.troubles == ()
    assert any(
        line.startswith("chats: the engine does not offer it: /v1/chat/completions: answered 400") for line in found.not_seen
    )
    assert any(line.startswith("template user only: the engine does not offer it") for line in found.not_seen)
    assert "decode: left out by --parts" in found.not_seen


def test_long_contexts_are_looked_at_by_their_next_tokens() -> None:
    with NumericEngine() as engine:
        found = ask(engine, CollectOptions(parts=(), context_tokens=600))
        prompts = [body for path, body in engine.requests if path == "/v1/completions"]
    long = [passage for passage in found.passages if passage.kind == "long"]
    assert len(long) == 12
    assert all("prompt_logprobs" not in body and body["max_tokens"] == 1 for body in prompts)
    assert len(prompts[-1]["prompt"]) > 600 * 3


def test_a_context_that_is_too_long_for_the_engine_is_left_out() -> None:
    with NumericEngine(max_model_len=512) as engine:
        found = ask(engine, CollectOptions(parts=(), context_tokens=600))
    assert found.passages == ()
    assert "long context: 600 tokens do not fit safely into the engine's 512" in found.not_seen


def test_acceptance_is_what_the_engine_counted_in_between() -> None:
    with NumericEngine(drafts=2, answers=lambda prompt: " Paris") as engine:
        found = ask(engine, CollectOptions(parts=("tasks",), items=2))
    assert found.acceptance is not None
    assert found.acceptance.tokens_per_step == 3.0
    assert collected().acceptance is None


def test_an_address_without_an_engine_is_refused() -> None:
    with NumericEngine() as engine:
        url = engine.url
    with pytest.raises(ConfigurationError, match="no answer, twice"):
        collect(Address(url, sleep=lambda seconds: None), PASSAGES_ONLY)
    with pytest.raises(ConfigurationError, match="address: must be like http"):
        Address("localhost:8000")
    with NumericEngine() as engine, pytest.raises(ConfigurationError, match=r"--model: 'other' is not served .* numeric"):
        collect(Address(engine.url, model="other"), PASSAGES_ONLY)
    with pytest.raises(ConfigurationError, match="--parts: 'passage' is not one; there are: passages"):
        CollectOptions(parts=("passage",))


def test_a_file_that_is_no_collection_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, said in (("{", "is not JSON"), ('{"format": "other"}', "is not a file of `serving gate collect`")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            read_collected(path)
    spoilt = json.loads(collected().model_dump_json()) | {"engine": {}}
    path.write_text(json.dumps(spoilt))
    with pytest.raises(ConfigurationError, match=r"engine\.url: "):
        read_collected(path)
