"""A scripted engine in a process of its own, for runs in which engine, gateway and clients must not share one loop.

python -m tests.doubles.engine_process     prints its URL; each stream says its request's `user` again and again (`events_of`)
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from tests.doubles.http_requests import ParsedRequest
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine

DONE = b"data: [DONE]\n\n"


def events_of(name: str, events: int) -> list[bytes]:
    """The stream of a request by that name: known byte for byte to both sides."""
    made = [json.dumps({"choices": [{"index": 0, "delta": {"content": f"{name}.{number} "}}]}) for number in range(events)]
    return [b"data: " + text.encode() + b"\n\n" for text in made] + [DONE]


def _script(request: ParsedRequest) -> Script:
    body = request.json
    seconds = body["metadata"]["interval_seconds"]
    events = events_of(body["user"], body["max_tokens"])
    return Script(raw_is="body", raw=[(seconds, event) for event in events], log_bytes=False)


async def _main() -> None:
    async with ScriptedEngine(idle_close_seconds=60.0) as engine:
        engine.choose = _script
        print(engine.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent lets go


@asynccontextmanager
async def engine_process() -> AsyncIterator[str]:
    """Run one; its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    uvloop.run(_main())
