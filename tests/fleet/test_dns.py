"""The engines of a pool are the addresses of a name: they come and go, and a name server that fails takes none away."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving.fleet.dns import Discovery, LookupFailed
from serving.fleet.probe import Probe
from serving.fleet.store import DEPARTED, Endpoint, EndpointState, Fleet
from serving.settings import DiscoverySettings, PoolSettings, ProbeSettings
from tests.doubles.virtual_time import in_virtual_time

PROGRAM = Path(__file__).parent / "programs" / "ask_name_server.py"
POOL = PoolSettings(name="cpu", model="tiny", target="cpu-epyc", host="engines.test", port=8000)
GPU = PoolSettings(name="gpu", model="tiny", target="gpu", host="others.test", port=9000)
PERIOD_SECONDS = 2.0


class Names:
    """A resolver: what each name has, or why it cannot be said."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.failure = ""
        self.hanging = False
        self.asked = 0

    async def __call__(self, host: str) -> list[str]:
        self.asked += 1
        if self.hanging:
            await asyncio.Event().wait()
        if self.failure:
            raise LookupFailed(self.failure)
        return self.addresses.get(host, [])


class World:
    """A discovery with all that it speaks to; every engine in `alive` answers its probe."""

    def __init__(self, *pools: PoolSettings, fixed: tuple[Endpoint, ...] = ()) -> None:
        self.names = Names()
        self.alive: set[str] = set()
        self.failures: list[str] = []
        self.rounds = 0
        self.fleet = Fleet(fixed, models={pool.model: pool.tasks for pool in pools})
        self.probe = Probe(self.fleet, self._get, ProbeSettings(period_seconds=0.5, timeout_seconds=0.5))
        self.discovery = Discovery(
            pools,
            self.fleet,
            self.probe,
            DiscoverySettings(period_seconds=PERIOD_SECONDS, timeout_seconds=5.0),
            resolve=self.names,
            changed=self._changed,
            failed=self.failures.append,
        )

    def _changed(self) -> None:
        self.rounds += 1

    async def _get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        return (200, b'{"data": [{"id": "tiny"}]}') if url in self.alive else (503, b"")

    def states(self) -> dict[str, str]:
        return {name: str(status.state) for name, status in self.fleet.snapshot.statuses.items()}


@in_virtual_time
async def test_engines_come_and_go_with_the_addresses_of_the_name() -> None:
    world = World(POOL)
    world.names.addresses["engines.test"] = ["10.0.0.1", "10.0.0.2"]
    world.alive = {"http://10.0.0.1:8000"}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        assert world.states() == {"cpu-10.0.0.1": "ready", "cpu-10.0.0.2": "unready"}
        endpoint = world.fleet.snapshot.candidates("tiny")[0]
        assert (endpoint.url, endpoint.pool, endpoint.target) == ("http://10.0.0.1:8000", "cpu", "cpu-epyc")
        world.alive.add("http://10.0.0.3:8000")
        world.names.addresses["engines.test"] = ["10.0.0.3", "10.0.0.1"]
        await asyncio.sleep(PERIOD_SECONDS)
        assert world.states() == {"cpu-10.0.0.1": "ready", "cpu-10.0.0.3": "ready"}
    assert world.rounds == 2


@in_virtual_time
async def test_what_is_known_of_an_engine_that_stays_is_kept() -> None:
    world = World(POOL)
    world.names.addresses["engines.test"] = ["10.0.0.1"]
    world.alive = {"http://10.0.0.1:8000"}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        world.names.addresses["engines.test"] = ["10.0.0.1", "10.0.0.2"]
        await asyncio.sleep(PERIOD_SECONDS - 0.1)
        before = world.fleet.snapshot.statuses["cpu-10.0.0.1"]
        await asyncio.sleep(0)
        assert before.state is EndpointState.READY


@in_virtual_time
async def test_a_model_whose_pool_has_no_engine_is_known_and_not_ready() -> None:
    world = World(POOL)
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
    assert list(world.fleet.snapshot.by_model) == ["tiny"]
    assert not world.fleet.snapshot.any_ready


