"""The gateway keeps to its OpenAPI document, whatever schemathesis sends."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serving.core.routes import ROUTES
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver

pytestmark = pytest.mark.slow

KEY = "sk-test"
TASKS = ("generate", "embed", "score", "transcription")


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """An engine that answers every route."""
    async with ScriptedEngine(tasks=TASKS) as started:
        yield started


FORM_CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
CHECKS = (
    *FORM_CHECKS,
    "not_a_server_error",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
"""All but those for resources that one request makes and another finds, and `positive_data_acceptance`: bodies are described
as far as the gateway reads them, and an engine may refuse what the document allows."""
SOAK_SECONDS = 300
ENGINES_ONLY = ("--include-method", "POST")

_TURNS = {
    "type": "array",
    "minItems": 1,
    "maxItems": 3,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"type": "string"}},
        "additionalProperties": False,
    },
}
_SHORT = {"type": "string", "minLength": 1, "maxLength": 50}
_SHORTS = {"type": "array", "minItems": 1, "maxItems": 3, "items": _SHORT}
_OFF = {"const": "false"}
_FEW = {"type": "integer", "minimum": 1, "maximum": 20}
PLAUSIBLE: dict[str, Any] = {
    "model": {"const": "tiny"},
    "messages": _TURNS,
    "input": _TURNS,
    "prompt": _SHORT,
    "query": _SHORT,
    **dict.fromkeys(("text_1", "queries", "data_1"), _SHORT),
    **dict.fromkeys(("text_2", "documents", "items", "data_2"), _SHORTS),
    "tokens": {"type": "array", "maxItems": 10, "items": {"type": "integer", "minimum": 0, "maximum": 200}},
    "file": {"type": "string", "contentMediaType": "application/octet-stream", "minLength": 50},
    **dict.fromkeys(("stream_include_usage", "stream_continuous_usage_stats"), _OFF),
    "cache_salt": {"type": "string", "minLength": 1},
    "stream_options": {"type": "null"},
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _FEW),
}
"""Members that an engine takes, too."""
PAIR = {"/v1/score": ["text_1", "text_2"]}
"""Members that an engine takes together, by the route whose document allows others, too."""


def examples(number: int) -> tuple[str, ...]:
    """Generated bodies for each operation, the same in every run."""
    return ("--max-examples", str(number), "--generation-deterministic")


async def document_for(gateway: RunningGateway, folder: Path, members: dict[str, Any]) -> str:
    """A file with the gateway's document, in which members of bodies have other schemas."""
    document = (await ask(gateway.url, "/openapi.json")).json
    for path, route in ROUTES.items():
        kind = "multipart/form-data" if route.form else "application/json"
        body = document["paths"][path]["post"]["requestBody"]["content"][kind]["schema"]
        names = [*body["properties"], *(name for field in route.required for name in field.instead)]
        body["properties"] |= {name: schema for name, schema in members.items() if name in names}
        body["required"] += [name for name in PAIR.get(path, ()) if name in members]
    file = folder / "document.json"
    file.write_text(json.dumps(document))
    return str(file)


async def schemathesis(document: str, gateway: RunningGateway, folder: Path, *arguments: str, checks: Any = CHECKS) -> None:
    """Run the command; what it found fails the test."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", document, "--url", gateway.url, "--checks", ",".join(checks)),
        *("--header", f"Authorization: Bearer {KEY}", "--phases", "coverage,fuzzing", "--continue-on-failure"),
        *("--no-color", "--warnings", "off", "--suppress-health-check", "all", *arguments),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("SCHEMATHESIS")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        pytest.fail(output.decode(), pytrace=False)


async def outcomes(gateway: RunningGateway) -> dict[str, float]:
    """Requests by their outcome."""
    found: dict[str, float] = {}
    for sample in (await gateway.metrics()).select("serving_requests_total"):
        found[sample.labels["outcome"]] = found.get(sample.labels["outcome"], 0) + sample.value
    return {outcome: number for outcome, number in found.items() if number}


async def test_schemathesis_finds_no_violation(engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": KEY}) as gateway:
        await schemathesis(f"{gateway.url}/openapi.json", gateway, tmp_path, *examples(10))


async def test_nothing_wrong_is_accepted_for_a_model_that_there_is(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    """With any other model a wrong body and a right one are answered 404 alike."""
    async with gateway_over({"e1": engine}, auth={"api_key": KEY}) as gateway:
        document = await document_for(gateway, tmp_path, {"model": PLAUSIBLE["model"]})
        await schemathesis(document, gateway, tmp_path, *ENGINES_ONLY, *examples(20))


async def test_answers_and_streams_are_as_they_are_described(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        document = await document_for(gateway, tmp_path, PLAUSIBLE)
        await schemathesis(document, gateway, tmp_path, *ENGINES_ONLY, "--mode", "positive", *examples(30), checks=FORM_CHECKS)
        found = await outcomes(gateway)
        assert found["ok"] > 0.9 * sum(found.values()), found
        for path, route in ROUTES.items():
            if route.streams and not route.form:
                streamed = {bool(record.json.get("stream")) for record in engine.log.requests if record.path == path}
                assert streamed == {True, False}, path


FAILURES = {
    "overloaded": Script(status=503, headers=(("Retry-After", "7"),)),
    "engine_error": Script(status=500),
    "engine_timeout": Script(blackhole=True),
}


async def test_engines_failures_are_as_they_are_described(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    scripts = itertools.cycle(FAILURES.values())
    engine.choose = lambda _: next(scripts)
    relay = {"first_byte_timeout_seconds": 0.3, "max_attempts": 1}
    async with gateway_over({"e1": engine}, relay=relay) as gateway:
        document = await document_for(gateway, tmp_path, PLAUSIBLE)
        arguments = ("--phases", "fuzzing", "--mode", "positive", *examples(9))
        await schemathesis(document, gateway, tmp_path, *ENGINES_ONLY, *arguments, checks=FORM_CHECKS)
        assert set(FAILURES) <= set(await outcomes(gateway))


async def test_the_gateway_refuses_nothing_that_the_document_allows(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    """Without a ready engine what the gateway itself accepts is answered 503, which is not held against it."""
    engine.routes["/health"] = Script(status=503)
    checks = (*FORM_CHECKS, "positive_data_acceptance")
    async with gateway_over({"e1": engine}) as gateway:
        document = await document_for(gateway, tmp_path, {"model": PLAUSIBLE["model"]})
        await schemathesis(document, gateway, tmp_path, "--mode", "positive", *examples(15), checks=checks)
        assert set(await outcomes(gateway)) == {"unavailable"}


@pytest.mark.soak
@pytest.mark.timeout(3 * SOAK_SECONDS)
@pytest.mark.parametrize("members", [{}, {"model": PLAUSIBLE["model"]}], ids=["any model", "one model"])
async def test_schemathesis_finds_no_violation_in_a_long_time(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path, members: dict[str, Any]
) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": KEY}) as gateway:
        document = await document_for(gateway, tmp_path, members)
        await schemathesis(document, gateway, tmp_path, "--max-time", str(SOAK_SECONDS), "--generation-database", "none")
