"""A body in pieces: within its size and its time, decoded, and with an end that is an end."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable
from typing import Any

import pytest

from serving.api.decoding import PIECE_BYTES, decoder_for
from serving.api.upload import BodyUpload
from serving.core.errors import BodyTooLarge, ClientGone, InvalidRequest, RequestTimeout
from serving.settings import LimitSettings


class Client:
    """Gives its messages one by one, then nothing."""

    def __init__(self, messages: Iterable[dict[str, Any]]) -> None:
        self._messages = list(messages)

    async def __call__(self) -> dict[str, Any]:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)


def body(*parts: bytes) -> list[dict[str, Any]]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": number < last} for number, part in enumerate(parts)]


def upload(messages: Iterable[dict[str, Any]], *, coding: bytes | None = None, **limits: Any) -> tuple[BodyUpload, list[bool]]:
    settings = LimitSettings(**limits)
    completed: list[bool] = []
    decoder = decoder_for(coding, settings.body_bytes)
    return BodyUpload(b"x", Client(messages), decoder, settings, lambda: completed.append(True)), completed


async def whole(source: BodyUpload) -> list[bytes]:
    pieces = []
    complete = False
    while not complete:
        data, complete = await source.piece()
        pieces.append(data)
    return pieces


async def test_pieces_come_as_they_are_and_the_end_is_told_once() -> None:
    source, completed = upload(body(b"ab", b"", b"c"))
    assert await source.piece() == (b"ab", False)
    assert not completed
    assert await whole(source) == [b"", b"c"]
    assert completed == [True]


async def test_a_compressed_body_comes_in_small_pieces() -> None:
    plain = b"s" * (5 * PIECE_BYTES + 3)
    packed = gzip.compress(plain)
    source, completed = upload(body(packed[:50], packed[50:]), coding=b"gzip")
    pieces = await whole(source)
    assert b"".join(pieces) == plain
    assert max(map(len, pieces)) <= PIECE_BYTES and completed == [True]


async def test_a_compressed_body_that_is_cut_off_is_refused() -> None:
    source, _ = upload(body(gzip.compress(b"s" * 100)[:-5]), coding=b"gzip")
    with pytest.raises(InvalidRequest):
        await whole(source)


@pytest.mark.parametrize("coding", [None, b"gzip"])
async def test_no_more_than_the_limit_is_taken(coding: bytes | None) -> None:
    plain = b"s" * 101
    source, completed = upload(body(gzip.compress(plain) if coding else plain), coding=coding, body_bytes=100)
    with pytest.raises(BodyTooLarge):
        await whole(source)
    assert bool(completed) == (coding is not None)
    source, _ = upload(body(b"s" * 60, b"s" * 40), body_bytes=100)
    assert len(b"".join(await whole(source))) == 100


async def test_a_client_that_leaves_is_gone() -> None:
    source, completed = upload([*body(b"a", b"")[:1], {"type": "http.disconnect"}])
    with pytest.raises(ClientGone):
        await whole(source)
    assert not completed


class Clock:
    """Stands still but for what a test or a client adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("serving.api.upload.monotonic", lambda: self.now)


class SlowClient(Client):
    """Takes some of the clock's time for each message, and lets others run meanwhile."""

    def __init__(self, messages: Iterable[dict[str, Any]], clock: Clock, seconds: float) -> None:
        super().__init__(messages)
        self._clock = clock
        self._seconds = seconds

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        self._clock.now += self._seconds
        return await super().__call__()


def slow_upload(clock: Clock, seconds: float) -> BodyUpload:
    limits = LimitSettings(body_timeout_seconds=10.0)
    return BodyUpload(b"x", SlowClient(body(b"a", b"b", b"c", b"d"), clock, seconds), None, limits, lambda: None)


async def test_the_time_of_a_client_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    source = slow_upload(Clock(monkeypatch), 4.0)
    for expected in (b"a", b"b", b"c"):
        assert await source.piece() == (expected, False)
    with pytest.raises(RequestTimeout, match="10 s"):
        await source.piece()


async def test_the_time_that_an_engine_takes_is_not_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    source = slow_upload(clock, 1.0)
    pieces = []
    for _ in range(4):
        pieces.append((await source.piece())[0])
        clock.now += 1000.0
    assert pieces == [b"a", b"b", b"c", b"d"]
