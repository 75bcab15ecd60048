"""Usage that stands elsewhere than at an answer's end: in its first bytes, or in a header."""

from __future__ import annotations

import json

import pytest

from serving.core.context import Usage
from serving.core.routes import OPENAI, POOLING, RERANKING
from serving.engines.view import view_of, view_of_whole

RANKING = b'{"id":"score-1","model":"tiny","usage":{"prompt_tokens":6,"total_tokens":6},"results":['
FORGED = b'{"document":{"x":1,"usage":{"prompt_tokens":1}}}'
LONG = RANKING + b",".join([FORGED] * 20_000) + b"]}"


@pytest.mark.parametrize("piece_bytes", [1, 17, 4096, 100_000, len(LONG)])
def test_a_rankings_usage_is_the_first(piece_bytes: int) -> None:
    view = view_of(RERANKING, is_stream=False)
    for at in range(0, len(LONG) if piece_bytes > 1 else 500, piece_bytes):
        view.feed(LONG[at : at + piece_bytes])
    assert view.usage() == Usage(6, None, 0)
    assert view_of_whole(RERANKING, LONG).usage() == Usage(6, None, 0)
    assert view_of_whole(RERANKING, RANKING + b"]}").usage() == Usage(6, None, 0)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"results":[]}', b'{"usage":5}', b'{"usage":{"prompt_tokens":', b'{"usage":[1]}'])
def test_a_ranking_without_usage_has_none(body: bytes) -> None:
    assert view_of_whole(RERANKING, body).usage() == Usage()
    view = view_of(RERANKING, is_stream=False)
    view.feed(body)
    assert view.usage() == Usage()


@pytest.mark.parametrize("items", [1, 256])
def test_usage_beside_the_body_is_taken_and_the_body_is_not_looked_at(items: int) -> None:
    data = [{"index": index, "start": 0, "end": 1024, "shape": [256]} for index in range(items)]
    told = json.dumps({"id": "embd-1", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}).encode()
    body = b'\0"usage":{"prompt_tokens":9}\0'
    assert view_of_whole(POOLING, body, told=told).usage() == Usage(5, None, 0)
    view = view_of(POOLING, is_stream=False, told=told)
    view.feed(body)
    assert view.usage() == Usage(5, None, 0)
    assert view_of_whole(POOLING, body, told=b"no JSON").usage() == Usage()


def test_seconds_of_sound_are_no_tokens() -> None:
    body = b'{"text":"a","usage":{"type":"duration","seconds":3}}'
    assert view_of_whole(OPENAI, body).usage() == Usage(audio_seconds=3)
    view = view_of(OPENAI, is_stream=False)
    view.feed(body)
    assert view.usage() == Usage(audio_seconds=3)
