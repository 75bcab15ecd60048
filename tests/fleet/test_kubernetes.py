"""Whatever happens to events, lists, and the server: what the fleet has in the end is what the list says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.fleet.kubernetes import Follower, KubernetesDiscovery
from serving.fleet.mirror import ApiFailed
from serving.fleet.probe import Probe
from serving.fleet.store import Fleet
from serving.fleet_settings import KubernetesSettings
from serving.settings import PoolSettings, ProbeSettings
from tests.doubles.virtual_time import VirtualTime

POOL = PoolSettings.model_validate(
    {"name": "cpu", "model": "tiny", "kubernetes": {"selector": "app=engine", "port": 8000, "namespace": "ns"}}
)
LIST_SECONDS = 5.0


class Cluster:
    """Pods by number, and an API in memory whose every step can be told to fail."""

    def __init__(self) -> None:
        self.pods: dict[int, dict[str, Any]] = {}
        self.version = 1
        self.generation = 0
        self.events: deque[bytes] = deque()
        self.said = asyncio.Event()
        self.watching = False
        self.faults: set[str] = set()
        self.lists = 0

    def write(self, number: int, *, ready: bool, leaving: bool) -> dict[str, Any]:
        metadata = {"name": f"e-{number}", "uid": f"uid{number}.{self.generation}"}
        if leaving:
            metadata["deletionTimestamp"] = "now"
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        pod = {"metadata": metadata, "status": {"podIP": f"10.0.0.{number}", "conditions": conditions}}
        self.pods[number] = pod
        return pod

    def tell(self, kind: str, document: dict[str, Any]) -> None:
        self.version += 1
        if self.watching and "lost" not in self.faults and "stalled" not in self.faults:
            self.events.append(orjson.dumps({"type": kind, "object": document}))
            self.said.set()

    def usable(self) -> set[str]:
        return {
            pod["metadata"]["uid"]
            for pod in self.pods.values()
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["conditions"][0]["status"] == "True"
        }

    async def get(self, path: str, *, timeout_seconds: float) -> bytes:
        self.lists += 1
        await asyncio.sleep(0.01)
        if "list" in self.faults:
            raise ApiFailed("no", 503)
        query = parse_qs(urlsplit(path).query)
        numbers = sorted(self.pods)
        begin = int(query.get("continue", ["0"])[0])
        if begin and "pages" in self.faults:
            raise ApiFailed("too old", 410)
        metadata = {"resourceVersion": str(self.version)}
        if begin + 2 < len(numbers):
            metadata["continue"] = str(begin + 2)
        return orjson.dumps({"metadata": metadata, "items": [self.pods[n] for n in numbers[begin : begin + 2]]})

    async def lines(self, path: str, *, timeout_seconds: float) -> AsyncGenerator[bytes, None]:
        if "watch" in self.faults:
            raise ApiFailed("forbidden", 403)
        if "gone" in self.faults:
            yield orjson.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
        self.events.clear()
        self.watching = True
        try:
            while True:
                while self.events:
                    yield self.events.popleft()
                self.said.clear()
                if "dropped" in self.faults:
                    return
                await self.said.wait()
        finally:
            self.watching = False

    async def probe(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        return 200, b'{"data": [{"id": "tiny"}]}'


FAULTS = ("list", "pages", "watch", "gone", "lost", "stalled", "dropped")
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "replace", "fault", "heal", "drop", "garbage", "wait"]),
        st.integers(1, 5),
        st.booleans(),
        st.booleans(),
        st.sampled_from(FAULTS),
        st.sampled_from([0.0, 0.05, 1.0, 7.0]),
    ),
    max_size=30,
)


def take_step(cluster: Cluster, step: tuple[str, int, bool, bool, str, float]) -> None:
    action, number, ready, leaving, fault, _ = step
    if action == "put":
        known = number in cluster.pods
        cluster.tell("MODIFIED" if known else "ADDED", cluster.write(number, ready=ready, leaving=leaving))
    elif action == "remove" and number in cluster.pods:
        cluster.tell("DELETED", cluster.pods.pop(number))
    elif action == "replace":  # the same name and address, another pod
        cluster.generation += 1
        cluster.tell("MODIFIED", cluster.write(number, ready=True, leaving=False))
    elif action == "fault":
        cluster.faults.add(fault)
    elif action == "heal":
        cluster.faults.discard(fault)
    elif action == "drop":
        cluster.faults.add("dropped")
        cluster.said.set()
    elif action == "garbage" and cluster.watching:
        cluster.events.append(b'{"type": "NEW", "object": 1}' if ready else b"not JSON")
        cluster.said.set()


async def converges(taken: list[tuple[str, int, bool, bool, str, float]]) -> None:
    cluster = Cluster()
    fleet = Fleet((), models={"tiny": ("generate",)})
    kubernetes = KubernetesSettings(list_seconds=LIST_SECONDS, timeout_seconds=1.0, api_url="http://api")
    async with Probe(fleet, cluster.probe, ProbeSettings()) as probe:
        follower = Follower(POOL, "ns", cluster, kubernetes)
        async with KubernetesDiscovery([follower], fleet, probe, kubernetes):

            def found() -> set[str]:
                return {status.endpoint.uid for status in fleet.snapshot.statuses.values()}

            for step in taken:
                take_step(cluster, step)
                await asyncio.sleep(step[-1])
            cluster.faults.clear()
            lists = cluster.lists
            # One round that is under way, its longest pause, and a list.
            await asyncio.sleep(2 * LIST_SECONDS + 3.0)
            assert found() == cluster.usable()
            assert cluster.lists - lists <= 8 * 3, "no tight loop: so many rounds, of three pages each"
            # Healthy now: each event is followed at once.
            for number in (1, 2, 3):
                cluster.tell("MODIFIED", cluster.write(number, ready=number != 2, leaving=False))
                await asyncio.sleep(0.1)
                assert found() == cluster.usable()
            cluster.tell("DELETED", cluster.pods.pop(1))
            await asyncio.sleep(0.1)
            assert found() == cluster.usable()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_sequence_converges_to_the_list(taken: list[tuple[str, int, bool, bool, str, float]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(converges(taken))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone_costs_one_round(fault: str) -> None:
    """The removal of an engine is noticed within two rounds although nothing but lists works, and not even all of them."""

    async def run() -> None:
        cluster = Cluster()
        fleet = Fleet((), models={"tiny": ("generate",)})
        kubernetes = KubernetesSettings(list_seconds=LIST_SECONDS, timeout_seconds=1.0, api_url="http://api")
        for number in (1, 2, 3):
            cluster.write(number, ready=True, leaving=False)
        async with Probe(fleet, cluster.probe, ProbeSettings()) as probe:
            async with KubernetesDiscovery([Follower(POOL, "ns", cluster, kubernetes)], fleet, probe, kubernetes):
                await asyncio.sleep(1.0)
                cluster.faults.add(fault)
                cluster.said.set()
                cluster.tell("DELETED", cluster.pods.pop(2))
                await asyncio.sleep(LIST_SECONDS + 1.5)
                found = {status.endpoint.uid for status in fleet.snapshot.statuses.values()}
                assert found == cluster.usable() or fault in ("list", "pages")
                cluster.faults.clear()
                await asyncio.sleep(LIST_SECONDS + 1.5)
                assert {status.endpoint.uid for status in fleet.snapshot.statuses.values()} == cluster.usable()

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"metadata": {}}', b'{"metadata": 1, "items": []}', b'{"metadata": {}, "items": {}}', b"\xff"],
)
async def test_what_is_no_list_is_refused(body: bytes) -> None:
    class Odd(Cluster):
        async def get(self, path: str, *, timeout_seconds: float) -> bytes:
            return body

    follower = Follower(POOL, "ns", Odd(), KubernetesSettings())
    with pytest.raises(ApiFailed):
        await follower.read_list()


async def test_a_list_without_an_end_is_refused() -> None:
    class Endless(Cluster):
        async def get(self, path: str, *, timeout_seconds: float) -> bytes:
            return b'{"metadata": {"continue": "more"}, "items": []}'

    with pytest.raises(ApiFailed, match="pages"):
        await Follower(POOL, "ns", Endless(), KubernetesSettings()).read_list()
