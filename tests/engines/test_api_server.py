"""GETs from an API server: lines that come in pieces, answers without an end, connections that ended, and no token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.engines import api_server
from serving.engines.api_server import ApiServer
from serving.fleet.mirror import ApiFailed
from serving.fleet_settings import KubernetesSettings
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as started:
        yield started


@pytest.fixture
async def server(peer: ScriptedEngine) -> AsyncIterator[ApiServer]:
    started = ApiServer(KubernetesSettings(api_url=peer.url, timeout_seconds=1.0))
    yield started
    started.close()


def body(*pieces: bytes, **more: object) -> Script:
    """An answer in pieces that come one by one."""
    return Script(raw=[(0.01, piece) for piece in pieces], raw_is="body", **more)  # type: ignore[arg-type]


async def lines(server: ApiServer) -> list[bytes]:
    return [line async for line in server.lines("/watch", timeout_seconds=1.0)]


async def test_a_line_need_not_come_whole(peer: ScriptedEngine, server: ApiServer) -> None:
    peer.script(body(b'{"a":', b" 1}\n{", b'"b": 2}\n\n', b'{"c": 3}\n'))
    assert await lines(server) == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']


async def test_an_event_that_breaks_off_is_none(peer: ScriptedEngine, server: ApiServer) -> None:
    peer.script(body(b'{"a": 1}\n{"b"'))
    with pytest.raises(ApiFailed, match="inside an event"):
        await lines(server)
    peer.script(body(b'{"a": 1}\n', b"more\n", rst_after=1))
    with pytest.raises(ApiFailed, match="the API server's connection ended"):
        await lines(server)


async def test_an_event_has_a_size(peer: ScriptedEngine, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "LINE_BYTES", 100)
    peer.script(body(*[b"x" * 60] * 10))
    with pytest.raises(ApiFailed, match="larger than 100 bytes"):
        await lines(server)


async def test_an_answer_has_a_size(peer: ScriptedEngine, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "ANSWER_BYTES", 100)
    peer.script(body(*[b"x" * 60] * 10))
    with pytest.raises(ApiFailed, match="larger than 100 bytes"):
        await server.get("/list", timeout_seconds=5.0)


async def test_a_kept_connection_that_ended_is_replaced(peer: ScriptedEngine, server: ApiServer) -> None:
    for _ in range(2):
        peer.script(body(b"{}"))
        assert await server.get("/list", timeout_seconds=5.0) == b"{}"
        for connection in list(peer.connections):
            await connection.stop("rst")
    assert peer.accepted_connections == 2


async def test_a_refusal_is_told_in_the_servers_words(peer: ScriptedEngine, server: ApiServer) -> None:
    peer.script(
        Script(status=403, body=b'{"message": "pods is forbidden: User \\"x\\" cannot list"}'), Script(status=502, body=b"<html>")
    )
    with pytest.raises(ApiFailed, match=r'answered 403: pods is forbidden: User "x" cannot list') as refused:
        await server.get("/list", timeout_seconds=5.0)
    assert refused.value.status == 403
    with pytest.raises(ApiFailed, match=r"answered 502$"):
        await server.get("/list", timeout_seconds=5.0)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"\xff", b"line\r\nx: y"])
async def test_what_is_no_token_is_not_sent(peer: ScriptedEngine, tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    server = ApiServer(KubernetesSettings(api_url=peer.url, token_file=token))
    with pytest.raises(ApiFailed, match="token"):
        await server.get("/list", timeout_seconds=5.0)
    assert not peer.log.requests
    server.close()


async def test_silence_ends(peer: ScriptedEngine, server: ApiServer) -> None:
    peer.blackhole = True
    with pytest.raises(ApiFailed, match="did not answer in time"):
        await server.get("/list", timeout_seconds=0.1)
    with pytest.raises(ApiFailed, match="did not answer in time"):
        [line async for line in server.lines("/watch", timeout_seconds=0.1)]
