"""O-HTTP-3: no two readers can disagree where a request ends. Each vector is followed by a request that must never run."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.doubles.raw_client import RawClient
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

BODY = json.dumps(chat()).encode()
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
ONE_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n"
LINE = b"POST /v1/chat/completions HTTP/1.1"


def post(*fields: bytes, body: bytes = BODY, line: bytes = LINE, end: bytes = b"\r\n", host: bytes = b"Host: gateway") -> bytes:
    lines = [line, *([host] if host else []), b"Content-Type: application/json", *fields, b"", b""]
    return end.join(lines) + body


def chunked(body: bytes) -> bytes:
    return post(CHUNKED, body=body)


def sized(size: bytes) -> bytes:
    """One chunk whose size is written like this."""
    return chunked(b"%s\r\n%s\r\n0\r\n\r\n" % (size, BODY))


SIZE = b"%x" % len(BODY)
VECTORS = {
    "CL and TE": post(LENGTH, CHUNKED, body=ONE_CHUNK),
    "TE and CL": post(CHUNKED, LENGTH, body=ONE_CHUNK),
    "CL 0 and TE": post(b"Content-Length: 0", CHUNKED, body=ONE_CHUNK),
    "two different CL": post(LENGTH, b"Content-Length: 0"),
    "two different CL, the other way": post(b"Content-Length: 0", LENGTH),
    "two equal CL": post(LENGTH, LENGTH),
    "CL +N": post(b"Content-Length: +%d" % len(BODY)),
    "CL -N": post(b"Content-Length: -%d" % len(BODY)),
    "CL N,N": post(b"Content-Length: %d,%d" % (len(BODY), len(BODY))),
    "CL N N": post(b"Content-Length: %d %d" % (len(BODY), len(BODY))),
    "CL with an underscore": post(b"Content-Length:  1_0"),
    "CL in hexadecimal": post(b"Content-Length: 0x%x" % len(BODY)),
    "CL too large for 64 bits": post(b"Content-Length: 18446744073709551617"),
    "CL empty": post(b"Content-Length: "),
    "CL with a space before the colon": post(b"Content-Length : %d" % len(BODY)),
    "TE chunked, identity": post(b"Transfer-Encoding: chunked, identity", body=ONE_CHUNK),
    "TE identity": post(b"Transfer-Encoding: identity"),
    "TE gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", body=ONE_CHUNK),
    "TE chunked, chunked": post(b"Transfer-Encoding: chunked, chunked", body=ONE_CHUNK),
    "TE twice": post(CHUNKED, CHUNKED, body=ONE_CHUNK),
    "TE identity, then TE chunked": post(b"Transfer-Encoding: identity", CHUNKED, body=ONE_CHUNK),
    "TE xchunked": post(b"Transfer-Encoding: xchunked", body=ONE_CHUNK),
    "TE chunked with a parameter": post(b"Transfer-Encoding: chunked;q=1", body=ONE_CHUNK),
    "TE with a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=ONE_CHUNK),
    "TE empty": post(b"Transfer-Encoding: "),
    "TE with a space before the colon": post(b"Transfer-Encoding : chunked", body=ONE_CHUNK),
    "TE with a tab before the colon": post(b"Transfer-Encoding\t: chunked", body=ONE_CHUNK),
    "TE in HTTP/1.0": post(CHUNKED, body=ONE_CHUNK, line=b"POST /v1/chat/completions HTTP/1.0"),
    "chunk size 0x": sized(b"0x" + SIZE),
    "chunk size +": sized(b"+" + SIZE),
    "chunk size -": sized(b"-" + SIZE),
    "chunk size after a space": sized(b" " + SIZE),
    "chunk size before a space": sized(SIZE + b" "),
    "chunk size of 17 digits": sized(b"1" + b"%016x" % len(BODY)),
    "chunk size missing": sized(b""),
    "chunk extension ended by a bare LF": chunked(b"%s;ext=\n%s\r\n0\r\n\r\n" % (SIZE, BODY)),
    "chunk extension with a bare CR": chunked(b"%s;e\rxt\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)),
    "chunk size ended by a bare LF": chunked(b"%s\n%s\r\n0\r\n\r\n" % (SIZE, BODY)),
    "garbage after a chunk": chunked(b"%s\r\n%sXX0\r\n\r\n" % (SIZE, BODY)),
    "chunk data ended by a bare LF": chunked(b"%s\r\n%s\n0\r\n\r\n" % (SIZE, BODY)),
    "last chunk ended by bare LFs": chunked(b"%s\r\n%s\r\n0\n\n" % (SIZE, BODY)),
    "trailer Content-Length": chunked(b"%s\r\n%s\r\n0\r\nContent-Length: 7\r\n\r\n" % (SIZE, BODY)),
    "bare LFs": post(LENGTH, end=b"\n"),
    "a bare LF after a field": post(b"X: a\n%s" % LENGTH),
    "a bare LF ends the head": post(LENGTH, body=b"").removesuffix(b"\r\n") + b"\n" + BODY,
    "a bare CR after a field": post(b"X: a\r%s" % LENGTH),
    "obs-fold": post(b"X: a\r\n b", LENGTH),
    "obs-fold in TE": post(b"Transfer-Encoding:\r\n chunked", body=ONE_CHUNK),
    "space before the first field": post(LENGTH, host=b" X: a\r\nHost: gateway"),
    "NUL in a value": post(b"X: a\0b", LENGTH),
    "NUL in a name": post(b"X\0: ab", LENGTH),
    "control character in a value": post(b"X: a\x01b", LENGTH),
    "space in a name": post(b"X Y: ab", LENGTH),
    "empty name": post(b": ab", LENGTH),
    "no colon": post(b"chunked", LENGTH),
    "no Host": post(LENGTH, host=b""),
    "two Hosts": post(LENGTH, b"Host: other"),
    "two Authorizations": post(LENGTH, b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "two API keys": post(LENGTH, b"X-Api-Key: a", b"X-Api-Key: b"),
    "two Content-Encodings": post(LENGTH, b"Content-Encoding: gzip", b"Content-Encoding: identity"),
    "HTTP/2.0": post(LENGTH, line=b"POST /v1/chat/completions HTTP/2.0"),
    "HTTP/0.9": post(LENGTH, line=b"POST /v1/chat/completions HTTP/0.9"),
    "HTTP/1.2": post(LENGTH, line=b"POST /v1/chat/completions HTTP/1.2"),
    "no version": post(LENGTH, line=b"POST /v1/chat/completions"),
    "CONNECT": post(LENGTH, line=b"CONNECT gateway:80 HTTP/1.1"),
    "a control character in the URL": post(LENGTH, line=b"POST /v1/chat/completions\x01 HTTP/1.1"),
}


async def send(client: RawClient, data: bytes, piece_bytes: int) -> None:
    for start in range(0, len(data), piece_bytes):
        await client.send(data[start : start + piece_bytes])
        await asyncio.sleep(0)


@pytest.mark.parametrize("vector", VECTORS)
async def test_o_http_3_an_ambiguous_request_is_a_400_and_the_end(
    engine: ScriptedEngine, gateway_over: GatewayOver, vector: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for piece_bytes in (100_000, 5):
            async with RawClient(gateway.url) as client:
                await send(client, VECTORS[vector] + SMUGGLED, piece_bytes)
                response = await client.read()
                assert (response.status, response.header("connection")) == (400, "close")
                assert response.json["error"]["type"] == "invalid_request_error"
                assert response.json["error"]["code"] == "malformed_request"
                assert await client.closed_by_peer() == "fin"
                assert client.unread == b"", "a second answer"
        assert not engine.log.requests
        assert ("GET", "/v1/models") not in gateway.arrived
        assert gateway.arrived.count(("POST", "/v1/chat/completions")) <= 2
        assert (await gateway.metrics()).sum("serving_rejections_total", reason="malformed_request") == 2


@pytest.mark.parametrize("piece_bytes", [100_000, 5])
@pytest.mark.parametrize(
    "request_bytes",
    [
        post(LENGTH),
        chunked(ONE_CHUNK),
        chunked(b"%s;name=value\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)),
        b"\r\n\r\n" + post(LENGTH),
        post(b"Transfer-Encoding: Chunked", body=ONE_CHUNK),
        post(LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        post(CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c", body=ONE_CHUNK),
    ],
    ids=["length", "chunked", "extension", "empty lines", "Chunked", "upgrade", "upgrade, chunked"],
)
async def test_o_http_3_what_is_not_ambiguous_is_served_and_so_is_the_next(
    engine: ScriptedEngine, gateway_over: GatewayOver, request_bytes: bytes, piece_bytes: int
) -> None:
    """The same two requests in a right form both run: it is their form alone that stops them above."""
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await send(client, request_bytes + SMUGGLED, piece_bytes)
        assert (await client.read()).status == 200
        assert (await client.read()).json["object"] == "list"
        assert engine.log.requests[0].body == BODY
        assert gateway.arrived[-1] == ("GET", "/v1/models")


@pytest.mark.parametrize("piece_bytes", [100_000, 5])
async def test_o_http_3_garbage_behind_a_whole_request_ends_the_connection_after_its_answer(
    engine: ScriptedEngine, gateway_over: GatewayOver, piece_bytes: int
) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await send(client, post(LENGTH) + b"\0garbage\r\n\r\n" + SMUGGLED, piece_bytes)
        response = await client.read()
        assert (response.status, response.end) == (200, "complete")
        assert await client.closed_by_peer() == "fin"
        assert client.unread == b""
        assert ("GET", "/v1/models") not in gateway.arrived


async def test_o_http_3_nothing_follows_a_request_that_closes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(post(LENGTH, b"Connection: close") + SMUGGLED)
        assert (await client.read()).status == 200
        await client.closed_by_peer()
        assert client.unread == b""
        assert ("GET", "/v1/models") not in gateway.arrived


async def test_o_http_3_a_trailer_never_becomes_a_header(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    trailers = b"%s\r\n%s\r\n0\r\nAuthorization: Bearer good\r\nX-Request-Id: forged\r\n\r\n" % (SIZE, BODY)
    async with gateway_over({"e1": engine}, auth={"api_key": "good"}) as gateway, RawClient(gateway.url) as client:
        await client.send(chunked(trailers))
        response = await client.read()
        assert response.status == 401
        assert response.header("x-request-id") != "forged"
        assert not engine.log.requests


@pytest.mark.parametrize(
    "rest", [b"X Y: a\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX"], ids=["in its head", "in its body"]
)
async def test_o_http_3_a_refused_head_is_answered_without_a_body(
    engine: ScriptedEngine, gateway_over: GatewayOver, rest: bytes
) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(b"HEAD /v1/models HTTP/1.1\r\nHost: gateway\r\n" + rest)
        response = await client.read(method="HEAD")
        assert (response.status, response.header("connection")) == (400, "close")
        await client.closed_by_peer()
        assert client.unread == b""


def test_o_http_3_the_parsers_in_the_lock_files_are_current() -> None:
    """h11 before 0.16 took any two bytes for the end of a chunk; llhttp's leniencies were mended up to httptools 0.6."""
    pins = dict(re.findall(r"(?m)^(h11|httptools)==([0-9.]+)", Path("requirements/gateway.txt").read_text()))
    assert "httptools" in pins
    for name, version in pins.items():
        least = {"h11": (0, 16), "httptools": (0, 7)}[name]
        assert tuple(map(int, version.split(".")[:2])) >= least, f"{name} {version}"
