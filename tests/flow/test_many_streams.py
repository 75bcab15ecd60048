"""Many streams at once on one gateway process: each comes whole and unchanged, and the gateway says meanwhile that it lives.

An idle gateway beside it is probed as well: what that one takes is the machine's doing.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from tests.doubles.engine_process import engine_process, events_of
from tests.doubles.gateway_process import gateway_process
from tests.doubles.liveness import probed
from tests.doubles.raw_client import RawClient, request_bytes
from tests.flow.surfaces import CHAT, TURNS

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024
KEY = {"Authorization": "Bearer sk-perflab"}
RAMP_SECONDS = 0.002
"""Between two beginnings: so many clients do not connect within one round trip, unless they are an attack."""


async def one_stream(
    url: str, name: str, after_seconds: float, events: int, interval_seconds: float, all_there: asyncio.Barrier
) -> None:
    """Ask, wait until all others have their first event too, and read to the end."""
    body = {"model": "tiny", "messages": TURNS, "stream": True, "user": name, "max_tokens": events}
    body |= {"stream_options": {"include_usage": True}, "metadata": {"interval_seconds": interval_seconds}}
    await asyncio.sleep(after_seconds)
    async with RawClient(url) as client:
        await client.send(request_bytes(CHAT, body, headers=KEY))
        response = await client.read_head()
        assert response.status == 200
        await all_there.wait()
        async for _ in client.read_body(response):
            pass
        assert response.end == "complete"
        assert response.body == b"".join(events_of(name, events)), f"{name} is not what its engine said"


async def many(folder: Path, streams: int, events: int, interval_seconds: float) -> None:
    (folder / "idle").mkdir()
    async with engine_process() as engine_url:
        auth, probe = {"api_key": "sk-perflab"}, {"period_seconds": 5.0, "timeout_seconds": 60.0}
        async with (
            gateway_process({"e1": engine_url}, folder, auth=auth, probe=probe) as gateway,
            gateway_process({"e1": engine_url}, folder / "idle", probe=probe) as idle,
        ):
            all_there = asyncio.Barrier(streams + 1)
            before = gateway.resident_bytes
            async with probed(gateway.url) as liveness, probed(idle.url) as control:
                running = asyncio.gather(
                    *(
                        one_stream(gateway.url, f"stream-{number}", number * RAMP_SECONDS, events, interval_seconds, all_there)
                        for number in range(streams)
                    )
                )
                at_peak = asyncio.create_task(all_there.wait())
                await asyncio.wait({running, at_peak}, return_when=asyncio.FIRST_COMPLETED)
                assert (await gateway.metrics()).sum("serving_in_flight_requests") == streams, "all at once"
                peak = gateway.resident_bytes
                await running
            metrics = await gateway.metrics()
            assert metrics.sum("serving_requests_total", outcome="ok") == metrics.sum("serving_requests_total") == streams
            assert metrics.sum("serving_open_leases") == 0
            assert await gateway.holdings() == []
            print(
                f"\n{streams} streams of {events} events, none lost; liveness {liveness}, "
                f"of an idle gateway beside it {control}; "
                f"memory {before / MEBIBYTE:.1f} MiB before, {peak / MEBIBYTE:.1f} MiB with all of them, "
                f"{(peak - before) / streams / 1024:.1f} KiB a stream",
                flush=True,
            )
            assert len(liveness.seconds) >= 5
            assert liveness.at(0.5) < 1.0


@pytest.fixture(autouse=True)
def _open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def test_200_streams_at_once(tmp_path: Path) -> None:
    await many(tmp_path, 200, events=10, interval_seconds=0.2)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_2000_streams_at_once(tmp_path: Path) -> None:
    await many(tmp_path, 2000, events=30, interval_seconds=1.0)
