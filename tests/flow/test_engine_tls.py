"""TLS to engines: verified with real certificates, never left out, renewed while the gateway runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.app import create_app
from serving.core.errors import ConfigurationError
from serving.fleet.store import EndpointState
from serving.settings import Settings
from tests.doubles.certificates import server_context, write_pair
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, chat, settings_over

CHAT = "/v1/chat/completions"
ADDRESS = "IP:127.0.0.1"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with an engine's certificate, which is its own authority, and its key."""
    write_pair(tmp_path, "engine", alternative=ADDRESS)
    return tmp_path


@pytest.fixture
async def tls_engine(pair: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tls=server_context(pair)) as started:
        yield started


def over(url: str, **relay: Any) -> Settings:
    return Settings.model_validate({"endpoints": [{"name": "e1", "url": url, "model": "tiny"}], "relay": relay})


@contextlib.contextmanager
def refusing(tls: ssl.SSLContext) -> Iterator[str]:
    """A server on blocking sockets, which tells its clients why a handshake fails."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):
                tls.wrap_socket(accepted, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def reason_of(gateway: RunningGateway, name: str = "e1") -> str:
    """Why the endpoint is not ready, once it was asked."""

    async def unasked() -> list[str]:
        state = gateway.app.fleet.snapshot.statuses[name].state
        return [f"the endpoint is {state}"] if state is not EndpointState.UNREADY else []

    await settled(unasked)
    return gateway.app.fleet.snapshot.statuses[name].reason


async def test_requests_and_probes_go_over_tls(tls_engine: ScriptedEngine, pair: Path, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": tls_engine}, relay={"engine_ca": pair / "cert"}) as gateway:
        whole = await ask(gateway.url, CHAT, chat())
        stream = await ask(gateway.url, CHAT, chat(stream=True, max_tokens=200))
        assert (whole.status, stream.status, stream.is_done) == (200, 200, True)

        async def not_ready() -> list[str]:
            return [] if gateway.app.fleet.snapshot.any_ready else ["the endpoint is not ready"]

        await settled(not_ready)


async def test_a_kept_connection_carries_the_next_request(
    tls_engine: ScriptedEngine, pair: Path, gateway_over: GatewayOver
) -> None:
    async with gateway_over({"e1": tls_engine}, relay={"engine_ca": pair / "cert"}) as gateway:
        for _ in range(3):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len({record.connection for record in tls_engine.log.requests}) == 1


async def test_leaving_closes_the_engines_connection(tls_engine: ScriptedEngine, pair: Path, gateway_over: GatewayOver) -> None:
    gate = Gate(events=3)
    tls_engine.script(Script(gate=gate, chunks=50))
    async with gateway_over({"e1": tls_engine}, relay={"engine_ca": pair / "cert"}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=50)))
            await client.read_head()
            record = await tls_engine.reached("held:4")
        async with asyncio.timeout(HANG_SECONDS):
            await record.peer_closed.wait()


@pytest.mark.parametrize(
    ("name", "authority", "says"),
    [
        (ADDRESS, "the machine's", "the certificate is not accepted: self-signed certificate"),
        (ADDRESS, "another's", "the certificate is not accepted: self-signed certificate"),
        ("DNS:engine", "its own", "the certificate is not accepted: IP address mismatch"),
    ],
)
async def test_a_certificate_that_proves_nothing_is_a_connect_error_with_its_reason(
    tmp_path: Path, gateway_over: GatewayOver, caplog: pytest.LogCaptureFixture, name: str, authority: str, says: str
) -> None:
    write_pair(tmp_path, "engine", alternative=name)
    write_pair(tmp_path / "other", "engine", alternative=ADDRESS)
    relay = {
        "the machine's": {},
        "another's": {"engine_ca": tmp_path / "other" / "cert"},
        "its own": {"engine_ca": tmp_path / "cert"},
    }
    async with ScriptedEngine(tls=server_context(tmp_path)) as engine:
        with caplog.at_level(logging.WARNING):
            async with gateway_over({"e1": engine}, relay=relay[authority]) as gateway:
                assert says in await reason_of(gateway)
                answer = await ask(gateway.url, CHAT, chat())
                assert (answer.status, answer.json["error"]["code"]) == (503, "model_unavailable")
        assert engine.log.requests == engine.log.control_requests == []
        assert says in caplog.text


async def test_an_engine_that_speaks_plainly_is_never_asked_plainly(pair: Path) -> None:
    """Whatever it answers to a handshake: no byte of a request is seen by it."""
    seen = b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, RunningGateway(over(url, engine_ca=pair / "cert")) as gateway:
        assert await reason_of(gateway) == "no TLS connection to the engine: wrong version number"
        assert (await ask(gateway.url, CHAT, chat())).status == 503
    assert b"GET" not in seen
    assert b"POST" not in seen


async def test_an_engine_whose_certificate_becomes_wrong_is_given_up_for_another(
    tls_engine: ScriptedEngine, engine: ScriptedEngine, pair: Path, gateway_over: GatewayOver
) -> None:
    """A failed handshake is a connection that was not made: another endpoint may be tried."""
    engines = {"e1": tls_engine, "e2": engine}
    async with gateway_over(engines, relay={"engine_ca": pair / "cert"}, probe={"period_seconds": 3600}) as gateway:

        async def not_ready() -> list[str]:
            found = gateway.app.fleet.snapshot.statuses.values()
            return [] if all(status.state is EndpointState.READY for status in found) else ["not all are ready"]

        await settled(not_ready)
        write_pair(pair, "other", alternative="DNS:other")
        assert tls_engine.tls is not None
        tls_engine.tls.load_cert_chain(pair / "cert", pair / "key")
        for _ in range(2):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert not tls_engine.log.requests
        assert "not accepted" in await reason_of(gateway)


# A client's certificate


async def test_a_client_certificate_is_shown(tmp_path: Path, pair: Path, gateway_over: GatewayOver) -> None:
    write_pair(tmp_path / "client", "gateway")
    own = {"engine_client_certificate": tmp_path / "client" / "cert", "engine_client_key": tmp_path / "client" / "key"}
    tls = server_context(pair, client_authority=tmp_path / "client" / "cert")
    async with ScriptedEngine(tls=tls) as engine:
        async with gateway_over({"e1": engine}, relay={"engine_ca": pair / "cert", **own}) as gateway:
            assert (await ask(gateway.url, CHAT, chat())).status == 200


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (ssl.TLSVersion.TLSv1_2, "no TLS connection to the engine: sslv3 alert handshake failure"),
        # Here the client's handshake is over before the engine refuses it.
        (ssl.TLSVersion.TLSv1_3, "by TLS: tlsv13 alert certificate required"),
    ],
)
async def test_an_engine_that_wants_a_client_certificate_says_so(
    tmp_path: Path, pair: Path, version: ssl.TLSVersion, says: str
) -> None:
    write_pair(tmp_path / "client", "gateway")
    tls = server_context(pair, client_authority=tmp_path / "client" / "cert")
    tls.maximum_version = version
    with refusing(tls) as url:
        async with RunningGateway(over(url, engine_ca=pair / "cert")) as gateway:
            assert says in await reason_of(gateway)


async def test_an_engine_that_refuses_a_client_without_a_word_is_named(tmp_path: Path, pair: Path) -> None:
    """uvloop, on which vLLM runs, closes without the alert."""
    write_pair(tmp_path / "client", "gateway")
    tls = server_context(pair, client_authority=tmp_path / "client" / "cert")
    async with ScriptedEngine(tls=tls) as engine, RunningGateway(over(engine.url, engine_ca=pair / "cert")) as gateway:
        assert "it may want a client certificate" in await reason_of(gateway)
    assert engine.log.requests == engine.log.control_requests == []


# Renewal


async def test_new_authorities_are_taken_up_and_wrong_ones_are_not(
    tmp_path: Path, gateway_over: GatewayOver, caplog: pytest.LogCaptureFixture
) -> None:
    write_pair(tmp_path, "engine", alternative=ADDRESS)
    write_pair(tmp_path / "ca", "other", alternative=ADDRESS)
    authority = tmp_path / "ca" / "cert"
    right = (tmp_path / "cert").read_bytes()
    relay = {"engine_ca": authority, "idle_connection_seconds": 0.01}
    async with ScriptedEngine(tls=server_context(tmp_path)) as engine:
        async with gateway_over({"e1": engine}, relay=relay, probe={"period_seconds": 0.02}) as gateway:
            assert "not accepted" in await reason_of(gateway)

            async def not_served() -> list[str]:
                status = (await ask(gateway.url, CHAT, chat())).status
                return [] if status == 200 else [f"answered {status}"]

            authority.write_bytes(right)
            await settled(not_served)
            with caplog.at_level(logging.ERROR, "serving.engines"):
                authority.write_text("no certificate")

                async def unlogged() -> list[str]:
                    return [] if "the old ones stay" in caplog.text else ["nothing is logged"]

                await settled(unlogged)
            assert not await not_served()


@pytest.mark.parametrize("wrong", ["missing", "no certificate"])
def test_files_that_cannot_be_used_at_the_start_are_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "ca.pem"
    if wrong != "missing":
        path.write_text(wrong)
    relay: dict[str, Any] = {"engine_ca": path}
    with pytest.raises(ConfigurationError, match=r"relay\.engine_ca.*ca\.pem: "):
        create_app(settings_over({}, relay=relay))
