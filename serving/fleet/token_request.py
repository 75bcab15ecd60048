"""The smallest request that makes an engine work for its model, for each of its tasks, and what its answer says."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from serving.core.routes import COMPLETIONS, EMBEDDINGS, SCORE, TRANSCRIPTIONS, Task

TOKEN_HEADER = (b"x-serving-probe", b"token")
"""Marks these requests for whoever reads an engine's log or stands in front of it."""
_BOUNDARY = b"serving-probe"
_JSON = b"application/json"


class TokenAnswer(StrEnum):
    """What became of a token that was asked for."""

    CAME = "came"
    NOT_ASKABLE = "not_askable"
    """A 4xx or 501: the engine answers, and does not do this for its model."""
    BUSY = "busy"
    """429 or 503: full, or not yet done with loading."""
    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TokenRequest:
    path: str
    content_type: bytes
    body: bytes


def token_request(model: str, tasks: tuple[Task, ...]) -> TokenRequest:
    """What to ask an engine that does these tasks with the model."""
    task = next(task for task in _REQUESTS if task in tasks)
    return _REQUESTS[task](model)


def token_answer(status: int, body: bytes) -> tuple[TokenAnswer, str]:
    """What an answer to it means, and why in words."""
    if status in (429, 503):
        return TokenAnswer.BUSY, f"answered {status} when it was asked for a token"
    if 400 <= status < 500 or status == 501:
        return TokenAnswer.NOT_ASKABLE, f"ready; answers {status} when it is asked for a token"
    if status != 200:
        return TokenAnswer.FAILED, f"answered {status} when it was asked for a token"
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or not _has_token(document):
        return TokenAnswer.FAILED, "answered without the token that it was asked for"
    return TokenAnswer.CAME, "ready"


def _has_token(document: dict[str, object]) -> bool:
    choices = document.get("choices")
    if isinstance(choices, list):
        return bool(choices) and isinstance(choices[0], dict) and choices[0].get("finish_reason") != "abort"
    data = document.get("data")
    return (isinstance(data, list) and bool(data)) or "text" in document


def _completion(model: str) -> TokenRequest:
    return _json(COMPLETIONS.path, {"model": model, "prompt": "Hi", "max_tokens": 1, "temperature": 0})


def _embedding(model: str) -> TokenRequest:
    return _json(EMBEDDINGS.path, {"model": model, "input": "Hi"})


def _score(model: str) -> TokenRequest:
    return _json(SCORE.path, {"model": model, "text_1": "Hi", "text_2": "Hi"})


def _transcription(model: str) -> TokenRequest:
    """A second of silence."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(32_000))
    field = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    parts = (
        field % (_BOUNDARY, b"model", b"", model.encode()),
        field % (_BOUNDARY, b"max_completion_tokens", b"", b"1"),
        field % (_BOUNDARY, b"file", b'; filename="silence.wav"\r\nContent-Type: audio/wav', sound.getvalue()),
        b"--%b--\r\n" % _BOUNDARY,
    )
    return TokenRequest(TRANSCRIPTIONS.path, b"multipart/form-data; boundary=" + _BOUNDARY, b"".join(parts))


def _json(path: str, document: dict[str, object]) -> TokenRequest:
    return TokenRequest(path, _JSON, orjson.dumps(document))


_REQUESTS: dict[Task, Callable[[str], TokenRequest]] = {
    "generate": _completion,
    "embed": _embedding,
    "score": _score,
    "transcription": _transcription,
}
"""The cheapest first."""
