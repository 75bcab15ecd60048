"""An engine that answers in another shape than the API's makes a run invalid, or is an error that says so."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from serving.core.errors import ConfigurationError
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.test_replay import faults, profile, run

UNSHARED = {"shared_prefix": None, "prompt_tokens": 200}


def answers(document: Any) -> Script:
    return Script(status=200, body=orjson.dumps(document))


async def test_streams_of_another_shape_make_a_run_invalid(engine: ScriptedEngine) -> None:
    event = b'{"choices": [1]}'
    script = Script(raw_is="body", raw=[(0.0, b"data: " + event + b"\n\n"), (0.0, b"data: [DONE]\n\n")])
    engine.choose = lambda request: script if request.json.get("stream") else None
    report = await run(engine.url, profile(traffic=UNSHARED), rates=(40.0,))
    assert "requests failed (not a chunk)" in faults(report)["errors"]
    assert report.stages[0].said["not a chunk"] == event.decode()


async def test_an_engine_that_refuses_everything_is_not_asked_without_a_pause(engine: ScriptedEngine) -> None:
    """A closed loop begins anew when a request has ended: a million times in a window, where each one fails at once."""
    engine.choose = lambda request: Script(status=503) if request.json.get("stream") else None
    report = await run(engine.url, profile(traffic=UNSHARED, measure_seconds=2.0), concurrencies=(8,))
    assert "requests failed (status 503)" in faults(report)["errors"]
    assert report.stages[0].requests < 300


@pytest.mark.parametrize("chat", [[], "yes", {"usage": [7]}, {"usage": {"prompt_tokens": "7"}}, {"usage": None}])
async def test_a_first_answer_of_another_shape_is_an_error_that_says_it(chat: Any, engine: ScriptedEngine) -> None:
    engine.choose = lambda request: answers(chat)
    with pytest.raises(ConfigurationError, match="has no usage with prompt_tokens"):
        await run(engine.url)


@pytest.mark.parametrize(
    "tokenized", [[], "yes", {"count": 3}, {"count": 3, "tokens": None}, {"count": 3, "tokens": "abc"}, {"tokens": [1, 2, 3]}]
)
async def test_an_odd_tokenizer_is_left_alone(tokenized: Any, engine: ScriptedEngine) -> None:
    engine.choose = lambda request: answers(tokenized) if request.path == "/tokenize" else None
    report = await run(engine.url, profile(traffic=UNSHARED), rates=(40.0,))
    assert report.engine.counts_by == "usage"


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([], "answered 200; give --model"),
        ({"data": "tiny"}, "answered 200; give --model"),
        ({"data": []}, "serves none"),
        ({"data": [1, {"id": "a"}, {"id": "b"}]}, "serves a, b"),
    ],
)
async def test_an_odd_list_of_models_is_an_error_that_says_it(listed: Any, said: str, engine: ScriptedEngine) -> None:
    engine.routes["/v1/models"] = answers(listed)
    with pytest.raises(ConfigurationError, match=said):
        await run(engine.url)


async def test_odd_cards_beside_the_model_do_not_matter(engine: ScriptedEngine) -> None:
    engine.routes["/v1/models"] = answers({"data": [1, {"id": "tiny", "max_model_len": 400}]})
    with pytest.raises(ConfigurationError, match="the engine's context 400"):
        await run(engine.url, profile(traffic=UNSHARED), scale=3.0)
