"""What the OpenAPI document lists: what is published, as it is set, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemathesis import openapi

from serving.api import openapi as published
from serving.api.openapi import document
from serving.core.errors import ClientGone, Forbidden, RequestError
from serving.core.routes import OPENAI, ROUTES, Field, Route
from serving.settings import Settings
from tests.doubles import forms
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway

OWN = {"/v1/models", "/v1/models/{model}", "/livez", "/readyz", "/health", "/openapi.json"}
KEYS = {"auth": {"api_key": "sk-test"}}


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


async def told(**sections: Any) -> dict[str, Any]:
    """The document of a running gateway."""
    async with RunningGateway(settings(**sections)) as gateway:
        response = await ask(gateway.url, "/openapi.json")
    assert (response.status, response.header("content-type")) == (200, "application/json")
    found: dict[str, Any] = response.json
    return found


def operations(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in found["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def body_of(found: dict[str, Any], path: str) -> dict[str, Any]:
    (content,) = found["paths"][path]["post"]["requestBody"]["content"].values()
    schema: dict[str, Any] = content["schema"]
    return schema


@pytest.mark.parametrize("sections", [{}, KEYS, {"limits": {"parameters": {"max_tokens": 10, "prompt_logprobs": 3}}}])
async def test_it_is_openapi_3_1_with_valid_schemas(sections: dict[str, Any]) -> None:
    found = await told(**sections)
    assert found["openapi"].startswith("3.1.")
    openapi.from_dict(found).validate()
    for schema in (*found["components"]["schemas"].values(), *(body_of(found, path) for path in ROUTES)):
        Draft202012Validator.check_schema(schema)
    identifiers = [operation["operationId"] for _, _, operation in operations(found)]
    assert len(set(identifiers)) == len(identifiers)


async def test_it_lists_what_is_published_and_nothing_else() -> None:
    paths = (await told())["paths"]
    assert set(paths) == {*ROUTES, *OWN, "/metrics", "/fleet"}
    assert all(set(paths[path]) == {"post"} for path in ROUTES)
    assert all(set(paths[path]) == {"get", "head"} for path in (*OWN, "/metrics", "/fleet"))
    assert set((await told(server={"operator_port": 0}))["paths"]) == {*ROUTES, *OWN}


async def test_operators_are_told_none_and_it_can_be_switched_off() -> None:
    async with RunningGateway(settings(server={"operator_port": 0})) as gateway:
        assert (await ask(gateway.operator_url, "/openapi.json")).status == 404
    async with RunningGateway(settings(server={"openapi": False})) as gateway:
        assert (await ask(gateway.url, "/openapi.json")).status == 404


async def test_it_needs_no_key_and_names_no_model() -> None:
    endpoints = [{"name": "e1", "url": "http://127.0.0.1:9", "model": "a-secret-model"}]
    found = await told(endpoints=endpoints, **KEYS)
    assert "a-secret-model" not in json.dumps(found)


async def test_a_new_route_for_engines_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    route = Route("new", "/v1/new", OPENAI, required=(Field("things", (list, str), "things"),))
    monkeypatch.setitem(ROUTES, route.path, route)
    found = await told()
    openapi.from_dict(found).validate()
    schema = body_of(found, "/v1/new")
    assert (schema["required"], schema["properties"]["things"]["type"]) == (["model", "things"], ["array", "string"])


def test_a_route_of_the_gateways_own_must_be_described() -> None:
    with pytest.raises(KeyError, match="/v1/undescribed"):
        document(settings(), [("/v1/undescribed", {"GET"})])


def test_every_error_has_a_status_that_is_described() -> None:
    def kinds(error: type[RequestError]) -> Iterator[type[RequestError]]:
        yield error
        for kind in error.__subclasses__():
            yield from kinds(kind)

    not_here = {ClientGone.status, Forbidden.status}
    """Told to nobody, and told by the page for operators alone."""
    errors = {error.status for error in kinds(RequestError)} - not_here
    assert errors == set(published.STATUSES)
    found = document(settings(**KEYS), [])
    for path in ROUTES:
        assert {str(status) for status in (200, *errors)} == set(found["paths"][path]["post"]["responses"])


async def test_keys_are_asked_for_where_they_are() -> None:
    without = await told()
    assert not any("security" in operation or "401" in operation["responses"] for _, _, operation in operations(without))
    found = await told(**KEYS)
    assert set(found["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    for path, _, operation in operations(found):
        needs_key = path in ROUTES or path.startswith("/v1/models")
        assert needs_key == ("security" in operation) == ("401" in operation["responses"]), path
        for scheme in operation.get("security", ()):
            assert "x-api-key" not in scheme or path.startswith("/v1/messages")


async def test_limits_are_those_that_are_set() -> None:
    limits = {"body_bytes": 12345, "parameters": {"n": 3, "max_tokens": 77, "prompts": 5}}
    found = await told(limits=limits)
    chat = body_of(found, "/v1/chat/completions")["properties"]
    assert (chat["n"]["minimum"], chat["n"]["maximum"]) == (1, 3)
    assert chat["prompt_logprobs"] == {"type": "null"}
    validator = Draft202012Validator(body_of(found, "/v1/completions"))
    for prompt, is_right in ((["a"] * 5, True), (["a"] * 6, False), ([1] * 6, True), ("a" * 6, True)):
        assert validator.is_valid({"model": "m", "prompt": prompt}) == is_right
    message = body_of(found, "/v1/messages")["properties"]["max_tokens"]
    assert (message["type"], message["minimum"], message["maximum"]) == ("integer", 1, 77)
    assert "12345" in found["components"]["responses"]["Error413"]["description"]


TURN = {"role": "user", "content": "hi"}
PARTS = [{"type": "text", "text": "hi"}]
JUDGED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "no input": ("/v1/embeddings", {}, False),
    "input null": ("/v1/embeddings", {"input": None}, False),
    "messages null": ("/v1/embeddings", {"messages": None}, False),
    "input null beside messages": ("/v1/embeddings", {"input": None, "messages": [TURN]}, True),
    "messages null beside an input": ("/v1/embeddings", {"input": "hi", "messages": None}, True),
    "too many inputs": ("/v1/embeddings", {"input": ["a"] * 4}, False),
    "many tokens": ("/v1/embeddings", {"input": [1] * 4}, True),
    "a long conversation": ("/v1/embeddings", {"messages": [TURN] * 4}, True),
    "too many conversations": ("/v1/embeddings", {"messages": [[TURN]] * 4}, False),
    "objects that are no turns": ("/v1/embeddings", {"input": [{}] * 4}, False),
    "two documents": ("/v1/rerank", {"query": "a", "documents": ["a", {"content": PARTS * 1}]}, True),
    "too many documents": ("/v1/rerank", {"query": "a", "documents": ["a"] * 3}, False),
    "a document of too many parts": ("/v1/rerank", {"query": "a", "documents": [{"content": PARTS * 3}]}, False),
    "too many parts": ("/v2/rerank", {"query": "a", "documents": {"content": PARTS * 3}}, False),
    "one side": ("/v1/score", {"text_1": "a", "data_2": None}, False),
    "two sides": ("/v1/score", {"queries": "a", "items": ["b"]}, True),
    "a side of too many": ("/v1/score", {"text_1": "a", "text_2": ["b"] * 3}, False),
    "a number that is whole": ("/v1/completions", {"prompt": "a", "n": 2.0}, True),
    "a number that is none": ("/v1/completions", {"prompt": "a", "n": True}, False),
    "tokens": ("/detokenize", {"tokens": [1]}, True),
    "tokens, a text": ("/detokenize", {"tokens": "1"}, False),
}


@pytest.mark.parametrize("case", JUDGED)
async def test_it_allows_what_the_gateway_takes(case: str) -> None:
    """Without a model what is taken is answered 404, and what is not 400."""
    path, fields, is_right = JUDGED[case]
    limits = {"parameters": {"inputs": 3, "prompts": 3, "documents": 2}}
    async with RunningGateway(settings(limits=limits)) as gateway:
        schema = body_of((await ask(gateway.url, "/openapi.json")).json, path)
        response = await ask(gateway.url, path, {"model": "m"} | fields)
    assert response.status == (404 if is_right else 400), response.body
    assert Draft202012Validator(schema).is_valid({"model": "m"} | fields) == is_right


FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "the least": ({}, True),
    "any field": ({"language": "en", "a.b-c_[d]": ""}, True),
    "a name with a blank": ({"a b": "c"}, False),
    "no name": ({"": "c"}, False),
    "a long name": ({"a" * 65: "c"}, False),
    "a long text": ({"prompt": "a" * 11}, False),
    "too many fields": ({str(number): "" for number in range(7)}, False),
    "no model": ({"model": ""}, False),
    "a switch": ({"stream": "True"}, True),
    "a switch that is none": ({"stream": "maybe"}, False),
    "a limit": ({"max_completion_tokens": 5}, True),
    "a limit of 0": ({"max_completion_tokens": 0}, False),
    "a limit that is no number": ({"max_completion_tokens": "many"}, False),
    "a number of 19 digits": ({"max_completion_tokens": 10**18}, False),
    "a field that is refused": ({"prompt_logprobs": 0}, False),
    "a list": ({"include[]": ["a", "b"]}, True),
}


@pytest.mark.parametrize("case", FORMS)
async def test_it_allows_the_forms_that_the_gateway_takes(case: str) -> None:
    fields, is_right = FORMS[case]
    form = {"model": "m"} | fields
    parts = [
        forms.text(name, str(one)) for name, value in form.items() for one in (value if isinstance(value, list) else [value])
    ]
    limits = {"parameters": {"form_fields": 8, "form_field_bytes": 10}}
    async with RunningGateway(settings(limits=limits)) as gateway:
        schema = body_of((await ask(gateway.url, "/openapi.json")).json, "/v1/audio/transcriptions")
        body = forms.form([*parts, forms.file()])
        response = await ask(gateway.url, "/v1/audio/transcriptions", body, headers=forms.headers())
    assert response.status == (404 if is_right else 400), response.body
    assert Draft202012Validator(schema).is_valid(form | {"file": "sound"}) == is_right


async def test_every_answer_has_an_id() -> None:
    async with RunningGateway(settings(server={"operator_port": 0})) as gateway:
        for url in (gateway.url, gateway.operator_url):
            for path in ("/livez", "/readyz", "/nope", "/v1/models/nope"):
                assert (await ask(url, path, headers={"X-Request-Id": "mine"})).all("x-request-id") == ["mine"]
                made = (await ask(url, path, headers={"X-Request-Id": "not one"})).header("x-request-id") or ""
                assert len(made) == 32


async def test_a_fault_of_the_gateway_has_an_id_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its message sends the caller to that header."""
    async with RunningGateway(settings()) as gateway:
        monkeypatch.setattr(gateway.app.metrics, "exposition", lambda: 1 / 0)
        response = await ask(gateway.url, "/metrics", headers={"X-Request-Id": "mine"})
    assert (response.status, response.header("x-request-id")) == (500, "mine")
    assert "the x-request-id header" in response.json["error"]["message"]
    assert any(getattr(record, "request_id", None) == "mine" for record in caplog.records)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_it_says_that_the_options_of_a_stream_are_true_or_false(path: str) -> None:
    options = body_of(await told(), path)["properties"]["stream_options"]
    validator = Draft202012Validator(options)
    for name in ("include_usage", "continuous_usage_stats"):
        assert [validator.is_valid({name: value}) for value in (True, False, None)] == [True] * 3
        assert not any(validator.is_valid({name: value}) for value in ("false", 0, []))
