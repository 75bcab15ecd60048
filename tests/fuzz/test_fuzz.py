"""A hundred thousand made-up inputs in memory, some thousands on sockets, and every input that once broke something."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from serving.core.outcomes import AttemptResult
from tests.doubles.conservation import Expectation, conserved, is_client_request
from tests.doubles.raw_client import RawClient
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import settings_over
from tests.fuzz.inputs import pieces_of
from tests.fuzz.properties import check_answer, check_engine_request, read_answers, reference
from tests.fuzz.run import CORPUS, Found, Fuzzer, kept, search

pytestmark = pytest.mark.slow

INPUTS = 100_000
PARTS = 4
SOCKET_INPUTS = 2000
CUT_OFF = Expectation(unsure_results=(AttemptResult.STALE, AttemptResult.CANCELLED), answers_may_be_given_up=True)
"""Garbage behind pipelined requests ends them in whatever phase they are, seen by their engine or not."""
AT_ONCE = 50
SILENT_SECONDS = 0.3
"""After which nothing more is expected on a connection; more costs time, less only checks less."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_input_breaks_a_property(part: int) -> None:
    fuzzer = search(seed=part, inputs=INPUTS // PARTS)
    assert fuzzer.inputs == INPUTS // PARTS
    assert fuzzer.statuses[200] > fuzzer.inputs * 0.1, "enough of them are served for the rest to mean something"
    assert fuzzer.statuses[400] > fuzzer.inputs * 0.1
    assert min(fuzzer.ends[end] for end in ("in sync", "closed", "waiting")) > 100


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_a_property_does_not_any_more(path: Path) -> None:
    fuzzer = Fuzzer()
    try:
        fuzzer.play(kept(path))
        fuzzer.rest()
    finally:
        fuzzer.close()


def test_a_property_that_is_broken_is_found_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway that lets a privilege pass."""
    monkeypatch.setattr("tests.fuzz.run.CORPUS", tmp_path)
    monkeypatch.setattr("serving.engines.body.GATEWAY_ONLY", frozenset())
    with pytest.raises(Found, match="written to"):
        search(seed=1, inputs=5000)
    (found,) = tmp_path.glob("*.json")
    monkeypatch.undo()
    fuzzer = Fuzzer()
    fuzzer.play(kept(found))
    fuzzer.close()


async def test_the_same_holds_on_sockets(engine: ScriptedEngine) -> None:
    """What only a kernel does: pieces joined, ends in the middle, resets."""
    chance = random.Random(7)
    engines = {"e1": engine}
    async with conserved(settings_over(engines), engines, CUT_OFF) as gateway:
        for _ in range(SOCKET_INPUTS // AT_ONCE):
            inputs = [pieces_of(chance) for _ in range(AT_ONCE)]
            received = await asyncio.gather(*(_played(gateway.url, pieces) for pieces in inputs))
            for pieces, answers in zip(inputs, received, strict=True):
                methods = [request.method for request in reference(b"".join(pieces))]
                for answer in read_answers(answers, methods, ended=True, head_only=b"HEAD " in b"".join(pieces)):
                    check_answer(answer)
        assert not engine.log.malformed
        assert len(engine.log.requests) <= sum(is_client_request(*arrival) for arrival in gateway.arrived)
        for record in engine.log.requests:
            check_engine_request(record.request, host=f"127.0.0.1:{engine.port}")


async def _played(url: str, pieces: list[bytes]) -> bytes:
    """Send, say that no more comes, and read all that there is."""
    async with RawClient(url) as client:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                await client.send(piece)
            return await _rest(client)
        return b""


async def _rest(client: RawClient) -> bytes:
    """What comes until the connection ends or is silent for a while."""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(SILENT_SECONDS):
            await client.closed_by_peer()
    return client.unread
