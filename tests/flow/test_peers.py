"""Two gateways over the same engines, with real datagrams between them: each routes as if it had seen what the other has."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from serving.fleet.seal import Refusal, Seal
from serving.settings import Settings
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import all_ready, chat, settings_over

StartEngine = Callable[..., Awaitable[ScriptedEngine]]
CHAT = "/v1/chat/completions"
SECRET = secrets.token_hex(16)


def long_chat(words: str) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": words * 80}])


def free_ports(count: int) -> list[int]:
    """Of datagrams, that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.asynccontextmanager
async def pair_over(
    engines: dict[str, ScriptedEngine], secrets: tuple[str, str] = (SECRET, SECRET)
) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """Gateways that are set as each other's peers, each with its secret. Both know that the engines are ready."""
    ports = free_ports(2)
    made = [
        RunningGateway(
            settings_over(
                engines,
                peers={"addresses": [f"127.0.0.1:{ports[1 - own]}"], "port": ports[own], "secret": secrets[own]},
                probe={"period_seconds": 0.1},
            )
        )
        for own in (0, 1)
    ]
    async with made[0], made[1]:
        for gateway in made:
            await all_ready(gateway)
        yield made[0], made[1]


async def heard(*gateways: RunningGateway) -> None:
    """Wait until each has heard another one."""

    async def problems() -> list[str]:
        counts = [(await gateway.metrics()).sum("serving_peers") for gateway in gateways]
        return [] if all(counts) else [f"heard {counts}"]

    await settled(problems)


def knows(gateway: RunningGateway, prefixes: int) -> Callable[[], Awaitable[list[str]]]:
    async def problems() -> list[str]:
        taken = (await gateway.metrics()).sum("serving_peer_prefixes_total", result="taken")
        return [] if taken >= prefixes else [f"has taken {taken} of {prefixes}"]

    return problems


async def test_a_prompt_that_one_has_seen_goes_to_the_same_engine_from_the_other(start_engine: StartEngine) -> None:
    engines = {f"e{number}": await start_engine() for number in range(4)}
    async with pair_over(engines) as (one, other):
        await heard(one, other)
        for number in range(8):
            prompt = long_chat(f"Say something about the sea, number {number}. ")
            assert (await ask(one.url, CHAT, prompt)).status == 200
            (home,) = [name for name, engine in engines.items() if len(engine.log.requests) > 0]
            await settled(knows(other, number + 1))
            assert (await ask(other.url, CHAT, prompt)).status == 200
            assert len(engines[home].log.requests) == 2
            for engine in engines.values():
                engine.log.requests.clear()
        report = (await ask(other.url, "/fleet")).json
        (peer,) = report["peers"]
        assert peer["name"] == one.app.peers.own.hex()  # type: ignore[union-attr]
        assert 0 <= peer["age_seconds"] < 1.0


async def test_load_of_one_is_respected_by_the_other_until_it_is_gone(start_engine: StartEngine) -> None:
    """Six requests that one gateway has at an engine keep the other away from it; when that gateway dies they count no more."""
    gate = Gate()
    held = await start_engine(default=Script(gate=gate))
    engines = {"held": held, "free": await start_engine()}
    async with pair_over(engines) as (one, other), contextlib.AsyncExitStack() as clients:
        await heard(one, other)
        work_of = other.app.chooser._works

        async def counted() -> list[str]:
            there = work_of["held"].in_flight
            return [] if there == 6 else [f"{there} count"]

        one.app.fleet.replace("default", [e for e in _endpoints(one) if e.name == "held"])
        for _ in range(6):
            client = await clients.enter_async_context(RawClient(one.url))
            await client.send(request_bytes(CHAT, chat(stream=True)))
        await settled(counted)
        before = len(held.log.requests)
        for _ in range(4):
            assert (await ask(other.url, CHAT, chat())).status == 200
        assert len(held.log.requests) == before
        assert other.app.chooser.in_flight("held") == 0
        assert (await ask(other.url, "/fleet")).json["peers"][0]["in_flight"] == 6

        one.app.peers._tasks[1].cancel()  # type: ignore[union-attr]
        seen: list[int] = []

        async def gone() -> list[str]:
            seen.append(work_of["held"].in_flight)
            return [] if not seen[-1] else [f"{seen[-1]} still count"]

        await settled(gone)
        assert any(0 < count < 6 for count in seen), "it does not count in full until it counts not at all"
        gate.open_all()


def _endpoints(gateway: RunningGateway) -> list[Any]:
    return [status.endpoint for status in gateway.app.fleet.snapshot.statuses.values()]


async def test_who_has_another_secret_is_not_heard(start_engine: StartEngine) -> None:
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with pair_over(engines, (SECRET, "the secret of another release")) as (one, other):

        async def refused() -> list[str]:
            samples = [await gateway.metrics() for gateway in (one, other)]
            sizes = [each.sum("serving_peer_news_refused_bytes_total", reason="signature") for each in samples]
            return [] if all(sizes) else [f"refused {sizes}"]

        await settled(refused)
        metrics = await other.metrics()
        assert metrics.sum("serving_peers") == 0
        assert metrics.sum("serving_peer_news_bytes_total", result="received") == 0
        assert (await ask(other.url, "/fleet")).json["peers"] == []


async def test_hostile_datagrams_change_nothing(start_engine: StartEngine) -> None:
    """From a real socket: unsigned, another release's, oversized, and one that was sent before."""
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with pair_over(engines) as (one, other):
        await heard(one, other)
        port = other.app.settings.peers.port
        seal = Seal(SECRET.encode())
        ((signed,), _) = seal.pack([b"F" + bytes(8)], 1)
        ((foreign,), _) = Seal(b"the secret of another release").pack([b"F" + bytes(8)], 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            for datagram in (signed, signed, signed[:-1] + bytes([signed[-1] ^ 1]), foreign, signed + bytes(9000), b"x"):
                attacker.sendto(datagram, ("127.0.0.1", port))
        expected = {Refusal.OLD, Refusal.SIGNATURE, Refusal.SIZE, Refusal.FORMAT}

        async def refused() -> list[str]:
            found = {reason for reason, size in other.app.peers.tally.refused.items() if size}  # type: ignore[union-attr]
            return [] if found == expected else [f"refused {found}"]

        await settled(refused)
        assert len(other.app.desk.peers) == 2  # type: ignore[union-attr]
        assert (await ask(other.url, CHAT, chat())).status == 200


async def test_a_gateway_alone_says_nothing_about_peers(start_engine: StartEngine) -> None:
    async with RunningGateway(settings_over({"e1": await start_engine()})) as gateway:
        assert (await ask(gateway.url, "/fleet")).json["peers"] is None
        assert not [name for name in (await gateway.metrics()).names() if "peer" in name]


def test_gateways_with_peers_salt_caches_alike() -> None:
    """Else each would keep its tenants' prompts apart from those that the others have brought into the engines."""
    keys = [{"tenant": name, "sha256": 64 * digit} for name, digit in (("alice", "a"), ("bob", "b"))]
    sections = {"auth": {"keys": keys}, "peers": {"addresses": ["127.0.0.1:9"], "secret": SECRET}}
    salts = {
        RunningGateway(Settings.model_validate(sections)).app.accounts.identities.cache_salt("alice", None) for _ in range(2)
    }
    alone = RunningGateway(Settings.model_validate({"auth": {"keys": keys}})).app.accounts.identities.cache_salt("alice", None)
    assert len(salts | {alone}) == 2
