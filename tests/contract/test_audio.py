"""What the gateway relies on in an engine's answers to transcription and translation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.conftest import AnyEngine
from tests.doubles.forms import file, form, headers, text, wave
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.scripted_engine import ScriptedEngine

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
BOTH = pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
SOUND = file(wave(2))


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
async def audio_engine(request: pytest.FixtureRequest) -> AsyncIterator[AnyEngine]:
    if request.param == "real":
        real = request.getfixturevalue("real_audio_engine")
        yield AnyEngine(real.url, real.model, real.max_model_len)
        return
    async with ScriptedEngine(tasks=("transcription",)) as engine:
        yield AnyEngine(engine.url, engine.model, engine.max_model_len)


async def send(engine: AnyEngine, path: str = TRANSCRIPTIONS, *, sound: bytes | None = SOUND, **fields: str) -> RawResponse:
    fields = {"model": "tiny", "language": "en", "max_completion_tokens": "5"} | fields
    parts = [text(name, value) for name, value in fields.items()]
    return await ask(engine.url, path, form([*parts, *([sound] if sound else [])]), headers=headers())


async def test_a_transcription_tells_its_seconds(audio_engine: AnyEngine) -> None:
    answer = (await send(audio_engine)).json
    assert set(answer) == {"text", "usage"} and answer["text"]
    assert answer["usage"] == {"type": "duration", "seconds": 2}


async def test_a_translation_tells_nothing(audio_engine: AnyEngine) -> None:
    assert set((await send(audio_engine, TRANSLATIONS)).json) == {"text"}


@BOTH
async def test_a_stream_tells_its_usage_last_and_only_when_asked(audio_engine: AnyEngine, path: str) -> None:
    plain = await send(audio_engine, path, stream="true")
    assert plain.header("content-type") == "text/event-stream; charset=utf-8"
    assert plain.is_done and all(list(event) == ["id", "object", "created", "model", "choices"] for event in plain.data)
    assert plain.data[-1]["choices"][0]["finish_reason"] == "length"
    told = await send(audio_engine, path, stream="true", stream_include_usage="true")
    *chunks, last = told.data
    assert 1 <= len(chunks) <= 5, "what the model has made meanwhile comes together"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5 and last["usage"]["prompt_tokens"] > 10
    assert b'"choices":[]' in told.events[-2]


@pytest.mark.parametrize(
    ("fields", "sound", "status", "words"),
    [
        ({"model": "nope"}, SOUND, 404, "The model `nope` does not exist."),
        ({}, None, 400, "1 validation error"),
        ({"file": "x"}, None, 422, "Expected 'file' to be a file-like object"),
        ({}, file(b"no sound"), 400, "Invalid or unsupported audio file."),
        ({"response_format": "srt"}, SOUND, 400, "Currently only support response_format"),
        ({"stream_include_usage": "true"}, SOUND, 400, "Stream options can only be defined when `stream=True`."),
    ],
)
async def test_what_is_refused(
    audio_engine: AnyEngine, fields: dict[str, str], sound: bytes | None, status: int, words: str
) -> None:
    response = await send(audio_engine, sound=sound, **fields)
    error = response.json["error"]
    assert (response.status, error["code"]) == (status, status)
    assert error["message"].startswith(words)
