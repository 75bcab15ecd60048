"""O-HTTP-1: each side's framing is its own: no length and no coding is copied from the other."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable

import openai
import pytest

from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver
from tests.flow.surfaces import CHAT, GENERATING, MESSAGES, asking, assert_error

USAGE = {"prompt_tokens": 7, "completion_tokens": 12}
BODY = json.dumps({"id": "x", "choices": [], "usage": USAGE, "text": "é" * 600}, ensure_ascii=False).encode().ljust(2048)
REPORTED = Usage(prompt_tokens=7, completion_tokens=12)
FRAMINGS = {
    "length": Script(body=BODY, usage=REPORTED),
    "chunked": Script(body=BODY, framing="chunked", usage=REPORTED),
    "close": Script(body=BODY, framing="close", usage=REPORTED),
}
REASON = "the prompt is é too long" * 100


def framing_of(response: RawResponse) -> list[str]:
    return [name.lower() for name, _ in response.headers if name.lower() in ("content-length", "transfer-encoding")]


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_o_http_1_a_whole_answer_has_one_framing_and_all_its_bytes(
    engine: ScriptedEngine, gateway_over: GatewayOver, framing: str
) -> None:
    engine.default = FRAMINGS[framing]
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for _ in range(2):
            response = await client.ask(CHAT, asking(CHAT))
            assert len(framing_of(response)) == 1
            assert (response.end, response.body) == ("complete", BODY)
            assert response.header("content-length") in (None, str(len(BODY)))


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_o_http_1_an_engines_error_on_a_stream_is_framed_anew(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, framing: str
) -> None:
    """The engine's words come in a body of another length than its own."""
    body = json.dumps({"error": {"message": REASON, "type": "BadRequestError", "param": None, "code": 400}}).encode()
    engine.default = Script(status=400, body=body, framing=framing)
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for _ in range(2):
            response = await client.ask(path, asking(path, stream=True))
            assert response.status == 400
            assert framing_of(response) == ["content-length"]
            assert int(response.header("content-length") or 0) == len(response.body) != len(body)
            assert assert_error(response, path)["message"] == REASON
            assert client.unread == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"transfer-encoding: chunked\r\ncontent-length: 2048\r\n",
        b"content-length: 2048\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 2048\r\ncontent-length: 7\r\n",
        b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: xchunked\r\ncontent-length: 5\r\n",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_o_http_1_an_engine_with_two_framings_is_never_two_answers(
    engine: ScriptedEngine, gateway_over: GatewayOver, headers: bytes, stream: bool
) -> None:
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n%s\r\n" % (kind, headers)
    text = b'data: {"choices":[]}\n\ndata: [DONE]\n\n' if stream else BODY
    raw = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    engine.script(Script(raw_is="response", raw=[(0.0, raw)], ending="fin", usage=REPORTED))
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway, RawClient(gateway.url) as client:
        response = await client.ask(CHAT, asking(CHAT, stream=stream))
        assert len(framing_of(response)) == 1
        if response.status == 200:
            assert response.end != "complete" or not stream or not response.is_done or response.body == text
        else:
            assert response.status == 502
            assert_error(response)
        if response.end == "complete" and response.header("connection") != "close":
            assert (await client.ask(CHAT, asking(CHAT))).json["choices"], "the next answer is the next request's"


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize("path", GENERATING)
async def test_o_http_1_the_engine_gets_the_length_of_what_it_is_sent(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, chunk_bytes: int | None
) -> None:
    """Bodies that the gateway changes: longer by what it adds, shorter by what it takes out."""
    async with gateway_over({"e1": engine}, auth={"api_key": "good"}) as gateway, RawClient(gateway.url) as client:
        for fields in ({"stream": True}, {"priority": 7, "kv_transfer_params": {"a": "é" * 500}}, {"cache_salt": "mine"}):
            body = json.dumps(asking(path, **fields), ensure_ascii=False).encode()
            if chunk_bytes is None:
                await client.send(request_bytes(path, body, headers={"Authorization": "Bearer good"}))
            else:
                pieces = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
                head = f"POST {path} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer good\r\nTransfer-Encoding: chunked\r\n\r\n"
                chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
                await client.send(head.encode() + chunks + b"0\r\n\r\n")
            assert (await client.read()).status == 200
            record = engine.log.requests[-1]
            assert record.request.all("content-length") == [str(len(record.body))]
            assert not record.request.all("transfer-encoding")
            is_changed = path != MESSAGES or "stream" not in fields
            assert (len(record.body) != len(body)) is is_changed
            assert record.json["model"] == "tiny"


async def by_curl(gateway: RunningGateway) -> bytes:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    arguments = ("-sS", "--fail", "-d", json.dumps(asking(CHAT)), "-H", "Content-Type: application/json")
    process = await asyncio.create_subprocess_exec(curl, *arguments, gateway.url + CHAT, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


async def by_httpx(gateway: RunningGateway) -> bytes:
    """What the openai client sends and reads with."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        answer = await client.chat.completions.with_raw_response.create(model="tiny", messages=[{"role": "user", "content": "x"}])
        return answer.content


async def by_socket(gateway: RunningGateway) -> bytes:
    return (await ask(gateway.url, CHAT, asking(CHAT))).body


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("read", [by_curl, by_httpx, by_socket])
async def test_o_http_1_every_client_reads_the_same_bytes(
    engine: ScriptedEngine, gateway_over: GatewayOver, framing: str, read: Callable[[RunningGateway], Awaitable[bytes]]
) -> None:
    engine.default = FRAMINGS[framing]
    async with gateway_over({"e1": engine}) as gateway:
        assert await read(gateway) == BODY
