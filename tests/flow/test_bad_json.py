"""O-API-1: a body that is no request is a 400 in the API's own words, at once, and no engine hears of it."""

from __future__ import annotations

import json
import time

import pytest

from tests.doubles.raw_client import RawClient, ask
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver
from tests.flow.surfaces import GENERATING, MESSAGES, asking, assert_error

AT_ONCE_SECONDS = 1.0
"""Of the processor: a busy machine may take longer."""
"""The aim is 50 ms; a busy machine gets more."""


OBJECTS = ("the model alone", "no model", "a model that is none")
"""All else is no object at all, and to say that a field is missing would be no help."""


def of(path: str) -> bytes:
    return json.dumps(asking(path)).encode()


def with_member(path: str, member: bytes) -> bytes:
    return of(path)[:-1] + b"," + member + b"}"


def bad_bodies(path: str) -> dict[str, bytes]:
    good = of(path)
    return {
        "empty": b"",
        "blanks": b" \r\n\t ",
        "an open brace": b"{",
        "an array": b"[]",
        "a string": b'"x"',
        "null": b"null",
        "a number": b"7",
        "the model alone": b'{"model":"tiny"}',
        "no model": b"{}",
        "a model that is none": b'{"model":{"tiny":1}}',
        "a BOM before it": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
        "UTF-16 without a BOM": good.decode().encode("utf-16-le"),
        "UTF-32": good.decode().encode("utf-32"),
        "no UTF-8": with_member(path, b'"user":"\xff\xfe"'),
        "half a character": with_member(path, b'"user":"\xe4\xbd"'),
        "half a surrogate pair": with_member(path, b'"user":"\\ud83c"'),
        "a surrogate in UTF-8": with_member(path, b'"user":"\xed\xa0\x80"'),
        "100,000 brackets": b"[" * 100_000,
        "100,000 brackets in a member": with_member(path, b'"user":' + b"[" * 100_000 + b"]" * 100_000),
        "a number beyond a double": with_member(path, b'"a":1e999999'),
        "NaN": with_member(path, b'"a":NaN'),
        "Infinity": with_member(path, b'"a":-Infinity'),
        "two documents": good + good,
        "cut": good[:-1],
        "a comment": with_member(path, b'/* x */"a":1'),
        "single quotes": good.replace(b'"', b"'"),
        "a comma too many": good[:-1] + b",}",
        "a line end in a string": with_member(path, b'"user":"a\nb"'),
        "a form": b"model=tiny&messages=hi",
    }


@pytest.mark.parametrize("path", GENERATING)
async def test_o_api_1_a_body_that_is_no_request_is_a_400(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for name, body in bad_bodies(path).items():
            started = time.process_time()
            response = await client.ask(path, body)
            assert time.process_time() - started < AT_ONCE_SECONDS, name
            assert response.status == 400, f"{name}: {response.status} {response.body[:200]!r}"
            error = assert_error(response, path)
            assert error["type"] == "invalid_request_error", name
            assert ("JSON" in error["message"]) is (name not in OBJECTS), f"{name}: {error['message']}"
            assert path == MESSAGES or (error["code"] == "invalid_json") is (name not in OBJECTS), name
        assert (await client.ask(path, asking(path))).status == 200, "the connection is as good as new"
        assert len(engine.log.requests) == 1


@pytest.mark.parametrize("path", GENERATING)
async def test_o_api_1_a_number_of_2_mb_holds_nobody_up(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    """An integer of that length is no number that a double holds; reading it digit by digit would take seconds."""
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for number in (b"9" * 2_000_000, b"-" + b"9" * 2_000_000, b"0." + b"9" * 2_000_000):
            body = with_member(path, b'"priority":' + number)
            started = time.process_time()
            response = await client.ask(path, body)
            assert time.process_time() - started < AT_ONCE_SECONDS
            assert response.status in (200, 400)
            if response.status == 400:
                assert_error(response, path)
        assert len(engine.log.requests) <= 1, "a long fraction is a number, and its field stays behind"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"])
async def test_o_api_1_another_content_type_is_a_415(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, kind: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, asking(path), headers={"Content-Type": kind})
        assert response.status == 415
        error = assert_error(response, path)
        assert "application/json" in error["message"]
        assert error["type"] == "invalid_request_error"
        assert not engine.log.requests


@pytest.mark.parametrize(
    ("member", "param"),
    [
        (b'"stream":"yes"', "stream"),
        (b'"stream":1', "stream"),
        (b'"stream":true,"stream_options":[]', "stream_options"),
        (b'"model":7', "model"),
        (b'"model":null', "model"),
        (b'"messages":"hi"', "messages"),
        (b'"messages":null', "messages"),
        (b'"cache_salt":7', "cache_salt"),
    ],
)
async def test_o_api_1_the_field_that_is_wrong_is_named(
    engine: ScriptedEngine, gateway_over: GatewayOver, member: bytes, param: str
) -> None:
    path = GENERATING[0]
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, with_member(path, member))
        assert response.status == 400
        error = assert_error(response)
        assert (error["param"], f"'{param}'" in error["message"]) == (param, True)
        assert not engine.log.requests


@pytest.mark.parametrize("depth", [100, 253, 254, 300, 900, 2000])
@pytest.mark.parametrize("name", ["guided_json", "stream_options", "metadata", "priority"])
async def test_o_api_1_depth_is_served_or_refused(
    engine: ScriptedEngine, gateway_over: GatewayOver, name: str, depth: int
) -> None:
    """What can be read can be deeper than what can be written, where the gateway has to say a field again."""
    value = b'{"a":' * depth + b"1" + b"}" * depth
    path = GENERATING[0]
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, with_member(path, b'"stream":true,"%s":%s' % (name.encode(), value)))
        assert response.status in ((200, 400) if depth > 100 else (200,))
        if response.status == 400:
            assert "nest" in assert_error(response)["message"] or "depth" in assert_error(response)["message"]


async def test_o_api_1_anthropics_route_says_it_in_anthropics_words(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            response = await ask(gateway.url, path, b"{")
            assert response.status == 400
            assert assert_error(response, path)["type"] == "invalid_request_error"
