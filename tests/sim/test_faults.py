"""Faults on command, over real sockets: each is what its name says, and the engine comes back from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.sim.engine import SimulatedEngine
from serving.sim.faults import Faults, parse_faults
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.settling import HANG_SECONDS, settled
from tests.doubles.simulated_engine import simulated_engine

CHAT = "/v1/chat/completions"
FAULTS = "/sim/faults"


def asking(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **more}


async def order(engine: SimulatedEngine, **faults: Any) -> None:
    response = await ask(engine.url, FAULTS, faults)
    assert response.status == 200 and response.json == faults


async def works(engine: SimulatedEngine) -> bool:
    return (await ask(engine.url, CHAT, asking())).status == 200


async def test_faults_are_told_and_taken_back() -> None:
    async with simulated_engine() as engine:
        assert (await ask(engine.url, FAULTS)).json == {}
        await order(engine, slow_factor=2.0)
        assert (await ask(engine.url, FAULTS)).json == {"slow_factor": 2.0}
        await order(engine)
        assert engine.faults == Faults()


async def test_a_hung_engine_is_healthy_and_answers_nothing() -> None:
    async with simulated_engine() as engine:
        await order(engine, hang=True)
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True)))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.read_head(), 0.2)
        assert (await ask(engine.url, "/health")).status == 200
        assert (await ask(engine.url, "/v1/models")).status == 200
        await order(engine)
        assert await works(engine)


async def test_a_stream_that_runs_stands_still_while_the_engine_hangs() -> None:
    async with simulated_engine(step_seconds=0.02) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=300)))
            body = client.read_body(await client.read_head())
            await anext(body)
            await order(engine, hang=True)
            tokens = engine.models[0].facts.generation_tokens
            await asyncio.sleep(0.1)
            assert engine.models[0].facts.generation_tokens == tokens < 300
            await order(engine)
            rest = b"".join([piece async for piece in body])
            assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("events", [0, 3])
async def test_a_connection_is_reset_after_so_many_events(events: int) -> None:
    async with simulated_engine() as engine:
        await order(engine, reset_after_events=events)
        response = await ask(engine.url, CHAT, asking(stream=True))
        assert (response.end, len(response.events)) == ("rst", events)
        with pytest.raises(HangUp, match="rst"):
            await ask(engine.url, CHAT, asking())

        async def problems() -> list[str]:
            return [] if engine.models[0].unfinished == 0 else ["a request is left"]

        await settled(problems)


async def test_garbage_is_a_200_that_nobody_can_read() -> None:
    async with simulated_engine() as engine:
        await order(engine, garbage=True)
        for stream in (False, True):
            response = await ask(engine.url, CHAT, asking(stream=stream))
            assert response.status == 200 and b"\xff" in response.body and b"data:" not in response.body


async def test_wrong_answers_look_like_right_ones() -> None:
    async with simulated_engine() as engine:
        greedy = asking(temperature=0)
        right = (await ask(engine.url, CHAT, greedy)).json
        assert right["choices"] == (await ask(engine.url, CHAT, greedy)).json["choices"]
        await order(engine, wrong_answers=True)
        wrong = (await ask(engine.url, CHAT, greedy)).json
        assert wrong["choices"][0]["message"]["content"] != right["choices"][0]["message"]["content"]
        assert wrong["usage"]["completion_tokens"] == right["usage"]["completion_tokens"]


async def test_an_ordered_status_hits_its_share() -> None:
    async with simulated_engine() as engine:
        await order(engine, error_status=503, share=0.5)
        statuses = [(await ask(engine.url, CHAT, asking(max_tokens=1))).status for _ in range(40)]
        assert set(statuses) == {200, 503} and 8 <= statuses.count(503) <= 32


async def test_a_slow_engine_takes_longer_by_its_factor() -> None:
    async with simulated_engine(step_seconds=0.001) as engine:
        await order(engine, slow_factor=50.0)
        await ask(engine.url, CHAT, asking(max_tokens=3))
        total = engine.models[0].facts.histograms["vllm:inter_token_latency_seconds"].total
        assert total == pytest.approx(2 * 0.05)


async def test_a_closed_port_refuses_until_it_is_told_otherwise() -> None:
    async with simulated_engine() as engine:
        await engine.set_faults(Faults(refuse=True))
        with pytest.raises(ConnectionRefusedError):
            await ask(engine.url, "/health")
        port = engine.port
        await engine.set_faults(Faults())
        assert await works(engine) and engine.port == port


async def test_a_killed_engine_resets_all_and_forgets_all() -> None:
    async with simulated_engine(step_seconds=0.01) as engine:
        await ask(engine.url, CHAT, asking())
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=500)))
            body = client.read_body(await client.read_head())
            await anext(body)
            await engine.set_faults(Faults(stop="die"))
            assert await client.closed_by_peer() == "rst"
        with pytest.raises(ConnectionRefusedError):
            await ask(engine.url, "/health")
        await engine.set_faults(Faults())
        assert await works(engine)
        facts = engine.models[0].facts
        assert (facts.finished["length"], facts.finished["abort"], facts.cached_prompt_tokens) == (1, 0, 0)


async def test_an_engine_comes_back_by_itself() -> None:
    async with simulated_engine() as engine:
        await engine.set_faults(Faults(stop="die", restart_after_seconds=0.05))
        assert not engine.is_up

        async def problems() -> list[str]:
            return [] if engine.is_up and engine.faults == Faults() else ["still down"]

        await settled(problems)
        assert await works(engine)


async def test_an_engine_that_comes_back_while_it_drains_is_not_ended_by_that() -> None:
    async with simulated_engine(step_seconds=0.01, shutdown_seconds=0.3) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=500)))
            body = client.read_body(await client.read_head())
            await anext(body)
            await engine.set_faults(Faults(stop="drain", restart_after_seconds=0.1))
            assert await client.closed_by_peer() == "rst"

        async def problems() -> list[str]:
            return [] if engine.faults == Faults() else ["still down"]

        await settled(problems)
        await asyncio.sleep(0.5)
        assert await works(engine)


async def test_a_silent_abort_leaves_its_streams_open_until_their_clients_go() -> None:
    async with simulated_engine(step_seconds=0.01) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=500)))
            body = client.read_body(await client.read_head())
            await anext(body)
            await engine.set_faults(Faults(stop="abort_silently"))
            with pytest.raises(ConnectionRefusedError):
                await ask(engine.url, "/health")
            tokens = engine.models[0].facts.generation_tokens
            await asyncio.sleep(0.1)
            assert engine.models[0].facts.generation_tokens == tokens and not engine.gone.is_set()
            assert client.end is None
        await asyncio.wait_for(engine.gone.wait(), HANG_SECONDS)
        await engine.set_faults(Faults())
        assert await works(engine)


async def test_out_of_memory_fails_what_runs_and_what_comes() -> None:
    async with simulated_engine(step_seconds=0.01) as engine:
        async with RawClient(engine.url) as client:
            await client.send(request_bytes(CHAT, asking(stream=True, max_tokens=500)))
            body = client.read_body(await client.read_head())
            await anext(body)
            await engine.set_faults(Faults(stop="out_of_memory", restart_after_seconds=60.0))
            rest = b"".join([piece async for piece in body])
        assert b'"code": 500' in rest and rest.endswith(b"data: [DONE]\n\n")
        response = await ask(engine.url, CHAT, asking())
        assert (response.status, response.json["error"]["type"]) == (500, "InternalServerError")
        assert (await ask(engine.url, "/health")).status == 503
        assert engine.models[0].facts.finished["error"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "must be a JSON object"),
        ('{"hnag": true}', "hnag: is not a fault; did you mean hang?"),
        ('{"hang": "yes"}', "hang: "),
        ('{"slow_factor": 0}', "slow_factor: "),
        ('{"share": 2}', "share: "),
        ('{"stop": "now"}', "stop: "),
    ],
)
async def test_a_wrong_order_is_refused_with_its_field(text: str, said: str) -> None:
    async with simulated_engine() as engine:
        response = await ask(engine.url, FAULTS, text.encode())
        assert response.status == 400 and said in response.json["error"]["message"]
        assert engine.faults == Faults()


def test_faults_in_words_of_a_command_line() -> None:
    assert parse_faults(["hang", "slow_factor=2.5", "stop=die"]) == Faults(hang=True, slow_factor=2.5, stop="die")
    assert parse_faults([]) == Faults()
    for words in (["hnag"], ["slow_factor=fast"], ["stop=now"], ["share=7"]):
        with pytest.raises(ConfigurationError, match="--fault"):
            parse_faults(words)
