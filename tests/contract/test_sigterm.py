"""What an engine does between SIGTERM and its end; draining is held to a real engine's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serving.sim.faults import Faults
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.real_engine import is_installed, running_engine
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.tiny_model import tiny_model

CHAT = "/v1/chat/completions"
DRAIN_SECONDS = 60
Sigterm = Callable[[], Awaitable[None]]


@asynccontextmanager
async def ending(kind: str, seconds: int, log: Path) -> AsyncIterator[tuple[str, Sigterm]]:
    """An engine that may drain for so long, and how it gets its signal."""
    if kind == "simulated":
        async with simulated_engine(step_seconds=0.005, shutdown_seconds=float(seconds)) as simulated:

            async def order() -> None:
                await simulated.set_faults(Faults(stop="drain" if seconds else "abort"))

            yield simulated.url, order
        return
    with _real(seconds, log) as (url, pid):

        async def kill() -> None:
            os.kill(pid, signal.SIGTERM)

        yield url, kill


@contextlib.contextmanager
def _real(seconds: int, log: Path) -> Iterator[tuple[str, int]]:
    if not is_installed():
        pytest.fail("vLLM is not installed")
    with running_engine(tiny_model(), log, ["--shutdown-timeout", str(seconds)]) as engine:
        yield engine.url, engine.pid


def asking(max_tokens: int, *, stream: bool) -> bytes:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": stream}
    return request_bytes(CHAT, body)


async def both_run(url: str) -> None:
    async def problems() -> list[str]:
        text = (await ask(url, "/metrics")).body.decode()
        return [] if re.search(r"^vllm:num_requests_running\{.*\} 2\.0$", text, re.MULTILINE) else ["not both run"]

    await settled(problems)


KINDS = pytest.mark.parametrize("kind", ["simulated", pytest.param("real", marks=pytest.mark.engine)])


async def test_an_abort_ends_streams_with_done_and_says_that_they_failed(tmp_path: Path) -> None:
    """The simulator alone: of ten aborts of a real engine six ended their stream with `[DONE]`, after an error event or a chunk
    with `finish_reason: "abort"`, and four left it open and silent (`abort_silently`). Nothing is always so."""
    async with ending("simulated", 0, tmp_path / "log") as (url, sigterm), RawClient(url) as streaming, RawClient(url) as whole:
        await ask(url, CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
        await streaming.send(asking(3000, stream=True))
        await whole.send(asking(3000, stream=False))
        await both_run(url)
        head = await streaming.read_head()
        body = streaming.read_body(head)
        await anext(body)
        await sigterm()
        said = b"".join([piece async for piece in body])
        assert head.end == "complete" and said.endswith(b"data: [DONE]\n\n")
        last = said.split(b"\n\n")[-3]
        answer = await whole.read()
        assert last.startswith(b'data: {"error": {"message": "EngineCore encountered an issue.') and b'"code": 500' in last
        assert (answer.status, answer.json["error"]["type"]) == (500, "InternalServerError")
        with pytest.raises((ConnectionRefusedError, ConnectionResetError, HangUp)):
            await ask(url, "/health")


@KINDS
async def test_a_drain_lets_requests_end_and_answers_new_ones_500_with_green_health(kind: str, tmp_path: Path) -> None:
    async with ending(kind, DRAIN_SECONDS, tmp_path / "log") as (url, sigterm), RawClient(url) as streaming:
        await ask(url, CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
        await streaming.send(asking(400, stream=True))
        body = streaming.read_body(await streaming.read_head())
        await anext(body)
        await sigterm()
        new = await ask(url, CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        while new.status == 200:  # a real engine takes a moment to hear the signal
            new = await ask(url, CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        assert (new.status, new.json["error"]["message"]) == (500, "cannot schedule new futures after shutdown")
        assert (await ask(url, "/health")).status == 200
        said = b"".join([piece async for piece in body])
        assert b'"finish_reason":"length"' in said and said.endswith(b"data: [DONE]\n\n")
