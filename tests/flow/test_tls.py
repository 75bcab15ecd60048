"""TLS: a certificate is renewed while the gateway runs, and a wrong one never replaces a right one."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest

from serving.app import Server, create_app
from serving.core.errors import ConfigurationError
from serving.settings import Settings
from tests.doubles.certificates import write_pair
from tests.doubles.raw_client import request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import chat, settings_over

POLL_SECONDS = 0.05


@pytest.fixture
def settings(engine: ScriptedEngine, tmp_path: Path) -> Settings:
    server = {"tls_certificate": tmp_path / "cert", "tls_key": tmp_path / "key", "tls_poll_seconds": POLL_SECONDS}
    return settings_over({"e1": engine}, server=server)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def handshake(port: int, server_name: str | None = "first") -> Connection:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=server_name or "")


def name_shown(connection: Connection) -> bytes:
    """The certificate as it came; each of these tests' names stands in it as it is."""
    certificate = connection[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    return certificate


async def status_of(connection: Connection) -> int:
    reader, writer = connection
    writer.write(request_bytes("/v1/chat/completions", chat()))
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return int(head.split()[1])


async def close(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()


async def test_new_handshakes_get_the_new_certificate_and_open_connections_stay(settings: Settings, tmp_path: Path) -> None:
    write_pair(tmp_path, "first")
    async with RunningGateway(settings) as gateway:
        old = await handshake(gateway.port)
        assert b"first" in name_shown(old)
        assert await status_of(old) == 200
        write_pair(tmp_path, "second")

        async def still_old() -> list[str]:
            probe = await handshake(gateway.port)
            shown = name_shown(probe)
            await close(probe)
            return [] if b"second" in shown else ["the old certificate is shown"]

        await settled(still_old)
        new = await handshake(gateway.port, server_name=None)
        assert b"second" in name_shown(new), "also without a server name"
        assert await status_of(new) == 200
        assert await status_of(old) == 200
        await close(old, new)


@pytest.mark.parametrize("wrong", ["no certificate", "another's key", "gone", "half"])
async def test_a_wrong_certificate_changes_nothing_and_is_logged(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    write_pair(tmp_path, "first")
    (tmp_path / "other").mkdir()
    write_pair(tmp_path / "other", "other")
    async with RunningGateway(settings) as gateway:
        certificate = tmp_path / "cert"
        match wrong:
            case "no certificate":
                certificate.write_text("no certificate")
            case "another's key":
                (tmp_path / "other" / "key").replace(tmp_path / "key")
            case "gone":
                certificate.unlink()
            case "half":
                certificate.write_bytes(certificate.read_bytes()[:200])
        with caplog.at_level(logging.ERROR, "serving.api"):

            async def unlogged() -> list[str]:
                return [] if any("the old one stays" in message for message in caplog.messages) else ["nothing is logged"]

            await settled(unlogged)
            await asyncio.sleep(4 * POLL_SECONDS)
        assert len([message for message in caplog.messages if "the old one stays" in message]) == 1, "once for each change"
        connection = await handshake(gateway.port)
        assert b"first" in name_shown(connection)
        assert await status_of(connection) == 200
        await close(connection)


async def test_the_second_half_of_a_pair_completes_it(settings: Settings, tmp_path: Path) -> None:
    write_pair(tmp_path, "first")
    (tmp_path / "other").mkdir()
    write_pair(tmp_path / "other", "second")
    async with RunningGateway(settings) as gateway:
        (tmp_path / "other" / "cert").replace(tmp_path / "cert")
        await asyncio.sleep(4 * POLL_SECONDS)
        (tmp_path / "other" / "key").replace(tmp_path / "key")

        async def still_old() -> list[str]:
            probe = await handshake(gateway.port)
            shown = name_shown(probe)
            await close(probe)
            return [] if b"second" in shown else ["the old certificate is shown"]

        await settled(still_old)


@pytest.mark.parametrize("spoiled", ["cert", "key"])
async def test_a_certificate_that_cannot_be_used_at_the_start_is_named(settings: Settings, tmp_path: Path, spoiled: str) -> None:
    write_pair(tmp_path, "first")
    os.truncate(tmp_path / spoiled, 10)
    with pytest.raises(ConfigurationError, match=r"server\.tls_certificate"):
        Server(create_app(settings))


async def test_plain_http_on_a_tls_port_gets_no_answer(settings: Settings, tmp_path: Path) -> None:
    write_pair(tmp_path, "first")
    async with RunningGateway(settings) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request_bytes("/livez"))
        assert b"HTTP" not in await reader.read()
        writer.close()
