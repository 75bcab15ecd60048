"""OpenAI's own description of its API accepts the gateway's answers, streams and errors, but for what is listed here."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import forms
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, settings_over
from tests.flow.openai_schema import Judge, client_types, published

KEY = {"Authorization": "Bearer sk-test"}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
KINDS: dict[str, tuple[str, str | None]] = {
    CHAT: ("chat", "chat chunk"),
    COMPLETIONS: ("completion", "completion chunk"),
    RESPONSES: ("response", "response event"),
    EMBEDDINGS: ("embeddings", None),
    TRANSCRIPTIONS: ("transcription", None),
    TRANSLATIONS: ("translation", None),
}
"""By route: of a whole answer, and of each event of a stream. The events of vLLM's transcriptions are those of a chat, which
OpenAI's are not."""


@dataclass(frozen=True)
class Deviation:
    """Where vLLM's answers, which the gateway passes on unchanged, differ from the description."""

    kind: str
    """Pattern of the kinds of values in which it is found."""
    problem: str
    """Pattern of the judge's words."""
    reason: str


_NULL = "vLLM writes null where OpenAI leaves the member out; its own client takes both"
_LEFT_OUT = "vLLM leaves out a member that OpenAI writes as null; its own client takes both"
_CHUNK = "OpenAI describes whole completions only: in a stream null says that there is more to come, as in its chat"
_RESPONSE = r"(response\.)?"
PUBLISHED_DEVIATIONS = (
    Deviation("chat", r"choices\.\*\.message\.(annotations|function_call): is null", _NULL),
    Deviation("chat|completion", r"usage\.completion_tokens_details: is null", _NULL),
    Deviation("chat|chat chunk", r"choices\.\*\.logprobs\.refusal: is missing", _LEFT_OUT),
    Deviation("completion chunk", r"choices\.\*\.finish_reason: is null", _CHUNK),
    Deviation("response|response event", _RESPONSE + r"error: is missing", _LEFT_OUT),
    Deviation("response|response event", _RESPONSE + r"(text|user|text\.format\.description): is null", _NULL),
    Deviation("response|response event", _RESPONSE + r"tools\.\*\.defer_loading: is null", _NULL),
    Deviation("response|response event", r"(response\.output\.\*|output\.\*|item)\.namespace: is null", _NULL),
    Deviation("response event", r"response\.usage: is null", _NULL),
    Deviation("response|response event", r"(response\.output\.\*|output\.\*|item)\.content\.\*\.logprobs: is null", _NULL),
    Deviation("response event", r"part\.logprobs: is null", _NULL),
)
CLIENT_DEVIATIONS = (Deviation("completion chunk", r"choices\.\*\.finish_reason: is null", _CHUNK),)


@dataclass(frozen=True)
class Bench:
    """A judge, and what it says that is known."""

    judge: Judge
    known: tuple[Deviation, ...]

    def unknown_problems(self, kind: str, value: Any) -> set[str]:
        """What is wrong and not known to be."""
        return {problem for problem in self.judge.problems(kind, value) if not any(self._matches(kind, problem))}

    def known_problems(self, kind: str, value: Any) -> set[Deviation]:
        found = self.judge.problems(kind, value)
        return {deviation for problem in found for deviation in self._matches(kind, problem)}

    def _matches(self, kind: str, problem: str) -> Iterator[Deviation]:
        for deviation in self.known:
            if re.fullmatch(deviation.kind, kind) and re.fullmatch(deviation.problem, problem):
                yield deviation


