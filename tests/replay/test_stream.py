from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.core.clock import monotonic
from serving.core.errors import ConfigurationError
from serving.engines.wire import Connection
from serving.replay.stream import Client, Sample, Stream


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str = "a", **delta: Any) -> bytes:
    return event(choices=[{"delta": {"content": text, **delta}, "finish_reason": None}])


USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = (
    token("", role="assistant"),
    token("a"),
    event(choices=[{"delta": {"content": "b"}, "finish_reason": "length"}], system_fingerprint="vllm-1"),
    event(choices=[], usage=USAGE),
    b"data: [DONE]\n\n",
)


async def read(*pieces: bytes, status: int = 200, headers: Any = ()) -> Sample:
    sample = Sample(0, monotonic(), 9, 4, 2)
    ended: list[Sample] = []
    connection = SimpleNamespace(loop=asyncio.get_running_loop(), abandon=lambda: None)
    stream = Stream(cast(Connection, connection), sample, lambda sample, error: ended.append(sample))
    stream.start(status, list(headers))
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    assert ended == [sample]
    return sample


def same(sample: Sample) -> tuple[object, ...]:
    return (
        sample.error,
        len(sample.token_moments),
        sample.prompt_tokens,
        sample.cached_tokens,
        sample.output_tokens,
        sample.finish_reason,
        sample.fingerprint,
    )


GOOD = (None, 2, 9, 4, 2, "length", "vllm-1")


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_a_stream_is_the_same_however_it_is_cut(size: int, line_end: bytes) -> None:
    data = b": keep-alive\n\n".join((b"", *WHOLE)).replace(b"\n", line_end)
    assert same(await read(*(data[start : start + size] for start in range(0, len(data), size)))) == GOOD


async def test_events_with_other_fields_and_texts_of_other_names() -> None:
    thought = event(choices=[{"delta": {"reasoning": "hm"}, "finish_reason": None}])
    sample = await read(b"event: message\n" + thought, event(choices=[{"text": "x"}]), b"data:[DONE]\n\n")
    assert (sample.error, len(sample.token_moments)) == (None, 2)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (WHOLE[:-1], "cut"),
        ((WHOLE[0], event(error={"message": "died"}), WHOLE[-1]), "error in stream"),
        ((b"data: {nonsense\n\n", WHOLE[-1]), "not JSON"),
    ],
)
async def test_a_stream_that_did_not_end_well_is_an_error(pieces: tuple[bytes, ...], error: str) -> None:
    sample = await read(*pieces)
    assert (sample.error, sample.is_ok) == (error, False)


@pytest.mark.parametrize(
    "payload",
    [
        '{"choices": "ab"}',
        '{"choices": [1]}',
        '{"choices": {"index": 0}}',
        '{"choices": [{"delta": ["a"]}]}',
        '{"choices": [], "usage": [1]}',
        '{"choices": [], "usage": {"prompt_tokens": "7", "completion_tokens": 5}}',
        '{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5.5}}',
        '{"choices": [], "usage": {"prompt_tokens": -7, "completion_tokens": 5}}',
        '{"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": true}}}',
        '{"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": "none"}}',
        "[1]",
        "null",
    ],
)
async def test_an_event_of_another_shape_is_an_error_with_its_words(payload: str) -> None:
    sample = await read(WHOLE[0], WHOLE[1], f"data: {payload}\n\n".encode(), WHOLE[-1])
    assert (sample.error, sample.detail, sample.is_ok) == ("not a chunk", payload, False)


async def test_a_fingerprint_that_is_no_text_is_kept_as_one() -> None:
    assert (await read(event(choices=[], system_fingerprint=7), WHOLE[-1])).fingerprint == "7"


async def test_a_refusal_keeps_its_words_and_a_simulated_engine_its_mark() -> None:
    sample = await read(b'{"error": "too ', b'many"}', status=429, headers=[(b"x-serving-simulated", b"p; serving 1")])
    assert (sample.error, sample.detail, sample.simulated) == ("status 429", '{"error": "too many"}', "p; serving 1")


async def test_addresses() -> None:
    client = Client("https://host.example/base/v1/", "key", timeout_seconds=1.0)
    assert client.url == "https://host.example:443/base"
    assert (
        b"POST /base/v1/chat/completions HTTP/1.1\r\nhost: host.example:443\r\nauthorization: Bearer key\r\n" in client._load_head
    )
    for wrong in ("host:80", "ftp://host", "http://host?x=1"):
        with pytest.raises(ConfigurationError, match="--url"):
            Client(wrong, None, timeout_seconds=1.0)
