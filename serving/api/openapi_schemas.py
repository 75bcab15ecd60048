"""Schemas of the OpenAPI document, as data: errors, headers, answers of engines, and the gateway's own routes.

Objects are open: members that are not here may come, and an engine's newer version may send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}


def _object(**members: Json) -> Json:
    """An object with these members and any others."""
    return {"type": "object", "required": list(members), "properties": members}


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def reference(name: str) -> Json:
    """A schema of this document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


ERROR_NAMES: Mapping[str, str] = {"openai": "Error", "responses": "Error", "anthropic": "AnthropicError"}
"""The schema of an error by the name of the dialect."""

_FINISHED: Json = {"index": _COUNT, "finish_reason": _TEXT_OR_NULL}
_COMPLETION: Json = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": reference("Usage")}
_READ: Json = _object(prompt_tokens=_COUNT, total_tokens=_COUNT)
"""Usage of what makes no tokens."""
_VECTOR: Json = {"description": "Numbers, or their bytes in base64.", "type": ["array", "string"], "items": _NUMBER}
_MESSAGE: Json = _object(role=_TEXT, content=_TEXT_OR_NULL)

SCHEMAS: Json = {
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "AnthropicError": _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT),
    "Usage": _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    "Model": _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, root=_TEXT, ready={"type": "boolean"}),
    "ModelList": _object(object={"const": "list"}, data=_list(reference("Model"))),
    "Readiness": _object(
        status={"enum": ["ready", "not ready", "draining"]},
        models={"type": "object", "additionalProperties": {"type": "boolean"}},
    ),
    "ChatCompletion": _object(
        object={"const": "chat.completion"}, choices=_list(_object(message=_MESSAGE, **_FINISHED)), **_COMPLETION
    ),
    "Completion": _object(object={"const": "text_completion"}, choices=_list(_object(text=_TEXT, **_FINISHED)), **_COMPLETION),
    "Response": _object(
        id=_TEXT,
        object={"const": "response"},
        created_at={"type": "number"},
        model=_TEXT,
        status=_TEXT,
        output=_list({"type": "object"}),
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Message": _object(
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_TEXT,
        content=_list({"type": "object"}),
        stop_reason=_TEXT_OR_NULL,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "TokenCount": _object(input_tokens=_COUNT),
    "Embeddings": _object(
        object={"const": "list"},
        data=_list(_object(object={"const": "embedding"}, index=_COUNT, embedding=_VECTOR)),
        model=_TEXT,
        usage=_READ,
    ),
    "Ranking": _object(results=_list(_object(index=_COUNT, document={"type": "object"}, relevance_score=_NUMBER)), usage=_READ),
    "Scores": _object(data=_list(_object(index=_COUNT, score=_NUMBER)), model=_TEXT, usage=_READ),
    "Transcript": _object(text=_TEXT),
    "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens=_list(_COUNT)),
    "Detokenized": _object(prompt=_TEXT),
}
ANSWERS: Mapping[str, Json] = {
    "chat_completions": reference("ChatCompletion"),
    "completions": reference("Completion"),
    "responses": reference("Response"),
    "messages": reference("Message"),
    "count_tokens": reference("TokenCount"),
    "embeddings": reference("Embeddings"),
    "rerank": reference("Ranking"),
    "rerank_v2": reference("Ranking"),
    "score": reference("Scores"),
    "transcriptions": reference("Transcript"),
    "translations": reference("Transcript"),
    "tokenize": reference("Tokens"),
    "detokenize": reference("Detokenized"),
}
"""What engines answer where it is no stream, by the route's name."""

_ID: Json = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
_SECONDS: Json = {"type": "integer", "minimum": 1, "maximum": 30}
HEADERS: Mapping[str, Json] = {
    "request-id": {"required": True, "schema": _ID},
    "possible-request-id": {
        "description": "Missing where the error was found before the request could be told from others.",
        "schema": _ID,
    },
    "x-serving-dropped-fields": {
        "description": "Members of the body that only an operator may set, and that were taken out.",
        "schema": _TEXT,
    },
    "retry-after": {"description": "Seconds.", "required": True, "schema": _SECONDS},
    "possible-retry-after": {"description": "Seconds; not where waiting does not help.", "schema": _SECONDS},
    "www-authenticate": {"required": True, "schema": {"const": "Bearer"}},
    "allow": {"required": True, "schema": _TEXT},
    "accept-encoding": {"description": "The ways in which a body may be compressed.", "schema": _TEXT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRoute:
    """A route that the gateway answers by itself."""

    name: str
    summary: str
    tag: str
    answer: Json
    """Schemas by media type."""
    unready: Json | None = None
    """What it says with status 503 besides an error."""
    statuses: tuple[int, ...] = ()
    """Beside those that every route may answer."""
    parameters: tuple[Json, ...] = ()
    wants_key: bool = False


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


_READINESS = OwnRoute(
    name="readyz",
    summary="Whether any model has a ready engine, or one that a request wakes.",
    tag="operation",
    answer=_json(reference("Readiness")),
    unready=reference("Readiness"),
)
OWN_ROUTES: Mapping[str, OwnRoute] = {
    "/v1/models": OwnRoute(
        name="models", summary="All models.", tag="models", answer=_json(reference("ModelList")), wants_key=True
    ),
    "/v1/models/{model}": OwnRoute(
        name="model",
        summary="One model; its name may hold slashes.",
        tag="models",
        answer=_json(reference("Model")),
        statuses=(404,),
        parameters=({"name": "model", "in": "path", "required": True, "schema": _TEXT},),
        wants_key=True,
    ),
    "/v1/providers/models": OwnRoute(
        name="provider_listing",
        summary="Models, prices and readiness for marketplaces, in OpenRouter's schema 2.4.",
        tag="models",
        answer=_json(_object(data=_list({"type": "object"}))),
        wants_key=True,
    ),
    "/livez": OwnRoute(
        name="livez", summary="The process lives.", tag="operation", answer=_json(_object(status={"const": "alive"}))
    ),
    "/readyz": _READINESS,
    "/health": OwnRoute(
        name="health",
        summary="The same as /readyz.",
        tag=_READINESS.tag,
        answer=_READINESS.answer,
        unready=_READINESS.unready,
    ),
    "/metrics": OwnRoute(
        name="metrics", summary="Metrics in Prometheus's text format.", tag="operation", answer={"text/plain": {"schema": _TEXT}}
    ),
    "/fleet": OwnRoute(
        name="fleet",
        summary="Pools and endpoints: state, load, requests under way. null is unknown.",
        tag="operation",
        answer=_json(_object(pools=_list({"type": "object"}))),
    ),
    "/openapi.json": OwnRoute(name="openapi", summary="This document.", tag="operation", answer=_json({"type": "object"})),
}
