"""A gateway whose engines are found in Kubernetes: real sockets to the API server, to engines, and from clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.app import create_app
from serving.core.errors import ConfigurationError
from serving.settings import Settings
from tests.doubles.certificates import server_context, write_pair
from tests.doubles.kubernetes_api import KubernetesApi
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import become
from tests.flow.conftest import chat

SERVICE = {"service": "engines", "namespace": "serving"}
SELECTOR = {"selector": "app=engine", "namespace": "serving", "port": "http"}
LIST_SECONDS = 1.0
SELDOM_SECONDS = 3600.0
"""Between two lists, where a test is about what the watch tells."""


@pytest.fixture(params=[SERVICE, SELECTOR], ids=["service", "selector"])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as started:
        yield started


@asynccontextmanager
async def gateway_in(api: KubernetesApi, source: dict[str, Any], **kubernetes: Any) -> AsyncIterator[RunningGateway]:
    """`kubernetes` are settings of that section."""
    settings = Settings.model_validate(
        {
            "pools": [{"name": "cpu", "model": "tiny", "target": "cpu-epyc", "kubernetes": source}],
            "kubernetes": {"api_url": api.url, "list_seconds": LIST_SECONDS, "timeout_seconds": 1.0} | kubernetes,
            "probe": {"period_seconds": 0.05},
            "server": {"operator_port": 0},
        }
    )
    async with RunningGateway(settings) as gateway:
        yield gateway


@asynccontextmanager
async def engines(api: KubernetesApi, *names: str) -> AsyncIterator[dict[str, ScriptedEngine]]:
    """An engine and its pod for each name; pods on a laptop share an address, so their ports differ."""
    async with AsyncExitStack() as stack:
        started = {name: await stack.enter_async_context(ScriptedEngine()) for name in names}
        for name, engine in started.items():
            api.add_pod(name, "127.0.0.1", port=engine.port)
        yield started


def pods(gateway: RunningGateway) -> set[str]:
    """The pods that may get new requests."""
    return {endpoint.pod for endpoint in gateway.app.fleet.snapshot.candidates("tiny")}


async def status_of(gateway: RunningGateway) -> int:
    return (await ask(gateway.url, "/v1/chat/completions", chat())).status


async def served_by(gateway: RunningGateway, engines: dict[str, ScriptedEngine], requests: int = 8) -> set[str]:
    before = {name: len(engine.log.requests) for name, engine in engines.items()}
    for _ in range(requests):
        assert await status_of(gateway) == 200
    return {name for name, engine in engines.items() if len(engine.log.requests) > before[name]}


async def ready(gateway: RunningGateway, *names: str) -> None:
    await become(lambda: pods(gateway) == set(names) and gateway.app.fleet.snapshot.any_ready == bool(names))


async def test_engines_come_and_go(api: KubernetesApi, source: dict[str, Any]) -> None:
    async with gateway_in(api, source) as gateway:
        assert await status_of(gateway) == 503
        async with engines(api, "a", "b") as both:
            await ready(gateway, "a", "b")
            assert await served_by(gateway, both) == {"a", "b"}
            api.remove_pod("a")
            await ready(gateway, "b")
            assert await served_by(gateway, both) == {"b"}


# O-DSC-1


@pytest.mark.parametrize("variant", ["dropped", "dropped and compacted", "stalled", "lost", "server away"])
async def test_o_dsc_1_a_removal_that_no_watch_told(api: KubernetesApi, source: dict[str, Any], variant: str) -> None:
    async with engines(api, "a", "b", "c") as three, gateway_in(api, source) as gateway:
        await ready(gateway, "a", "b", "c")
        await become(lambda: api.watches)
        if variant == "stalled":
            api.stalled = True
        elif variant == "lost":
            api.losing = True
        elif variant == "server away":
            await api.stop()
        else:
            api.failing = 503
            api.drop_watches()
        api.remove_pod("b")
        if variant == "server away":
            await api.start()
        if variant == "dropped and compacted":
            api.compacted = api._version + 1
        listed = api.count("list")
        api.failing = None
        await ready(gateway, "a", "c")
        assert api.count("list") <= listed + 5 / LIST_SECONDS, "as many as there are within five seconds"
        assert await served_by(gateway, three) == {"a", "c"}


async def test_o_dsc_1_without_a_live_engine_nothing_is_ready(api: KubernetesApi, source: dict[str, Any]) -> None:
    async with engines(api, "a"), gateway_in(api, source) as gateway:
        await ready(gateway, "a")
        assert (await ask(gateway.url, "/readyz")).status == 200
        assert (await ask(gateway.url, "/v1/models")).json["data"][0]["ready"] is True
        api.losing = True
        api.drop_watches()
        api.remove_pod("a")
        await ready(gateway)
        answer = await ask(gateway.url, "/readyz")
        assert (answer.status, answer.json["models"]) == (503, {"tiny": False})
        assert (await ask(gateway.url, "/v1/models")).json["data"][0]["ready"] is False
        response = await ask(gateway.url, "/v1/chat/completions", chat())
        assert (response.status, response.header("retry-after") is not None) == (503, True)


async def test_o_dsc_1_a_version_that_is_too_old_is_no_tight_loop(api: KubernetesApi) -> None:
    api.compacted = 10**9
    async with engines(api, "a"), gateway_in(api, SERVICE) as gateway:
        await ready(gateway, "a")
        await become(lambda: api.count("watch") > 2)
        began, before = time.monotonic(), api.count("list")
        await become(lambda: api.count("list") >= before + 3)
        assert time.monotonic() - began > 0.5  # each round waits longer than the one before


# O-DSC-2


@pytest.mark.parametrize("how", ["not ready", "label removed", "terminating"])
async def test_o_dsc_2_no_new_requests_and_the_running_one_ends(api: KubernetesApi, source: dict[str, Any], how: str) -> None:
    """As soon as the watch tells it: the next list is an hour away."""
    gate = Gate(2)
    async with engines(api, "e1", "e2") as both, gateway_in(api, source, list_seconds=SELDOM_SECONDS) as gateway:
        await ready(gateway, "e1", "e2")
        await become(lambda: api.watches)
        both["e2"].default = Script(gate=gate)
        async with RawClient(gateway.url) as client, RawClient(gateway.url) as second:
            for each in (client, second):  # one of the two goes to each engine
                await each.send(request_bytes("/v1/chat/completions", chat(stream=True)))
            await both["e2"].request_arrived()
            if how == "not ready":
                api.set_ready("e2", False)
            elif how == "terminating":
                api.terminate_pod("e2")
            else:
                api.set_labels("e2", {"app": "other"})
            await become(lambda: pods(gateway) == {"e1"})
            assert (await ask(both["e2"].url, "/health")).status == 200, "the engine itself is well"
            assert await served_by(gateway, {"e1": both["e1"], "e2": both["e2"]}) == {"e1"}
            gate.open_all()
            for answer in (await client.read(), await second.read()):
                assert answer.is_done and answer.end == "complete"
        if how == "not ready":
            api.set_ready("e2", True)
            await ready(gateway, "e1", "e2")
            assert await served_by(gateway, both) == {"e1", "e2"}
        attempts = MetricValues((await ask(gateway.operator_url, "/metrics")).body.decode())
        assert attempts.sum("serving_engine_attempts_total", result="ok") == attempts.sum("serving_engine_attempts_total")


# Identity


async def test_a_pod_of_the_same_name_and_address_is_another_endpoint(api: KubernetesApi, source: dict[str, Any]) -> None:
    async with ScriptedEngine() as engine, gateway_in(api, source) as gateway:
        api.add_pod("engine-0", "127.0.0.1", port=engine.port, uid="11111111-aaaa")
        await ready(gateway, "engine-0")
        (before,) = gateway.app.fleet.snapshot.candidates("tiny")
        assert await status_of(gateway) == 200
        api.losing = True
        api.remove_pod("engine-0")
        api.losing = False
        api.add_pod("engine-0", "127.0.0.1", port=engine.port, uid="22222222-bbbb")
        await become(lambda: [e.uid for e in gateway.app.fleet.snapshot.candidates("tiny")] == ["22222222-bbbb"])
        (after,) = gateway.app.fleet.snapshot.candidates("tiny")
        assert (before.url, before.pod) == (after.url, after.pod)
        assert before.name != after.name and before != after
        await become(lambda: gateway.app.fleet.snapshot.any_ready)  # it was asked for itself
        assert await status_of(gateway) == 200


# Faults of the API server


@pytest.mark.parametrize("fault", ["forbidden", "failing", "silent", "away", "no JSON"])
async def test_a_server_that_fails_takes_no_engine_away(
    api: KubernetesApi, source: dict[str, Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with engines(api, "a", "b") as both, gateway_in(api, source, timeout_seconds=0.3) as gateway:
        await ready(gateway, "a", "b")
        failures = gateway.app.metrics.discovery_failures._values
        path = next(path for path in api.objects if any(each.path == path for each in api.asked))
        kept = api.objects[path]
        if fault == "forbidden":
            api.forbidden = {"list", "watch"}
        elif fault == "failing":
            api.failing = 503
        elif fault == "silent":
            api.silent = True
        elif fault == "no JSON":
            api._list = garbage  # type: ignore[method-assign]
        else:
            await api.stop()
        api.drop_watches()
        await become(lambda: failures[("cpu",)] >= 3)
        assert pods(gateway) == {"a", "b"}
        assert await served_by(gateway, both) == {"a", "b"}
        told = [record for record in caplog.records if "cannot be listed" in record.getMessage()]
        assert len(told) == 1 and told[0].levelno == logging.WARNING, [record.getMessage() for record in told]
        assert {
            "forbidden": "cannot list",
            "failing": "503",
            "silent": "in time",
            "away": "cannot be reached",
            "no JSON": "JSON",
        }[fault] in told[0].getMessage()
        assert "the engine" not in told[0].getMessage()
        api.forbidden, api.failing, api.silent = set(), None, False
        api.__dict__.pop("_list", None)
        assert api.objects[path] is kept
        if fault == "away":
            await api.start()
        api.remove_pod("a")
        await ready(gateway, "b")


async def garbage(writer: asyncio.StreamWriter, *_: object) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<html")
    await writer.drain()
    return True


async def test_without_the_right_to_watch_lists_go_on(api: KubernetesApi, caplog: pytest.LogCaptureFixture) -> None:
    api.forbidden = {"watch"}
    async with engines(api, "a", "b"), gateway_in(api, SERVICE) as gateway:
        await ready(gateway, "a", "b")
        await become(lambda: api.count("watch") >= 3)
        api.remove_pod("a")
        await ready(gateway, "b")
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1 and "watching is refused" in told[0].getMessage() and "cannot watch" in told[0].getMessage()


async def test_a_gateway_that_starts_without_its_api_server_finds_it_later(api: KubernetesApi, source: dict[str, Any]) -> None:
    await api.stop()
    async with engines(api, "a"), gateway_in(api, source) as gateway:
        await become(lambda: gateway.app.metrics.discovery_failures._values[("cpu",)] >= 1)
        assert await status_of(gateway) == 503
        await api.start()
        await ready(gateway, "a")


async def test_a_list_in_pages_is_taken_whole_or_not_at_all(api: KubernetesApi) -> None:
    api.page_objects = 2
    async with engines(api, *"abcde"), gateway_in(api, SELECTOR) as gateway:
        await ready(gateway, *"abcde")
        assert any("continue" in each.query for each in api.asked)
        api.losing, api.expires_continues = True, True
        api.drop_watches()
        api.remove_pod("a")
        await become(lambda: gateway.app.metrics.discovery_failures._values[("cpu",)] >= 2)
        assert pods(gateway) == set("abcde")
        api.expires_continues = False
        await ready(gateway, *"bcde")


# Access


async def test_the_token_is_read_again_when_it_is_renewed(api: KubernetesApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api.token = "first"
    async with engines(api, "a", "b"), gateway_in(api, SERVICE, token_file=str(token)) as gateway:
        await ready(gateway, "a", "b")
        api.token = "second"
        await become(lambda: gateway.app.metrics.discovery_failures._values[("cpu",)] >= 1)
        token.write_text("second\n")
        api.remove_pod("a")
        await ready(gateway, "b")
    assert {each.headers["authorization"] for each in api.asked} == {"Bearer first", "Bearer second"}


async def test_the_server_is_verified_by_its_authority(tmp_path: Path) -> None:
    for name in ("server", "other"):
        write_pair(tmp_path / name, "localhost", alternative="IP:127.0.0.1")
    context = server_context(tmp_path / "server")
    async with KubernetesApi(tls=context) as api, engines(api, "a"):
        async with gateway_in(api, SERVICE, ca=str(tmp_path / "server" / "cert")) as gateway:
            await ready(gateway, "a")
        async with gateway_in(api, SERVICE, ca=str(tmp_path / "other" / "cert")) as gateway:
            await become(lambda: gateway.app.metrics.discovery_failures._values[("cpu",)] >= 1)
            assert pods(gateway) == set()


async def test_connections_to_the_server_are_kept(api: KubernetesApi) -> None:
    async with engines(api, "a"), gateway_in(api, SERVICE) as gateway:
        await ready(gateway, "a")
        await become(lambda: api.count("list") >= 3)
        assert len(api._connections) == 1
    await become(lambda: not api._connections)


async def test_inside_a_cluster_the_pod_knows_all_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(tmp_path, "localhost", alternative="IP:127.0.0.1")
    for name, text in (("token", "pods-own\n"), ("namespace", "serving"), ("ca.crt", (tmp_path / "cert").read_text())):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("serving.settings.SERVICE_ACCOUNT", tmp_path)
    async with KubernetesApi(tls=server_context(tmp_path)) as api:
        api.token = "pods-own"
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        async with engines(api, "a"), gateway_in(api, {"service": "engines"}, api_url=None) as gateway:
            await ready(gateway, "a")
            assert await status_of(gateway) == 200


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({}, "pools.0.*give exactly one source of engines: host with port, or kubernetes"),
        ({"host": "h", "port": 1, "kubernetes": SERVICE}, "give exactly one source of engines"),
        ({"host": "h"}, "port: is missing; it is where the engines behind the host listen"),
        ({"port": 1, "kubernetes": SERVICE}, "with kubernetes it is kubernetes.port"),
        ({"kubernetes": {}}, "give exactly one of service and selector"),
        ({"kubernetes": {"service": "s", "selector": "a=b"}}, "give exactly one of service and selector"),
        ({"kubernetes": {"selector": "a=b"}}, "port: is missing; with a selector"),
        ({"kubernetes": {"selector": " ", "port": 1}}, "must be a label selector"),
        ({"kubernetes": {"service": "Not_a_name"}}, "service"),
        ({"kubernetes": {"service": "s", "port": 0}}, "port"),
        ({"kubernetes": {"service": "s", "namespace": "a/b"}}, "namespace"),
    ],
)
def test_sources_that_cannot_be(pool: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Settings.model_validate({"pools": [{"name": "cpu", "model": "m", **pool}]})


@pytest.mark.parametrize(
    "url", ["", "host:1", "ftp://h:1", "https://h:1/path", "https://u@h", "https://h:0", "https://h h", "https://[h"]
)
def test_an_api_server_needs_a_plain_url(url: str) -> None:
    with pytest.raises(ValueError, match="must be https://HOST:PORT"):
        Settings.model_validate({"kubernetes": {"api_url": url}})


def test_outside_a_cluster_the_api_server_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = {"pools": [{"name": "cpu", "model": "m", "kubernetes": {"service": "s"}}]}
    with pytest.raises(ConfigurationError, match=r"kubernetes\.api_url: is not set"):
        create_app(Settings.model_validate(settings))
    with pytest.raises(ConfigurationError, match=r"pools: cpu: kubernetes\.namespace: is not set"):
        create_app(Settings.model_validate({**settings, "kubernetes": {"api_url": "http://127.0.0.1:1"}}))


def test_a_load_must_outlive_its_period() -> None:
    with pytest.raises(ValueError, match="stale_seconds must be more than period_seconds"):
        Settings.model_validate({"engine_load": {"period_seconds": 5, "stale_seconds": 5}})
