"""A prober in a process of its own: how long a gateway takes to say that it lives, each time on a new connection.

python -m tests.doubles.liveness HOST PORT     probes until its standard input ends, then prints all times as JSON, in seconds
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

PERIOD_SECONDS = 0.05
REQUEST = b"GET /livez HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"


def probe(address: tuple[str, int]) -> float:
    started = time.monotonic()
    with socket.create_connection(address, timeout=180) as connection:
        connection.sendall(REQUEST)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return time.monotonic() - started


def main() -> None:
    address = (sys.argv[1], int(sys.argv[2]))
    times = []
    while not select.select([sys.stdin], [], [], PERIOD_SECONDS)[0]:
        times.append(probe(address))
    print(json.dumps(times))


class Liveness:
    """The times, in seconds and in order, once the block has ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def at(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * share))]

    def __str__(self) -> str:
        p50, p99, most = (self.at(share) * 1000 for share in (0.5, 0.99, 1))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.1f} ms in {len(self.seconds)} probes"


@asynccontextmanager
async def probed(url: str) -> AsyncIterator[Liveness]:
    liveness = Liveness()
    where = urlsplit(url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(where.hostname), str(where.port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield liveness
        out, _ = await process.communicate(b"")
        assert process.returncode == 0, "a probe failed"
        liveness.seconds = sorted(json.loads(out))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    main()
