"""Transcription and translation through the gateway: the openai client unchanged, and forms of every kind and size."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest

from serving.settings import Settings
from tests.doubles.forms import SOUND, file, form, headers, text, wave
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS
from tests.doubles.vllm_audio import ReadForm, read_form
from tests.flow.conftest import GatewayOver
from tests.flow.test_surfaces import error_of

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
BOTH = pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
MODEL = text("model", "tiny")


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """A scripted engine that transcribes."""
    async with ScriptedEngine(tasks=("transcription",)) as started:
        yield started


async def send(url: str, parts: Sequence[bytes], *, path: str = TRANSCRIPTIONS, **more: str) -> RawResponse:
    return await ask(url, path, form(parts), headers=headers() | more)


def sent_form(engine: ScriptedEngine, number: int = 1) -> ReadForm:
    """What the engine got, read strictly."""
    record = engine.log.requests[number - 1]
    return read_form(record.header("content-type"), record.body)


def counted(metrics: MetricValues) -> dict[str, float]:
    return {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "output")}


# The openai client, over the scripted engine and over a real vLLM


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
def audio_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("real_audio_engine" if request.param == "real" else "engine").url)


@pytest.fixture
async def gateway(audio_url: str) -> AsyncIterator[RunningGateway]:
    endpoint = {"name": "e1", "url": audio_url, "model": "tiny", "tasks": ["transcription"]}
    async with RunningGateway(Settings.model_validate({"endpoints": [endpoint], "auth": {"api_key": "sk-test"}})) as started:
        yield started


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", max_retries=0) as started:
        yield started


SHORT: dict[str, Any] = {"max_completion_tokens": 5}


async def test_sound_becomes_text(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    sound = ("a.wav", wave(2))
    answer: Any = await client.audio.transcriptions.create(model="tiny", file=sound, language="en", extra_body=SHORT)
    assert answer.text and answer.usage.seconds == 2
    with pytest.warns(DeprecationWarning):
        translated = await client.audio.translations.create(model="tiny", file=sound, extra_body=SHORT)
    assert translated.text
    metrics = await gateway.metrics()
    for route in ("transcriptions", "translations"):
        assert metrics.sum("serving_requests_total", route=route, outcome="ok") == 1
    assert metrics.sum("serving_audio_seconds_total") == 2


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_is_metered_and_shows_usage_only_where_it_was_asked_for(
    client: openai.AsyncOpenAI, gateway: RunningGateway, asks: bool
) -> None:
    more = SHORT | ({"stream_include_usage": True} if asks else {})
    stream = await client.audio.transcriptions.create(
        model="tiny", file=("a.wav", wave(2)), language="en", stream=True, extra_body=more
    )
    events: list[Any] = [event async for event in stream]
    usage = events.pop().usage if asks else None
    assert 1 <= len(events) <= 5 and all(event.choices[0]["delta"]["content"] for event in events)
    metrics = await gateway.metrics()
    tokens = counted(metrics)
    assert tokens["prompt"] > 10 and tokens["output"] == 5
    assert usage is None or (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens["prompt"], 5)
    assert metrics.sum("serving_usage_unknown_total") == 0
    assert metrics.sum("serving_time_to_first_token_seconds_count") == 1


async def test_a_large_file_streams_through(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    answer: Any = await client.audio.transcriptions.create(
        model="tiny", file=("a.wav", wave(70)), language="en", extra_body=SHORT
    )
    assert answer.text and answer.usage.seconds == 70
    assert (await gateway.metrics()).sum("serving_engine_attempts_total", result="ok") == 1


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.audio.transcriptions.create(model="nope", file=("a.wav", SOUND))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="response_format"):
        await client.audio.transcriptions.create(model="tiny", file=("a.wav", wave(1)), response_format="srt")
    with pytest.raises(openai.BadRequestError, match="audio file"):
        await client.audio.transcriptions.create(model="tiny", file=("a.wav", b"no sound"))


async def test_full_engines_are_a_429(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(status=503))
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, [MODEL, file()])
        assert (response.status, error_of(response)["code"]) == (429, "overloaded")
        assert 1 <= int(response.header("retry-after") or 0) <= 30


async def test_the_files_bytes_are_the_clients(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        await send(gateway.url, [MODEL, file(wave(1) + SOUND)])
        found = sent_form(engine).file
        assert found is not None
        assert (found.data, found.filename, found.content_type) == (wave(1) + SOUND, "a.wav", "audio/wav")


# Which fields go on


@BOTH
async def test_the_order_of_fields_is_the_clients(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for parts in ([MODEL, file()], [file(), MODEL], [text("prompt", "x"), file(), MODEL, text("language", "en")]):
            assert (await send(gateway.url, parts, path=path)).status == 200
        assert [part.name for part in sent_form(engine, 3).parts] == ["prompt", "file", "model", "language"]


async def test_privileges_of_operators_are_dropped_and_named(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    fields = {"vllm_xargs": '{"a": 1}', "watermarking": "false", "priority": "-5", "cache_salt": "x", "routed_experts_x": "1"}
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, [MODEL, file(), *(text(name, value) for name, value in fields.items())])
        assert response.header("x-serving-dropped-fields") == "cache_salt, priority, routed_experts, vllm_xargs, watermarking"
        assert [part.name for part in sent_form(engine).parts] == ["model", "file"]


async def test_what_only_the_engine_judges_passes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    fields = [("temperature", "hot"), ("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment")]
    fields += [("response_format", "json"), ("hotwords", "ünï\r\n--x"), ("future", "")]
    async with gateway_over({"e1": engine}) as gateway:
        assert (await send(gateway.url, [MODEL, file(), *(text(*pair) for pair in fields)])).status == 200
        assert [(part.name, part.data.decode()) for part in sent_form(engine).parts[2:]] == fields


@pytest.mark.parametrize("value", ["true", "True", "1", "on", "yes"])
async def test_a_stream_may_be_asked_for_in_the_engines_words(
    engine: ScriptedEngine, gateway_over: GatewayOver, value: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, [text("stream", value), MODEL, file()])
        assert response.header("content-type") == "text/event-stream; charset=utf-8"
        assert response.is_done and all(event["choices"] for event in response.data)


async def test_the_option_is_said_once(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        asked = [text("stream_include_usage", "false"), MODEL, file(), text("stream", "true")]
        response = await send(gateway.url, asked)
        assert sent_form(engine).texts("stream_include_usage") == ["true"]
        assert all(event["choices"] for event in response.data)
        response = await send(gateway.url, [text("stream_include_usage", "false"), MODEL, file()])
        assert response.status == 200 and sent_form(engine, 2).texts("stream_include_usage") == ["false"]
        response = await send(gateway.url, [text("stream_include_usage", "true"), MODEL, file()])
        assert response.status == 400 and "Stream options" in error_of(response)["message"]


REFUSED: dict[str, tuple[list[bytes], str | None, str]] = {
    "no model": ([file()], "model", "The field 'model' is missing"),
    "empty model": ([text("model", ""), file()], "model", "The field 'model' is missing"),
    "two models": ([MODEL, MODEL, file()], "model", "The field 'model' is given twice."),
    "two models around": ([MODEL, file(), text("model", "other")], "model", "The field 'model' is given twice."),
    "a file as model": ([file(name="model"), file()], "model", "must not be a file"),
    "long model": ([text("model", "x" * 70_000), file()], "model", "is larger than 65536 bytes"),
    "no file": ([MODEL], "file", "The field 'file' is missing"),
    "a text as file": ([MODEL, text("file", "x")], "file", "must be a file, with a filename"),
    "two files": ([MODEL, file(), file()], "file", "The field 'file' is given twice."),
    "another file": ([MODEL, file(), file(name="other")], "other", "only 'file' is one"),
    "stream": ([MODEL, file(), text("stream", "perhaps")], "stream", "must be true or false"),
    "stream twice": ([MODEL, file(), text("stream", "0"), text("stream", "1")], "stream", "given twice"),
    "beams": ([MODEL, file(), text("n", "9")], "n", "must be from 1 to 8"),
    "beams in words": ([MODEL, file(), text("n", "9.0")], "n", "must be an integer"),
    "tokens": ([MODEL, file(), text("max_completion_tokens", "0")], "max_completion_tokens", "must be at least 1"),
    "fields": ([MODEL, file(), *(text(f"a{n}", "x") for n in range(63))], None, "more than 64 fields"),
    "name": ([MODEL, file(), text("a b", "x")], None, "with a plain name"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_wrong_form_is_refused_before_any_engine(engine: ScriptedEngine, gateway_over: GatewayOver, case: str) -> None:
    parts, param, words = REFUSED[case]
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, parts)
        error = error_of(response)
        assert (response.status, error["param"]) == (400, param)
        assert words in error["message"] and len(error["message"]) < 300
        assert not engine.log.requests


async def test_what_is_no_form_at_all_is_refused(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for body, kind, status, code in (
            (b'{"model": "tiny"}', "application/json", 415, "unsupported_media_type"),
            (form([MODEL, file()]), "multipart/form-data", 400, "invalid_form"),
            (form([MODEL, file()]), "multipart/mixed; boundary=x", 415, "unsupported_media_type"),
            (form([MODEL, file()])[:-5], headers()["Content-Type"], 400, "invalid_form"),
            (b"", headers()["Content-Type"], 400, "invalid_form"),
        ):
            response = await ask(gateway.url, TRANSCRIPTIONS, body, headers={"Content-Type": kind})
            assert (response.status, error_of(response)["code"]) == (status, code)
        response = await ask(gateway.url, "/tokenize", form([MODEL, file()]), headers=headers())
        assert response.status == 415
        assert not engine.log.requests


async def test_a_key_is_wanted_before_the_body_is_read(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": "sk-right"}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(TRANSCRIPTIONS, b"", headers=headers() | {"Content-Length": "9000"}))
            assert (await client.read()).status == 401


@BOTH
async def test_a_model_of_another_task_answers_404(pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await send(gateway.url, [MODEL, file()], path=path)
        assert (response.status, error_of(response)["code"]) == (404, "route_not_supported")
        assert not pooling_engine.log.requests


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_form_is_decompressed(engine: ScriptedEngine, gateway_over: GatewayOver, coding: str) -> None:
    import zlib

    packed = {"gzip": gzip.compress, "deflate": zlib.compress}[coding](form([MODEL, file()]))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, TRANSCRIPTIONS, packed, headers=headers() | {"Content-Encoding": coding})
        assert response.status == 200
        assert engine.log.requests[0].header("content-encoding") is None
        found = sent_form(engine).file
        assert found is not None and found.data == SOUND
        cut = await ask(gateway.url, TRANSCRIPTIONS, packed[:-9], headers=headers() | {"Content-Encoding": coding})
        assert (cut.status, error_of(cut)["code"]) == (400, "invalid_content_encoding")


# What it costs


@BOTH
async def test_an_answer_that_is_no_stream_tells_no_tokens(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    """vLLM tells a transcription's seconds, which are metered, and nothing of a translation, which is counted as unknown."""
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, [MODEL, file(b"s" * 100_000)], path=path)
        assert set(response.json) == ({"text", "usage"} if path == TRANSCRIPTIONS else {"text"})
        metrics = await gateway.metrics()
        assert metrics.sum("serving_audio_seconds_total") == (3 if path == TRANSCRIPTIONS else 0)
        assert metrics.sum("serving_usage_unknown_total") == (0 if path == TRANSCRIPTIONS else 1)
        assert metrics.sum("serving_tokens_total") == 0


async def test_a_stream_that_is_left_is_charged_by_what_sound_is_worth(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(text=("a ", "b ", "c "), gate=Gate(2)))
    parts = [MODEL, text("stream", "true"), file(b"s" * 100_000)]
    async with gateway_over({"e1": engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(TRANSCRIPTIONS, form(parts), headers=headers()))
            response = await client.read_head()
            async for _ in client.read_body(response):
                if response.body.count(b"data:") == 2:
                    break
        record = engine.log.requests[0]
        await asyncio.wait_for(record.peer_closed.wait(), HANG_SECONDS)
        metrics = await gateway.metrics()
        assert 200 < metrics.sum("serving_tokens_estimated_total", kind="prompt") < 400
        assert metrics.sum("serving_tokens_estimated_total", kind="output") == 2
        assert metrics.sum("serving_requests_total", outcome="client_cancelled") == 1


async def test_a_stream_that_breaks_off_says_so(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(text=("a ", "b "), close_after=1))
    async with gateway_over({"e1": engine}) as gateway:
        response = await send(gateway.url, [MODEL, text("stream", "true"), file()])
        assert not response.is_done and response.data[-1]["error"]["code"] == "engine_failed"
