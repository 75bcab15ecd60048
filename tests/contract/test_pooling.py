"""What the gateway relies on in an engine's answers to embeddings, rerank, score, tokenize and detokenize."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawResponse, ask

EMBEDDINGS = "/v1/embeddings"
SHAPE = {"object": "embedding"}
USAGE = {"completion_tokens": 0, "prompt_tokens_details": None, "completion_tokens_details": None}


async def send(engine: AnyEngine, path: str, **fields: Any) -> RawResponse:
    return await ask(engine.url, path, {"model": "tiny"} | fields, headers={"X-Request-Id": "mine"})


async def test_embeddings_and_their_usage_at_the_end(any_pooling_engine: AnyEngine) -> None:
    response = await send(any_pooling_engine, EMBEDDINGS, input=["hi", "there"], cache_salt="abc", stream=True)
    answer = response.json
    assert response.header("content-type") == "application/json"
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert (answer["id"], answer["object"], answer["model"]) == ("embd-mine", "list", "tiny")
    assert [set(item) for item in answer["data"]] == [{"index", "object", "embedding"}] * 2
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7} | USAGE
    assert b'"usage":{' in response.body


async def test_encodings_of_embeddings(any_pooling_engine: AnyEngine) -> None:
    floats = (await send(any_pooling_engine, EMBEDDINGS, input=[74, 75])).json["data"][0]["embedding"]
    text = (await send(any_pooling_engine, EMBEDDINGS, input=[74, 75], encoding_format="base64")).json["data"][0]["embedding"]
    raw = await send(any_pooling_engine, EMBEDDINGS, input=[74, 75], encoding_format="bytes")
    only = await send(any_pooling_engine, EMBEDDINGS, input=[74, 75], encoding_format="bytes_only")
    for data in (base64.b64decode(text), raw.body, only.body):
        assert struct.unpack(f"<{len(floats)}f", data) == pytest.approx(floats, abs=1e-2)
    assert raw.header("content-type") == only.header("content-type") == "application/octet-stream"
    told = json.loads(raw.header("metadata") or "")
    assert list(told) == ["id", "created", "model", "data", "usage"]
    assert told["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert only.header("metadata") is None
    assert raw.header("content-length") is only.header("content-length") is None


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_a_ranking_tells_its_usage_before_its_results(any_pooling_engine: AnyEngine, path: str) -> None:
    answer = (await send(any_pooling_engine, path, query="hi", documents=["aaa", "hi"], top_n=1)).json
    assert list(answer) == ["id", "model", "usage", "results"]
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens"}
    (best,) = answer["results"]
    assert (best["index"], best["document"]) == (1, {"text": "hi", "multi_modal": None})
    assert best["relevance_score"] == pytest.approx(1.0, abs=1e-3)


async def test_scores(any_pooling_engine: AnyEngine) -> None:
    answer = (await send(any_pooling_engine, "/v1/score", text_1="hi", text_2=["hi", "aaa"])).json
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert [set(item) for item in answer["data"]] == [{"index", "object", "score"}] * 2
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7} | USAGE


async def test_tokens_there_and_back(any_pooling_engine: AnyEngine) -> None:
    answer = (await send(any_pooling_engine, "/tokenize", prompt="hi", return_token_strs=True)).json
    assert answer == {"count": 2, "max_model_len": 4096, "tokens": [74, 75], "token_strs": ["h", "i"]}
    chat = (await send(any_pooling_engine, "/tokenize", messages=[{"role": "user", "content": "hi"}])).json
    assert (chat["count"], chat["tokens"][:2], chat["tokens"][-1]) == (21, [0, 87], 223)
    assert (await send(any_pooling_engine, "/detokenize", tokens=[74, 75])).json == {"prompt": "hi"}


TOO_LONG = "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens"
REFUSED: dict[str, tuple[str, dict[str, Any], tuple[int, str, str | None]]] = {
    "too long": (EMBEDDINGS, {"input": "x" * 5000}, (400, TOO_LONG, "input_tokens")),
    "empty": (EMBEDDINGS, {"input": []}, (400, "You must pass at least one prompt", None)),
    "unknown model": (EMBEDDINGS, {"model": "nope", "input": "hi"}, (404, "The model `nope` does not exist.", None)),
    "no input": (EMBEDDINGS, {}, (400, "", "body.input")),
    "no documents": ("/v1/rerank", {"query": "a", "documents": []}, (400, "At least one text_pair element must be given", None)),
    "documents missing": ("/v2/rerank", {"query": "a"}, (400, "1 validation error", "body.documents")),
    "pairs": (
        "/v1/score",
        {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
        (400, "Input lengths must be either 1:1, 1:N or N:N", None),
    ),
    "tokenize, a model": (
        "/tokenize",
        {"model": "nope", "prompt": "a"},
        (404, "The model `nope` does not exist.", "model"),
    ),
    "detokenize, no tokens": ("/detokenize", {}, (400, "1 validation error", "body.tokens")),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused(any_pooling_engine: AnyEngine, case: str) -> None:
    path, fields, (status, words, param) = REFUSED[case]
    response = await send(any_pooling_engine, path, **fields)
    error = response.json["error"]
    assert (response.status, error["code"], error["param"]) == (status, status, param)
    assert error["message"].startswith(words)


ODD: dict[str, tuple[str, dict[str, Any], int]] = {
    "input null": (EMBEDDINGS, {"input": None}, 400),
    "input of objects": (EMBEDDINGS, {"input": [{"a": 1}]}, 400),
    "input of texts and tokens": (EMBEDDINGS, {"input": ["a", 1]}, 400),
    "input with an empty text": (EMBEDDINGS, {"input": ["a", ""]}, 400),
    "input, a conversation": (EMBEDDINGS, {"input": [{"role": "user", "content": "hi"}]}, 200),
    "input, two conversations": (EMBEDDINGS, {"input": [[{"role": "user", "content": "hi"}]] * 2}, 200),
    "messages of numbers": (EMBEDDINGS, {"messages": [0]}, 400),
    "messages, none": (EMBEDDINGS, {"messages": []}, 400),
    "messages null beside an input": (EMBEDDINGS, {"messages": None, "input": "hi"}, 200),
    "an encoding that is none": (EMBEDDINGS, {"input": "hi", "encoding_format": "hex"}, 400),
    "dimensions, a text": (EMBEDDINGS, {"input": "hi", "dimensions": "many"}, 400),
    "documents of nulls": ("/v1/rerank", {"query": "a", "documents": [None]}, 400),
    "documents without content": ("/v1/rerank", {"query": "a", "documents": [{}]}, 400),
    "a document alone": ("/v1/rerank", {"query": "a", "documents": "b"}, 200),
    "top_n below 0": ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400),
    "sides that are no pair": ("/v1/score", {"text_1": "a", "documents": "b"}, 400),
    "queries and items": ("/v1/score", {"queries": "a", "items": ["b", "c"]}, 200),
    "no first text": ("/v1/score", {"text_1": [], "text_2": []}, 400),
    "tokenize, nothing": ("/tokenize", {"prompt": "", "messages": None}, 200),
    "tokenize, no messages": ("/tokenize", {"messages": []}, 400),
    "tokenize, messages of texts": ("/tokenize", {"messages": ["a"]}, 400),
    "detokenize, texts": ("/detokenize", {"tokens": ["a"]}, 400),
    "detokenize, a negative token": ("/detokenize", {"tokens": [-1]}, 400),
    "detokenize, no tokens": ("/detokenize", {"tokens": []}, 200),
    "detokenize, a token out of the vocabulary": ("/detokenize", {"tokens": [74, 100_000]}, 200),
}


@pytest.mark.parametrize("case", ODD)
async def test_odd_requests(any_pooling_engine: AnyEngine, case: str) -> None:
    path, fields, status = ODD[case]
    response = await send(any_pooling_engine, path, **fields)
    assert response.status == status, response.body
    if status != 200:
        assert response.json["error"]["code"] == status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/audio/transcriptions"])
async def test_routes_of_other_tasks_are_not_there(any_pooling_engine: AnyEngine, path: str) -> None:
    response = await send(any_pooling_engine, path, messages=[{"role": "user", "content": "hi"}], prompt="hi")
    assert (response.status, response.json) == (404, {"detail": "Not Found"})


async def test_an_engine_that_generates_has_none_of_these_but_tokenize(any_engine: AnyEngine) -> None:
    for path in (EMBEDDINGS, "/v1/rerank", "/v2/rerank", "/v1/score", "/v1/audio/transcriptions"):
        response = await send(any_engine, path, input="hi")
        assert (response.status, response.json) == (404, {"detail": "Not Found"})
    tokens = (await send(any_engine, "/tokenize", prompt="hi")).json["tokens"]
    assert len(tokens) == 2 if any_engine.is_simulated else tokens == [74, 75]
