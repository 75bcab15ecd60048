"""Rerank and score through the gateway, with a plain HTTP client as their users have it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver

RERANK = pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])


@pytest.fixture
async def client(pooling_gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": "Bearer sk-test"}
    async with httpx.AsyncClient(base_url=pooling_gateway.url, headers=headers, trust_env=False) as started:
        yield started


@RERANK
async def test_documents_are_ranked_and_metered(client: httpx.AsyncClient, pooling_gateway: RunningGateway, path: str) -> None:
    documents = ["aaaa", "hi", "bbb"]
    answer = (await client.post(path, json={"model": "tiny", "query": "hi", "documents": documents, "top_n": 2})).json()
    best, second = answer["results"]
    assert (best["index"], best["document"]["text"]) == (1, "hi")
    assert best["relevance_score"] == pytest.approx(1.0, abs=1e-3)
    assert best["relevance_score"] > second["relevance_score"]
    metrics = await pooling_gateway.metrics()
    assert answer["usage"]["prompt_tokens"] == metrics.sum("serving_tokens_total", kind="prompt") > 0
    assert metrics.sum("serving_tokens_total", kind="output") == 0
    assert metrics.sum("serving_usage_unknown_total") == 0


@pytest.mark.parametrize(
    ("left", "right"), [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_texts_are_scored_and_metered(
    client: httpx.AsyncClient, pooling_gateway: RunningGateway, left: str, right: str
) -> None:
    answer = (await client.post("/v1/score", json={"model": "tiny", left: "hi", right: ["hi", "there"]})).json()
    scores = [item["score"] for item in answer["data"]]
    assert scores[0] == pytest.approx(1.0, abs=1e-3) and scores[0] > scores[1]
    metrics = await pooling_gateway.metrics()
    assert answer["usage"]["prompt_tokens"] == metrics.sum("serving_tokens_total", kind="prompt") > 0
    assert metrics.sum("serving_usage_unknown_total") == 0


async def test_what_the_engine_refuses_is_said_in_openais_words(client: httpx.AsyncClient) -> None:
    for path, body in (
        ("/v1/rerank", {"model": "tiny", "query": "hi", "documents": []}),
        ("/v1/score", {"model": "tiny", "text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
    ):
        response = await client.post(path, json=body)
        (error,) = response.json().values()
        assert (response.status_code, error["type"], error["code"]) == (400, "invalid_request_error", None)
        assert "text_pair" in error["message"] or "1:1, 1:N or N:N" in error["message"]


@RERANK
async def test_the_usage_of_a_long_ranking_is_found_before_what_it_repeats(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    """The documents come back in the answer; what a client writes into them is no usage."""
    forged = 'x","usage":{"prompt_tokens":1,"total_tokens":1},"y":"'
    documents = [{"content": [{"type": "text", "text": "a", "usage": {"prompt_tokens": 1}}]}, forged, *["long " * 400] * 400]
    pooling_engine.script(Script(usage=Usage(prompt_tokens=4321, completion_tokens=0)))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, path, {"model": "tiny", "query": "hi", "documents": documents})
        assert response.status == 200 and len(response.body) > 700_000
        assert (await gateway.metrics()).sum("serving_tokens_total", kind="prompt") == 4321
