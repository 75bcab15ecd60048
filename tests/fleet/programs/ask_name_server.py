"""Runs in a network and mount namespace of its own: the system's resolver against a name server that is told what to say.

Prints one JSON list: what `resolve` gave in each situation, or the failure's words.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from serving.fleet.dns import LookupFailed, resolve
from tests.doubles.name_server import NameServer

SHORT, WHOLE = "pool.serving.svc", "pool.serving.svc.cluster.local"


async def ask(name: str = SHORT) -> list[str] | str:
    try:
        return await resolve(name)
    except LookupFailed as error:
        return f"failed: {error}"


async def main() -> None:
    said: dict[str, list[str] | str] = {}
    async with NameServer() as server:
        said["no such name"] = await ask()
        server.records[WHOLE] = ["10.0.0.2", "10.0.0.1"]
        said["two addresses"] = await ask()
        server.records[WHOLE] = [f"10.0.1.{number}" for number in range(1, 21)]
        said["twenty addresses"] = await ask()
        server.records[WHOLE] = []
        said["a name without addresses"] = await ask()
        server.failing = True
        said["server failure"] = await ask()
        server.failing, server.silent = False, True
        said["silence"] = await ask()
    said["no server"] = await ask()
    said["an address"] = await ask("127.0.0.1")
    print(json.dumps(said))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    sys.exit(0)
