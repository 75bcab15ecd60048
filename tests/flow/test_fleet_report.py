"""`GET /fleet` and `serving fleet`: what operators see of pools and endpoints; what is not known is never zero."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from typer.testing import CliRunner, Result

from serving import cli, fleet_command
from serving.core.errors import ConfigurationError
from serving.fleet_command import COLUMNS, _state, operator_url, rows
from serving.settings import Settings
from tests.doubles.kubernetes_api import KubernetesApi
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import chat

FAST = {"period_seconds": 0.05, "timeout_seconds": 1.0, "stale_seconds": 0.5}


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as started:
        yield started


def settings_for(engine: ScriptedEngine, api: KubernetesApi, **sections: Any) -> Settings:
    source = {"service": "engines", "namespace": "serving"}
    return Settings.model_validate(
        {
            "endpoints": [{"name": "fixed", "url": engine.url, "model": "tiny", "target": "cpu"}],
            "pools": [
                {"name": "found", "model": "tiny", "target": "cpu", "kubernetes": source},
                {"name": "empty", "model": "other", "host": "nowhere.invalid", "port": 1},
            ],
            "kubernetes": {"api_url": api.url, "list_seconds": 1.0},
            "engine_load": FAST,
            "probe": {"period_seconds": 0.05},
            "server": {"operator_port": 0},
        }
        | sections
    )


async def pools(url: str) -> dict[str, Any]:
    response = await ask(url, "/fleet")
    assert (response.status, response.header("content-type")) == (200, "application/json")
    return {pool["name"]: pool for pool in response.json["pools"]}


async def test_what_operators_see(engine: ScriptedEngine, api: KubernetesApi) -> None:
    engine.metric_overrides |= {"vllm:num_requests_waiting": 4.0, "vllm:kv_cache_usage_perc": 0.25}
    gate = Gate(2)
    engine.default = Script(gate=gate)
    async with ScriptedEngine() as second, RunningGateway(settings_for(engine, api)) as gateway:
        api.add_pod("e-1", "127.0.0.1", port=second.port, uid="abcdef01-2345")
        api.add_pod("e-2", "127.0.0.2", port=second.port, ready=False)
        url = gateway.operator_url

        async def known() -> list[str]:
            seen = await pools(url)
            found = [each for each in seen["found"]["endpoints"] if each["load"]] and len(seen["found"]["endpoints"]) == 2
            return [] if found and seen["default"]["endpoints"][0]["load"] else ["not everything is known yet"]

        await settled(known)
        async with RawClient(gateway.url) as one, RawClient(gateway.url) as two:
            for client in (one, two):
                await client.send(request_bytes("/v1/chat/completions", chat(stream=True)))
            await engine.request_arrived()
            seen = await pools(url)
            assert list(seen) == ["default", "found", "empty"]
            (fixed,) = seen["default"]["endpoints"]
            assert (fixed["name"], fixed["state"], fixed["in_flight"], fixed["pod"]) == ("fixed", "ready", 1, None)
            assert (fixed["load"]["waiting"], fixed["load"]["kv_cache_usage"], fixed["load"]["ranks"]) == (4.0, 0.25, 1)
            found, withheld = seen["found"]["endpoints"]
            assert (found["name"], found["pod"], found["state"]) == ("found-127.0.0.1-abcdef01", "e-1", "ready")
            assert (withheld["pod"], withheld["state"], withheld["reason"]) == ("e-2", "withheld", "not ready")
            assert withheld["load"] is None
            assert (seen["found"]["ready"], seen["empty"]["ready"], seen["empty"]["endpoints"]) == (1, 0, [])
            assert fixed["speed"] == {"prefill_tokens_per_second": None, "decode_tokens_per_second": None}
            assert fixed["dollars"] == {"per_hour": None, "per_million_output_tokens": None}
            gate.open_all()
            for client in (one, two):
                assert (await client.read()).is_done
        scrape = MetricValues((await ask(url, "/metrics")).body.decode())
        assert scrape.sum("serving_engine_waiting_requests", endpoint="fixed") == 4.0
        accelerators = {pool: scrape.sum("serving_accelerators", pool=pool) for pool in ("default", "found", "empty")}
        assert accelerators == {"default": 1, "found": 2, "empty": 0}, "an engine that gets no requests is paid, too"
        assert scrape.sum("serving_engine_kv_cache_usage_ratio", endpoint="fixed") == 0.25


async def test_dollars_are_told_where_a_machine_has_a_price(engine: ScriptedEngine, api: KubernetesApi) -> None:
    """And of output only once there was some: nothing is not cheap."""
    settings = settings_for(engine, api, routing={"pools": {"default": {"dollars_per_hour": 36.0}}})
    async with RunningGateway(settings) as gateway, RawClient(gateway.url) as client:
        url = gateway.operator_url
        (fixed,) = (await pools(url))["default"]["endpoints"]
        assert fixed["dollars"] == {"per_hour": 36.0, "per_million_output_tokens": None}
        engine.default = Script(itl_seconds=0.005)
        assert (await client.ask("/v1/chat/completions", chat(stream=True, max_tokens=20))).is_done

        async def priced() -> list[str]:
            (now,) = (await pools(url))["default"]["endpoints"]
            return [] if now["dollars"]["per_million_output_tokens"] else [str(now["dollars"])]

        await settled(priced)
        scrape = MetricValues((await ask(url, "/metrics")).body.decode())
        output = scrape.sum("serving_used_dollars_total", kind="output")
        (now,) = (await pools(url))["default"]["endpoints"]
        assert now["dollars"]["per_million_output_tokens"] == pytest.approx(output / 20 * 1e6), "as the series have it"
        api.add_pod("e-1", "127.0.0.1", port=engine.port)

        async def found() -> list[str]:
            return [] if (await pools(url))["found"]["endpoints"] else ["not found yet"]

        await settled(found)
        (unpriced,) = (await pools(url))["found"]["endpoints"]
        assert unpriced["dollars"] == {"per_hour": None, "per_million_output_tokens": None}


async def test_the_ranks_of_an_engine_are_summed(engine: ScriptedEngine, api: KubernetesApi) -> None:
    """The last rank is idle: taken for the engine, it would draw all requests."""
    running = [f'vllm:num_requests_running{{engine="{rank}",model_name="tiny"}} {value}' for rank, value in enumerate((3, 4, 0))]
    engine.routes["/metrics"] = Script(body="\n".join([*running, ""]).encode())
    async with RunningGateway(settings_for(engine, api)) as gateway:

        async def summed() -> list[str]:
            load = (await pools(gateway.operator_url))["default"]["endpoints"][0]["load"]
            return [] if load and (load["running"], load["ranks"], load["waiting"]) == (7.0, 3, None) else [f"{load}"]

        await settled(summed)


@pytest.mark.parametrize("answer", [Script(status=503), Script(body=b"<html>"), Script(blackhole=True), Script(body=b"")])
async def test_a_load_that_grew_old_is_unknown(engine: ScriptedEngine, api: KubernetesApi, answer: Script) -> None:
    settings = settings_for(engine, api, engine_load=FAST | {"timeout_seconds": 0.2})
    async with RunningGateway(settings) as gateway:

        async def load() -> Any:
            return (await pools(gateway.operator_url))["default"]["endpoints"][0]["load"]

        async def told() -> list[str]:
            return [] if await load() else ["no load yet"]

        async def unknown() -> list[str]:
            return ["still known"] if await load() else []

        await settled(told)
        engine.routes["/metrics"] = answer
        await settled(unknown)
        assert gateway.app.fleet.load("fixed") is None
        scrape = MetricValues((await ask(gateway.operator_url, "/metrics")).body.decode())
        assert not scrape.select("serving_engine_running_requests", endpoint="fixed"), "no series, rather than 0"
        assert scrape.sum("serving_engine_load_failures_total", pool="default") > 0
        assert (await ask(gateway.url, "/v1/chat/completions", chat())).status == 200, "requests do not mind"


async def test_the_fleet_is_where_the_metrics_are(engine: ScriptedEngine, api: KubernetesApi) -> None:
    async with RunningGateway(settings_for(engine, api)) as gateway:
        assert (await ask(gateway.url, "/fleet")).status == 404
        assert (await ask(gateway.operator_url, "/fleet")).status == 200
    async with RunningGateway(settings_for(engine, api, server={})) as gateway:
        assert (await ask(gateway.url, "/fleet")).status == 200
        assert b"http://" not in (await ask(gateway.url, "/fleet")).body, "no address of an engine"


# The command


async def run(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli.app, ["fleet", *words])


async def test_the_command_shows_a_table_and_json(engine: ScriptedEngine, api: KubernetesApi) -> None:
    async with RunningGateway(settings_for(engine, api, engine_load={"enabled": False})) as gateway:

        async def is_ready() -> list[str]:
            return [] if gateway.app.fleet.snapshot.any_ready else ["no endpoint is ready"]

        await settled(is_ready)
        table = await run("--url", gateway.operator_url)
        assert table.exit_code == 0, table.output
        head, *lines = table.stdout.splitlines()
        assert all(column in head for column in COLUMNS)
        (line,) = [line.split() for line in lines if line.startswith("default")]
        assert line == ["default", "fixed", "ready", "0", *["?"] * 9, "ready"]
        assert any(line.split()[:2] == ["empty", "none"] and "no engine of other" in line for line in lines)
        printed = await run("--url", gateway.operator_url, "--json")
        assert json.loads(printed.stdout) == (await ask(gateway.operator_url, "/fleet")).json
        public = await run("--url", gateway.url)
        assert isinstance(public.exception, ConfigurationError)
        assert "/fleet answered 404; a gateway with server.operator_port answers there only" in str(public.exception)
        answered = public.exception and public.exception.__context__
        assert isinstance(answered, HTTPError) and answered.fp.closed, "an answer that nobody reads keeps its socket"


async def test_an_address_without_a_gateway_is_one_message(engine: ScriptedEngine) -> None:
    engine.routes["/fleet"] = Script(body=b"<html>")
    for url, words in (
        ("http://127.0.0.1:1", "cannot be asked"),
        ("127.0.0.1:1", "must be http://HOST:PORT"),
        ("http://[::1", "must be http://HOST:PORT"),
        ("http://127.0.0.1:99999", "with a port from 1 to 65535"),
        ("http://127.0.0.1:0", "with a port from 1 to 65535"),
        ("http://127.0.0.1:http", "with a port from 1 to 65535"),
        ("http://:9000", "must be http://HOST:PORT"),
        ("http://a b:9000", "must be http://HOST:PORT"),
        (f"http://{'a' * 64}.example:9000", "cannot be asked"),
        (f"{engine.url}/v1/models?x=", "did not answer with a fleet"),
    ):
        done = await run("--url", url)
        assert isinstance(done.exception, ConfigurationError) and words in str(done.exception), done.exception


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
async def test_an_answer_that_drips_ends_in_time(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(fleet_command, "TIMEOUT_SECONDS", 0.3)
    asked, closed = asyncio.Event(), asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not asked.is_set():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server, asyncio.timeout(HANG_SECONDS):
        done = await run("--url", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        asked.set()
        await closed.wait()
    assert "did not answer within 0.3 seconds" in str(done.exception), done.exception


ENDPOINT: dict[str, Any] = {
    "name": "e",
    "state": "ready",
    "reason": "ready",
    "breaker": "closed",
    "share": 1.0,
    "in_flight": 0,
    "load": None,
    "speed": dict.fromkeys(("prefill_tokens_per_second", "decode_tokens_per_second")),
    "dollars": dict.fromkeys(("per_hour", "per_million_output_tokens")),
}
OTHER_ENDPOINTS: list[Any] = [
    *({name: value for name, value in ENDPOINT.items() if name != gone} for gone in ENDPOINT),
    *(ENDPOINT | change for change in ({"in_flight": "3"}, {"load": [1]}, {"speed": 7}, {"share": "1"}, {"dollars": None})),
    7,
]


@pytest.mark.parametrize(
    "pool", [7, {}, {"name": "p"}, {"endpoints": []}, *({"name": "p", "endpoints": [each]} for each in OTHER_ENDPOINTS)]
)
async def test_the_fleet_of_another_version_is_one_message(engine: ScriptedEngine, pool: Any) -> None:
    engine.routes["/v1/models"] = Script(body=json.dumps({"pools": [pool]}).encode())
    url = f"{engine.url}/v1/models?x="
    done = await run("--url", url)
    assert isinstance(done.exception, ConfigurationError), done.exception
    assert "a fleet that this version cannot show" in str(done.exception)
    assert json.loads((await run("--url", url, "--json")).stdout) == {"pools": [pool]}


def test_unknown_figures_are_question_marks_and_zero_is_zero() -> None:
    dollars = {"per_hour": 2.5, "per_million_output_tokens": None}
    load = {"running": 0.0, "waiting": 12_345.0, "kv_cache_usage": 0.0, "cache_hit_rate": None, "output_tokens_per_second": 0.4}
    endpoint = ENDPOINT | {"load": load, "dollars": dollars}
    ((*cells,),) = rows({"pools": [{"name": "p", "model": "m", "endpoints": [endpoint]}]})
    assert cells == ["p", "e", "ready", "0", "0", "12,345", "0%", "?", "0", "?", "?", "2.50", "?", "ready"]


@pytest.mark.parametrize(
    ("state", "breaker", "share", "shown"),
    [
        ("ready", "closed", 1.0, "ready"),
        ("ready", "closed", 0.4, "ready, starting"),
        ("ready", "open", 1.0, "ready, left out"),
        ("ready", "half_open", 1.0, "ready, on trial"),
        ("unready", "closed", 0.1, "unready"),
        ("withheld", None, None, "withheld"),
        ("ready", None, None, "ready"),
    ],
)
def test_the_state_tells_what_engine_and_requests_say(state: str, breaker: str | None, share: float | None, shown: str) -> None:
    assert _state({"state": state, "breaker": breaker, "share": share}) == shown


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("{}", "http://127.0.0.1:8000"),
        ("{operator_port: 9000, operator_host: 0.0.0.0}", "http://127.0.0.1:9000"),
        ("{operator_port: 9000, operator_host: '::1'}", "http://[::1]:9000"),
        ("{port: 81, host: gateway.test}", "http://gateway.test:81"),
        ("{tls_certificate: c, tls_key: k}", "https://127.0.0.1:8000"),
        ("{tls_certificate: c, tls_key: k, operator_port: 9000}", "http://127.0.0.1:9000"),
    ],
)
def test_the_address_comes_from_the_settings(tmp_path: Path, server: str, url: str) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(f"server: {server}\n")
    assert operator_url(config) == url