@pytest.fixture(params=["client", "published"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "client":
        return Bench(client_types(), CLIENT_DEVIATIONS)
    schemas = published()
    if schemas is None:
        pytest.skip("OpenAI's description is not in the cache: `python -m tests.flow.openai_schema` fetches it")
    return Bench(schemas, PUBLISHED_DEVIATIONS)


def values(path: str, response: RawResponse) -> Iterator[tuple[str, Any]]:
    """An answer's values with their kinds."""
    assert response.status == 200, response.body
    whole, event = KINDS[path]
    if not (response.header("content-type") or "").startswith("text/event-stream"):
        yield whole, response.json
        return
    assert event is not None
    for line in response.body.split(b"\n"):
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield event, json.loads(line.removeprefix(b"data: "))


def check(bench: Bench, found: Iterator[tuple[str, Any]]) -> None:
    problems = [(kind, problem) for kind, value in found for problem in sorted(bench.unknown_problems(kind, value))]
    assert not problems, sorted(set(problems))


# Live answers, of the scripted engine and of a real vLLM


HI = [{"role": "user", "content": "hi"}]
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
USAGE = {"include_usage": True}
ASKED: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": (CHAT, {"messages": HI}),
    "several choices": (CHAT, {"messages": HI, "n": 2}),
    "stream of chat": (CHAT, {"messages": HI, "stream": True}),
    "stream of chat with usage": (CHAT, {"messages": HI, "stream": True, "stream_options": USAGE}),
    "completion": (COMPLETIONS, {"prompt": "hi"}),
    "stream of a completion": (COMPLETIONS, {"prompt": "hi", "stream": True, "stream_options": USAGE}),
    "response": (RESPONSES, {"input": "hi", "instructions": "Be kind.", "metadata": {"a": "b"}}),
    "response to items": (RESPONSES, {"input": ITEMS, "user": "me"}),
    "stream of a response": (RESPONSES, {"input": "hi", "stream": True}),
}


@pytest.mark.parametrize("name", ASKED)
async def test_answers_and_streams(bench: Bench, gateway: RunningGateway, name: str) -> None:
    path, fields = ASKED[name]
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    response = await ask(gateway.url, path, {"model": "tiny", limit: 4, **fields}, headers=KEY)
    check(bench, values(path, response))


@pytest.fixture
async def many_sided() -> AsyncIterator[ScriptedEngine]:
    """An engine that embeds and hears."""
    async with ScriptedEngine(tasks=("embed", "transcription")) as started:
        yield started


@pytest.mark.parametrize("given", ["hi", ["hi", "there"], [74, 75], [[74], [75, 76]]], ids=str)
async def test_embeddings(bench: Bench, many_sided: ScriptedEngine, gateway_over: GatewayOver, given: Any) -> None:
    body = {"model": "tiny", "input": given, "encoding_format": "float"}
    async with gateway_over({"e1": many_sided}) as gateway:
        check(bench, values(EMBEDDINGS, await ask(gateway.url, EMBEDDINGS, body)))


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
async def test_transcripts(bench: Bench, many_sided: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    body = forms.form([forms.text("model", "tiny"), forms.text("response_format", "json"), forms.file(forms.wave(1))])
    async with gateway_over({"e1": many_sided}) as gateway:
        check(bench, values(path, await ask(gateway.url, path, body, headers=forms.headers())))


async def test_models(bench: Bench, gateway: RunningGateway) -> None:
    assert not bench.judge.problems("models", (await ask(gateway.url, "/v1/models", headers=KEY)).json)
    assert not bench.judge.problems("model", (await ask(gateway.url, "/v1/models/tiny", headers=KEY)).json)


FAILURES = {429: Script(status=503), 502: Script(status=500), 504: Script(blackhole=True)}


async def test_errors(bench: Bench, gateway: RunningGateway) -> None:
    """Nothing is known to be wrong with these: engines' errors are translated."""
    long = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 5000}]}
    stored = {"model": "tiny", "input": "hi", "previous_response_id": "resp_1"}
    for path, body, headers, status in (
        (CHAT, b"{", KEY, 400),
        (CHAT, long, KEY, 400),
        (CHAT, {"model": "tiny", "messages": []}, KEY, 400),
        (COMPLETIONS, {"model": "tiny", "prompt": ""}, KEY, 400),
        (RESPONSES, stored, KEY, 400),
        (CHAT, long, {}, 401),
        (CHAT, {"model": "nope", "messages": HI}, KEY, 404),
        ("/v1/models/nope", None, KEY, 404),
        (CHAT, None, KEY, 405),
        (CHAT, b"{}", KEY | {"Content-Type": "text/plain"}, 415),
    ):
        response = await ask(gateway.url, path, body, headers=headers)
        assert response.status == status
        assert not bench.judge.problems("error", response.json), (path, status)


