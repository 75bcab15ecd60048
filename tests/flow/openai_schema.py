"""What OpenAI says of its API, as two judges of an answer: the types of its own client, and the description that it publishes.

The client's types are made from that description and always here. The description itself is OpenAI's file (MIT licence,
github.com/openai/openai-openapi, 3.4 MB) and is not kept in this repository: `python -m tests.flow.openai_schema` fetches the
version that is named below into the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jsonschema import Draft202012Validator, ValidationError
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.audio import Transcription, Translation
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter
from pydantic import ValidationError as TypeProblems

from serving.settings import cache_dir

COMMIT = "f85dbe223d40e1a31cba812ab2d755c7e98a92a3"
SHA256 = "bbfd19abcde0e7412da99378deb2a959ccdd3a812f97c9e35901921e8e973f9a"
URL = f"https://raw.githubusercontent.com/openai/openai-openapi/{COMMIT}/openapi.json"
FETCH_SECONDS = 20


class _Models(BaseModel):
    object: str
    data: list[Model]


class _Failure(BaseModel):
    error: ErrorObject


CLIENT_TYPES: dict[str, Any] = {
    "chat": ChatCompletion,
    "chat chunk": ChatCompletionChunk,
    "completion": Completion,
    "completion chunk": Completion,
    "response": Response,
    "response event": ResponseStreamEvent,
    "embeddings": CreateEmbeddingResponse,
    "transcription": Transcription,
    "translation": Translation,
    "model": Model,
    "models": _Models,
    "error": _Failure,
}
PUBLISHED_NAMES = {
    "chat": "CreateChatCompletionResponse",
    "chat chunk": "CreateChatCompletionStreamResponse",
    "completion": "CreateCompletionResponse",
    "completion chunk": "CreateCompletionResponse",
    "response": "Response",
    "response event": "ResponseStreamEvent",
    "embeddings": "CreateEmbeddingResponse",
    "transcription": "CreateTranscriptionResponseJson",
    "translation": "CreateTranslationResponseJson",
    "model": "Model",
    "models": "ListModelsResponse",
    "error": "ErrorResponse",
}


class Judge(Protocol):
    def problems(self, kind: str, value: Any) -> set[str]:
        """What is wrong with a value of that kind, as `place: what`, with * for each index."""


class ClientTypes:
    """The types of the openai client, without its leniency towards wrong types."""

    def __init__(self) -> None:
        self._adapters = {kind: TypeAdapter(described) for kind, described in CLIENT_TYPES.items()}

    def problems(self, kind: str, value: Any) -> set[str]:
        try:
            self._adapters[kind].validate_json(json.dumps(value), strict=True)
        except TypeProblems as found:
            return {f"{_place(problem['loc'])}: {_null_or(problem['input'], problem['msg'])}" for problem in found.errors()}
        return set()


class PublishedSchemas:
    """The schemas of the published description."""

    def __init__(self, document: dict[str, Any]) -> None:
        components = {"schemas": _with_null_types(document["components"]["schemas"])}
        self._validators = {
            kind: Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})
            for kind, name in PUBLISHED_NAMES.items()
        }

    def problems(self, kind: str, value: Any) -> set[str]:
        return {text for error in self._validators[kind].iter_errors(value) for text in _told(error)}


def _with_null_types(schema: Any) -> Any:
    """The description is of version 3.1 and still says `nullable`, which version 3.0 had for it."""
    if isinstance(schema, list):
        return [_with_null_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: _with_null_types(value) for name, value in schema.items()}
    return {"anyOf": [shown, {"type": "null"}]} if shown.pop("nullable", False) is True else shown


def _told(error: ValidationError) -> set[str]:
    """An error's places; of several forms that a value may have, those of the form that it was meant to have."""
    place = _place(error.absolute_path)
    if error.context:
        forms: dict[Any, list[ValidationError]] = {}
        for inner in error.context:
            forms.setdefault(inner.schema_path[0], []).append(inner)
        return {text for inner in min(forms.values(), key=_distance) for text in _told(inner)}
    if error.validator == "required":
        lacking = next(name for name in error.validator_value if name not in error.instance and repr(name) in error.message)
        return {f"{place + '.' if place else ''}{lacking}: is missing"}
    return {f"{place}: {_null_or(error.instance, error.message[:200])}"}


def _distance(errors: list[ValidationError]) -> tuple[bool, bool, int]:
    """How far a value is from a form: it names another one, is of another kind, or is wrong in so many places."""
    names_another = any(error.validator in ("const", "enum") and list(error.path)[-1:] == ["type"] for error in errors)
    is_another = any(error.validator == "type" and not error.path for error in errors)
    return names_another, is_another, len(errors)


def _place(path: Iterable[str | int]) -> str:
    return ".".join("*" if isinstance(step, int) else step for step in path)


def _null_or(value: Any, words: str) -> str:
    return "is null" if value is None else words


def _file() -> Path:
    return cache_dir() / "openai-openapi" / f"{SHA256[:16]}.json"


@cache
def client_types() -> ClientTypes:
    """The types of the client that is installed."""
    return ClientTypes()


@cache
def published() -> PublishedSchemas | None:
    """The description's schemas; None where it was not fetched."""
    try:
        text = _file().read_bytes()
    except OSError:
        return None
    return PublishedSchemas(json.loads(text)) if hashlib.sha256(text).hexdigest() == SHA256 else None


def fetch() -> None:
    """Put the description into the cache. Raises: OSError, ValueError."""
    with urllib.request.urlopen(URL, timeout=FETCH_SECONDS) as answer:
        text = answer.read()
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise ValueError("it is not the file that is expected")
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(text)
    partial.rename(file)


if __name__ == "__main__":
    if published() is None:
        try:
            fetch()
        except (OSError, ValueError) as problem:
            sys.exit(f"{URL} cannot be had ({problem}); the tests that need it are skipped")
