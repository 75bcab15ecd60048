"""Tokenize and detokenize through the gateway: behind the key, for every model, and free."""

from __future__ import annotations

from typing import Any

from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway

KEY = {"Authorization": "Bearer sk-test"}


async def send(gateway: RunningGateway, path: str, **fields: Any) -> RawResponse:
    return await ask(gateway.url, path, {"model": "tiny"} | fields, headers=KEY)


async def test_text_becomes_tokens_and_text_again(gateway: RunningGateway) -> None:
    await _there_and_back(gateway)


async def test_an_embedding_model_tokenizes_too(pooling_gateway: RunningGateway) -> None:
    await _there_and_back(pooling_gateway)


async def _there_and_back(gateway: RunningGateway) -> None:
    answer = (await send(gateway, "/tokenize", prompt="hi")).json
    tokens = answer.pop("tokens")
    assert len(tokens) == 2 and all(isinstance(token, int) for token in tokens)
    assert answer == {"count": 2, "max_model_len": 4096, "token_strs": None}
    assert (await send(gateway, "/detokenize", tokens=tokens)).json == {"prompt": "hi"}
    metrics = await gateway.metrics()
    for route in ("tokenize", "detokenize"):
        assert metrics.sum("serving_requests_total", route=route, outcome="ok") == 1
    assert metrics.sum("serving_tokens_total") == metrics.sum("serving_usage_unknown_total") == 0
    assert metrics.sum("serving_request_duration_seconds_count") == 0


async def test_a_chat_is_counted_as_it_would_be_asked(gateway: RunningGateway) -> None:
    messages = [{"role": "user", "content": "hi"}]
    counted = (await send(gateway, "/tokenize", messages=messages)).json["count"]
    usage = (await send(gateway, "/v1/chat/completions", messages=messages, max_tokens=1)).json["usage"]
    assert counted == usage["prompt_tokens"] == 21


async def test_a_model_that_is_not_here_is_a_404(gateway: RunningGateway) -> None:
    for path, fields in (("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [1]})):
        response = await send(gateway, path, model="nope", **fields)
        assert (response.status, response.json["error"]["code"]) == (404, "model_not_found")
    refused = await ask(gateway.url, "/tokenize", {"model": "tiny", "prompt": "hi"})
    assert refused.status == 401


async def test_what_the_engine_refuses_names_the_field(gateway: RunningGateway) -> None:
    response = await send(gateway, "/tokenize", prompt=5)
    assert (response.status, response.json["error"]["param"]) == (400, "prompt")