@pytest.mark.parametrize("failure", ["failing", "hanging"])
@in_virtual_time
async def test_a_name_server_that_fails_takes_no_engine_away(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(POOL)
    world.names.addresses["engines.test"] = ["10.0.0.1"]
    world.alive = {"http://10.0.0.1:8000"}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        world.names.failure, world.names.hanging = ("no server", False) if failure == "failing" else ("", True)
        await asyncio.sleep(60.0)
        assert world.states() == {"cpu-10.0.0.1": "ready"}
        assert set(world.failures) == {"cpu"}
        assert len(world.failures) >= 8
        world.names.failure, world.names.hanging = "", False
        world.alive.add("http://10.0.0.2:8000")
        world.names.addresses["engines.test"] = ["10.0.0.2"]
        await asyncio.sleep(10.0)
        assert list(world.states()) == ["cpu-10.0.0.2"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING and "looked up" in record.getMessage()]
    assert len(warnings) == 1


@in_virtual_time
async def test_engines_that_leave_serve_until_one_of_those_that_come_is_ready() -> None:
    """A rollout of one replica, or a name that moves: all addresses are new at once, and none has shown that it serves."""
    world = World(POOL)
    world.names.addresses["engines.test"] = ["10.0.0.1", "10.0.0.9"]
    world.alive = {"http://10.0.0.1:8000"}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        world.names.addresses["engines.test"] = ["10.0.0.2", "10.0.0.3"]
        await asyncio.sleep(60.0)
        assert world.states() == {"cpu-10.0.0.1": "ready", "cpu-10.0.0.2": "unready", "cpu-10.0.0.3": "unready"}
        world.alive.add("http://10.0.0.3:8000")
        await asyncio.sleep(PERIOD_SECONDS + 0.5)
        assert world.states() == {"cpu-10.0.0.2": "unready", "cpu-10.0.0.3": "ready"}
        world.names.addresses["engines.test"] = ["10.0.0.4"]
        world.alive.clear()
        await asyncio.sleep(PERIOD_SECONDS * 2)
        assert world.states() == {"cpu-10.0.0.4": "unready"}, "an engine that is gone is not held on to"


@in_virtual_time
async def test_an_empty_answer_is_not_believed_while_an_engine_answers() -> None:
    world = World(POOL)
    world.names.addresses["engines.test"] = ["10.0.0.1", "10.0.0.2"]
    world.alive = {"http://10.0.0.1:8000"}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        world.names.addresses.clear()
        await asyncio.sleep(PERIOD_SECONDS)
        assert world.states() == {"cpu-10.0.0.1": "ready"}
        world.alive.clear()
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert world.states() == {}


@in_virtual_time
async def test_pools_are_apart_and_fixed_endpoints_stay() -> None:
    fixed = Endpoint("fixed", "http://fixed:8000", "tiny", "static", "x")
    world = World(POOL, GPU, fixed=(fixed,))
    world.names.addresses = {"engines.test": ["10.0.0.1"], "others.test": ["10.0.0.1", "fd00::1"]}
    async with world.probe, world.discovery:
        await asyncio.sleep(0.1)
        assert set(world.states()) == {"fixed", "cpu-10.0.0.1", "gpu-10.0.0.1", "gpu-fd00--1"}
        assert world.fleet.snapshot.statuses["gpu-fd00--1"].endpoint.url == "http://[fd00::1]:9000"
        world.names.addresses["others.test"] = []
        await asyncio.sleep(PERIOD_SECONDS)
        assert set(world.states()) == {"fixed", "cpu-10.0.0.1"}


@in_virtual_time
async def test_nothing_is_left_of_engines_that_left() -> None:
    world = World(POOL)
    async with world.probe, world.discovery:
        tasks = len(asyncio.all_tasks())
        for turn in range(300):
            world.names.addresses["engines.test"] = [f"10.0.{turn}.1", f"10.0.{turn}.2"]
            await asyncio.sleep(PERIOD_SECONDS)
            assert len(world.states()) == 2
        assert len(asyncio.all_tasks()) <= tasks + 2
        assert len(world.fleet.departed) == DEPARTED


def test_the_systems_resolver_against_a_name_server(tmp_path: Path) -> None:
    configuration = tmp_path / "resolv.conf"
    configuration.write_text(
        "nameserver 127.0.0.1\nsearch serving.svc.cluster.local svc.cluster.local cluster.local\n"
        "options ndots:5 timeout:1 attempts:1\n"
    )
    command = f"ip link set lo up && mount --bind {configuration} /etc/resolv.conf && exec {sys.executable} {PROGRAM}"
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs the commands unshare and ip")
    allowed = subprocess.run(["unshare", "--map-root-user", "--mount", "--net", "true"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"this system gives no namespaces: {allowed.stderr.strip()}")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "--net", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("no such name") == []
    assert said.pop("two addresses") == ["10.0.0.1", "10.0.0.2"]
    assert len(said.pop("twenty addresses")) == 20
    assert said.pop("a name without addresses") == []
    assert said.pop("an address") == ["127.0.0.1"]
    assert set(said) == {"server failure", "silence", "no server"}
    assert all(words.startswith("failed: ") for words in said.values()), said