@pytest.mark.parametrize("status", FAILURES)
async def test_engines_failures(bench: Bench, engine: ScriptedEngine, gateway_over: GatewayOver, status: int) -> None:
    engine.default = FAILURES[status]
    async with gateway_over({"e1": engine}, relay={"first_byte_timeout_seconds": 0.1}) as gateway:
        for path, fields in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "hi"}), (RESPONSES, {"input": "hi"})):
            response = await ask(gateway.url, path, {"model": "tiny", **fields})
            assert response.status == status
            assert not bench.judge.problems("error", response.json)
            if status == 429:
                assert int(response.header("retry-after") or 0) >= 1


async def test_streams_that_break_off(bench: Bench, engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(close_after=6)
    async with gateway_over({"e1": engine}) as gateway:
        chat = await ask(gateway.url, CHAT, {"model": "tiny", "messages": HI, "stream": True})
        *_, last = values(CHAT, chat)
        assert not bench.judge.problems("error", last[1])
        response = await ask(gateway.url, RESPONSES, {"model": "tiny", "input": "hi", "stream": True})
        *_, last = values(RESPONSES, response)
        assert last[1]["type"] == "error"
        assert not bench.judge.problems("response event", last[1])


# Recorded answers of a real vLLM, for what the scripted engine cannot answer


_FILE = Path(__file__).with_name("vllm_answers.json")
RECORDED = {record["name"]: record for record in json.loads(_FILE.read_text(encoding="utf-8"))}
"""vLLM 0.32.0 on the CPU with the tests' tiny model and `--enable-auto-tool-choice --tool-call-parser hermes`: name, path,
request, and the answer's body."""


async def replayed(engine: ScriptedEngine, gateway: RunningGateway, record: Mapping[str, Any]) -> RawResponse:
    body = record["answer"].encode()
    is_stream = bool(record["request"].get("stream"))
    engine.script(Script(raw_is="body", raw=[(0.0, body)]) if is_stream else Script(body=body))
    return await ask(gateway.url, record["path"], record["request"])


@pytest.fixture
async def replaying(engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    """A gateway whose engine's answers are canned: their usage is not what the double would count."""
    async with RunningGateway(settings_over({"e1": engine})) as started:
        yield started


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_answers(bench: Bench, engine: ScriptedEngine, replaying: RunningGateway, name: str) -> None:
    record = RECORDED[name]
    check(bench, values(record["path"], await replayed(engine, replaying, record)))


async def test_every_known_deviation_is_still_there(bench: Bench, engine: ScriptedEngine, replaying: RunningGateway) -> None:
    seen: set[Deviation] = set()
    for record in RECORDED.values():
        for kind, value in values(record["path"], await replayed(engine, replaying, record)):
            seen |= bench.known_problems(kind, value)
    assert seen == set(bench.known)


_CHAT = {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
_EMBEDDINGS = {"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
_ERROR = {"message": "m", "type": "t", "param": None, "code": None}


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("chat", _CHAT, _CHAT | {"choices": None}),
        ("chat", _CHAT, _CHAT | {"created": "1"}),
        ("chat", _CHAT, _CHAT | {"object": "chat"}),
        ("embeddings", _EMBEDDINGS, _EMBEDDINGS | {"data": [{"index": 0, "object": "embedding", "embedding": ["0.5"]}]}),
        ("transcription", {"text": "hi"}, {"text": None}),
        ("translation", {"text": "hi"}, {}),
        ("error", {"error": _ERROR}, {"error": _ERROR | {"code": 400}}),
    ],
)
def test_the_judges_see_what_is_wrong(bench: Bench, kind: str, right: Any, wrong: Any) -> None:
    assert not bench.unknown_problems(kind, right)
    assert bench.unknown_problems(kind, wrong)
