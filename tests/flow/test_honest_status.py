"""O-STR-2: a stream that no engine begins is an error with a status, never a 200 that says so inside."""

from __future__ import annotations

import json

import pytest

from tests.doubles.raw_client import ask
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, all_ready
from tests.flow.surfaces import CHAT, COMPLETIONS, GENERATING, asking, assert_error

ERROR = json.dumps({"error": {"message": "x", "code": 500}}).encode()
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", GENERATING)
async def test_o_str_2_all_engines_refuse(gateway_over: GatewayOver, path: str) -> None:
    """Both were ready when the request came; both ports are closed by then."""
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = {"e1": first, "e2": second}
        async with gateway_over(engines, relay={"max_attempts": 2}, probe={"period_seconds": 60.0}) as gateway:
            await all_ready(gateway)
            first.refuse()
            second.refuse()
            response = await ask(gateway.url, path, asking(path, stream=True))
            assert response.status in (502, 503)
            assert_error(response, path)
            assert 1 <= int(response.header("retry-after") or 0) <= 30
            metrics = await gateway.metrics()
            assert metrics.sum("serving_engine_attempts_total", result="unreachable") == 2, "each was tried, once"
            assert metrics.sum("serving_requests_total", outcome="unavailable") == 1
            assert metrics.sum("serving_open_leases") == 0
            await first.start()
            await second.start()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("pieces", [1, 3], ids=["in one write", "in pieces"])
async def test_o_str_2_an_error_as_the_first_event_is_a_status(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, pieces: int
) -> None:
    event = b"data: " + ERROR + b"\n\n"
    text = event + DONE
    size = -(-len(text) // pieces)
    raw = [(0.02 if start else 0.0, text[start : start + size]) for start in range(0, len(text), size)]
    engine.default = Script(raw_is="body", raw=raw)
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:
        response = await ask(gateway.url, path, asking(path, stream=True))
        if pieces == 1:
            assert response.status == 502
            assert_error(response, path)
        else:
            # The beginning may be out before the error is known; then it is the engine's own event, and nothing is added.
            assert response.status in (200, 502)
            assert response.status != 200 or response.body == text
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="engine_error") == 1
        assert metrics.sum("serving_requests_total", outcome="ok") == 0
        assert metrics.sum("serving_open_leases") == 0
