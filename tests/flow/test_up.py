"""`serving up` as its user sees it: a real model on a real vLLM behind the gateway, through every kind of end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import openai
import psutil
import pytest

from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.real_engine import free_port
from tests.doubles.settling import HANG_SECONDS
from tests.engines.processes import Marked, marked

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODEL = "smollm2-135m-instruct"
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
START_SECONDS = 300


class Up:
    """One `serving up` on free ports."""

    def __init__(self, processes: Marked, folder: Path) -> None:
        self.port = free_port()
        self.engine_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes = processes
        self._log = folder / "up.log"
        ports = ["--port", str(self.port), "--engine-port", str(self.engine_port), "--log-dir", str(folder)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "serving", "up", *ports],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=processes.environment,
                start_new_session=True,
            )
        processes.started.append(self.process)

    async def ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while not await self._is_ready():
                assert self.process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.2)

    async def _is_ready(self) -> bool:
        try:
            return (await ask(self.url, "/readyz")).status == 200
        except (OSError, HangUp):
            return False

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            return await asyncio.to_thread(self.process.wait)

    async def gone(self) -> None:
        """Wait until no process of it is left, whatever its parent has become."""
        async with asyncio.timeout(HANG_SECONDS):
            while not self._processes.gone():
                await asyncio.sleep(0.1)

    def one(self, word: str) -> psutil.Process:
        """The process (not its keeper) with this word among its arguments."""
        found = [p for p in self._processes.alive(word) if not any("keeper" in part for part in p.cmdline())]
        assert found, f"no process with {word}"
        return found[0]

    def text(self) -> str:
        return self._log.read_text()


@pytest.fixture
def processes() -> Iterator[Marked]:
    yield from marked()


@asynccontextmanager
async def load(url: str, at_once: int) -> AsyncIterator[list[str]]:
    """Streams that go on until the block ends; what became of each is in the list."""
    ends: list[str] = []
    over = asyncio.Event()

    async def one() -> None:
        while not over.is_set():
            with suppress(HangUp, OSError):
                async with RawClient(url) as client:
                    await client.send(request_bytes("/v1/chat/completions", QUESTION | {"stream": True, "max_tokens": 64}))
                    response = await client.read_head()
                    async for _ in client.read_body(response):
                        pass
                    if response.status == 200:
                        says_so = response.events[-1].startswith(b'data: {"error"')
                        ends.append("whole" if response.is_done else "says so" if says_so else f"silent {response.end}")
                    else:
                        ends.append(f"{response.status} {response.json['error']['code']}")
                    await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(one()) for _ in range(at_once)]
    try:
        yield ends
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def test_paris_then_every_kind_of_kill(processes: Marked, tmp_path: Path) -> None:
    up = Up(processes, tmp_path)
    await up.ready()

    answer = await ask(up.url, "/v1/chat/completions", QUESTION)
    assert "Paris" in answer.json["choices"][0]["message"]["content"]
    stream = await ask(up.url, "/v1/chat/completions", QUESTION | {"stream": True})
    assert stream.is_done
    assert "Paris" in "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in stream.data)

    async with load(up.url, at_once=8) as ends:
        while ends.count("whole") < 8:
            await asyncio.sleep(0.1)
        up.one("vllm.entrypoints").send_signal(signal.SIGKILL)
        while not any(end.startswith("503") for end in ends):
            await asyncio.sleep(0.1)
        await up.ready()
    assert set(ends) <= {"whole", "says so", "502 engine_failed", "503 model_unavailable"}, ends

    gateway = up.one("gateway")
    gateway.send_signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait, 10)
    await up.ready()
    assert "Paris" in (await ask(up.url, "/v1/chat/completions", QUESTION)).body.decode()

    up.process.send_signal(signal.SIGINT)
    assert await up.ended() == 0
    await up.gone()


async def test_a_killed_up_leaves_nothing(processes: Marked, tmp_path: Path) -> None:
    up = Up(processes, tmp_path)
    await up.ready()
    async with openai.AsyncOpenAI(base_url=f"{up.url}/v1", api_key="any") as client:
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        }
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Name the capital of France as JSON."}],
            max_tokens=60,
            temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
        )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["city"], str)
    up.process.send_signal(signal.SIGKILL)
    await up.ended()
    await up.gone()
