"""A request whose body is still coming: exactly these chunks, with the same head as any other, and no end that is not one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.core.context import RequestContext
from serving.core.errors import ClientGone
from serving.core.routes import TRANSCRIPTIONS
from serving.engines.relay import Relay
from serving.settings import RelaySettings
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine


class Pieces:
    """A rest of these pieces; after them the client is gone."""

    def __init__(self, *pieces: tuple[bytes, bool]) -> None:
        self.begun = False
        self._pieces: Iterator[tuple[bytes, bool]] = iter(pieces)

    async def piece(self) -> tuple[bytes, bool]:
        self.begun = True
        for piece in self._pieces:
            return piece
        raise ClientGone("The client left while it sent its request.")


def context(rest: Pieces) -> RequestContext:
    ctx = RequestContext("request-1", TRANSCRIPTIONS, "sk-client", 0.0)
    ctx.body, ctx.rest, ctx.content_type = b"first", rest, b"multipart/form-data; boundary=b"
    return ctx


async def test_an_open_request_is_exactly_these_bytes(engine: ScriptedEngine) -> None:
    engine.default = Script(body=b"{}")
    rest = Pieces((b"", False), (b"second", False), (b"third", True))
    async with Relay(RelaySettings(engine_secret="s3cret")) as relay:
        answer = await relay.ask(engine.url, context(rest))
        assert (answer.first, answer.complete) == (b"{}", True)
        relay.close(answer.exchange)
    assert engine.log.requests[0].raw == (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: multipart/form-data; boundary=b\r\n"
        b"x-request-id: request-1\r\nx-serving-engine-secret: s3cret\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n0\r\n\r\n" % engine.port
    )


async def test_an_empty_last_piece_is_an_end_too(engine: ScriptedEngine) -> None:
    engine.default = Script(body=b"{}")
    async with Relay(RelaySettings()) as relay:
        relay.close((await relay.ask(engine.url, context(Pieces((b"", True))))).exchange)
    assert engine.log.requests[0].body == b"first"


async def test_a_client_that_fails_ends_the_engines_connection(engine: ScriptedEngine) -> None:
    async with Relay(RelaySettings()) as relay:
        with pytest.raises(ClientGone):
            await relay.ask(engine.url, context(Pieces((b"second", False))))
        assert relay.open_exchanges == 0
    assert not any(record.is_complete for record in engine.log.requests)
