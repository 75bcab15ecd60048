"""The guard in front of an engine: alone, as the launcher and the gateway use it, and before all routes of a real vLLM."""

from __future__ import annotations

import ast
import asyncio
import http.client
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.catalog.argv import GUARD, EngineCommand
from serving.core.errors import ConfigurationError
from serving.engines import launch
from serving.engines.launch import GUARD_FOLDER, plan_engine
from serving.settings import EndpointSettings, ProbeSettings, RelaySettings, Settings, catalog_dir, load_settings
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import EngineDied, RealEngine, running_engine
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS
from tests.doubles.tiny_model import tiny_model

FILE = GUARD_FOLDER / "serving_guard.py"
HEADER = "x-serving-engine-secret"
SECRET = "correct-horse"
OLD_SECRET = "battery-staple"
OPEN = ("/health", "/metrics")


def load_guard(environ: dict[str, str]) -> Any:
    """The file as vLLM imports it: by itself, with this environment."""
    spec = importlib.util.spec_from_file_location("serving_guard", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SERVING_")]:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        spec.loader.exec_module(module)
    return module


@dataclass
class Passed:
    """What one scope became: the scope that got through, if any, and what was sent back."""

    scope: dict[str, Any] | None = None
    sent: list[dict[str, Any]] = field(default_factory=list)


def through(guard: Any, *headers: tuple[bytes, bytes], kind: str = "http", **scope: Any) -> Passed:
    passed = Passed()

    async def engine(inner: dict[str, Any], _receive: object, _send: object) -> None:
        passed.scope = inner

    async def send(message: dict[str, Any]) -> None:
        passed.sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("the guard reads nothing")

    whole = {"type": kind, "headers": list(headers), **({"method": "GET"} if kind == "http" else {}), **scope}
    coroutine = guard.Guard(engine)(whole, receive, send)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    return passed


RIGHT = (HEADER.encode(), SECRET.encode())
one = load_guard({"SERVING_ENGINE_SECRET": SECRET})


# Which requests get through


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_two_open_routes(path: str, method: str) -> None:
    assert through(one, path=path, method=method, raw_path=path.encode(), root_path="").scope is not None
    assert through(one, path=path, method=method).scope is not None


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "QUERY", ""])
def test_an_open_route_is_open_for_reading_only(path: str, method: str) -> None:
    assert through(one, path=path, method=method).scope is None


@pytest.mark.parametrize(
    "path",
    [
        *(
            "//health",
            "/health/",
            "/HEALTH",
            "/Metrics",
            "health",
            "",
            "/",
            "*",
            "/health\0",
            "/health\n",
            " /health",
            "/health ",
        ),
        *("/health%2f..", "/health/../v1/models", "/metrics/../v1/models", "/metrics/", "/metricsx", "/metrics/x", "/metrics\\x"),
        *(
            "/health;/v1/models",
            "/health?x",
            "/health#x",
            "http://engine/health",
            "/v1/health",
            "/./health",
            "/ｈealth",
            "/healtĥ",
        ),
        *("/v1/models", "/invocations", "/tokenize", "/scale_elastic_ep", "/ping", "/version", "/load", "/docs", "/openapi.json"),
    ],
)
def test_all_else_is_closed(path: str) -> None:
    for decoded in {path, unquote(path)}:
        passed = through(one, path=decoded, raw_path=path.encode("utf-8"), root_path="")
        assert passed.scope is None
        assert passed.sent[0]["status"] == 401
        assert through(one, RIGHT, path=decoded).scope is not None


@given(
    path=st.text() | st.from_regex(r"[/.%;]{0,3}(health|metrics)[/.%;?#a-z0-9]{0,6}", fullmatch=True),
    method=st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]),
    root_path=st.sampled_from(["", "/", "/health", "/h", "/v1", "/metrics/"]),
    kind=st.sampled_from(["http", "websocket"]),
)
@example(path="/health", method="GET", root_path="", kind="http")
@example(path="/metrics", method="HEAD", root_path="/v1", kind="http")
@example(path="/health", method="GET", root_path="", kind="websocket")
def test_no_other_path_is_open(path: str, method: str, root_path: str, kind: str) -> None:
    passed = through(one, kind=kind, path=path, method=method, root_path=root_path)
    if passed.scope is None:
        assert passed.sent
    else:
        assert (path in OPEN, method in ("GET", "HEAD"), kind) == (True, True, "http")


@given(st.lists(st.tuples(st.sampled_from([HEADER.encode(), b"authorization", b"x-other"]), st.binary()), max_size=3))
def test_no_other_header_opens(headers: list[tuple[bytes, bytes]]) -> None:
    known = [value for name, value in headers if name == HEADER.encode()] == [SECRET.encode()]
    assert (through(one, *headers, path="/v1/models").scope is not None) == known


@pytest.mark.parametrize("root_path", ["/health", "/metrics", "/h", "/"])
def test_a_root_path_that_is_cut_off_an_open_path_closes_it(root_path: str) -> None:
    path = "/metrics" if root_path == "/metrics" else "/health"
    assert through(one, path=path, root_path=root_path).scope is None
    assert through(one, path=root_path + path, root_path=root_path).scope is None


def test_a_path_that_was_written_otherwise_is_closed() -> None:
    """The server decodes it to an open one, but what lies behind may read what was written."""
    for raw_path in (b"/%68ealth", b"/x/../health", b"http://engine/health", b""):
        assert through(one, path="/health", raw_path=raw_path).scope is None


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " ",
            SECRET[:-1],
            SECRET + "x",
            SECRET.upper(),
            f" {SECRET}",
            f"{SECRET},{SECRET}",
            f"{SECRET}\n",
            "Bearer " + SECRET,
        ),
        *(OLD_SECRET, "ü"),
    ],
)
def test_a_wrong_secret(value: str) -> None:
    header = (HEADER.encode(), value.encode())
    passed = through(one, header, path="/v1/models")
    assert passed.scope is None
    assert through(one, header, RIGHT, path="/v1/models").scope is None
    assert through(one, RIGHT, header, path="/v1/models").scope is None


def test_vllms_own_header_is_not_ours() -> None:
    assert through(one, (b"authorization", f"Bearer {SECRET}".encode()), path="/v1/models").scope is None


def test_the_secret_goes_no_further_and_all_else_does() -> None:
    other = (b"authorization", b"Bearer other")
    for path in ("/v1/models", "/health"):
        passed = through(one, other, RIGHT, path=path, state={"a": 1})
        assert passed.scope == {"type": "http", "method": "GET", "headers": [other], "path": path, "state": {"a": 1}}
        assert passed.sent == []


def test_the_refusal_is_an_error_object() -> None:
    start, body = through(one, path="/v1/models").sent
    assert start["status"] == 401
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": str(len(body["body"])).encode(),
    }
    error = json.loads(body["body"])["error"]
    assert SECRET not in error.pop("message")
    assert error == {"type": "authentication_error", "param": None, "code": "engine_secret"}


def test_a_websocket_is_closed_before_it_is_accepted() -> None:
    for path in ("/v1/realtime", "/health", "/metrics"):
        passed = through(one, kind="websocket", path=path)
        assert passed.scope is None
        assert [(message["type"], message["code"]) for message in passed.sent] == [("websocket.close", 4401)]
    assert through(one, RIGHT, kind="websocket", path="/v1/realtime").scope is not None


def test_the_lifespan_passes_and_an_unknown_kind_does_not() -> None:
    assert through(one, kind="lifespan").scope == {"type": "lifespan", "headers": []}
    assert through(one, kind="webtransport", method="GET", path="/health").scope is None


# Where the secret comes from


def test_any_line_of_the_file_is_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(f"\n{OLD_SECRET}\r\n  {SECRET}\t\n\n".encode())
    guard = load_guard({"SERVING_ENGINE_SECRET_FILE": str(path)})
    for secret in (OLD_SECRET, SECRET):
        assert through(guard, (HEADER.encode(), secret.encode()), path="/v1/models").scope is not None
    for wrong in ("", f"{OLD_SECRET}\r\n  {SECRET}", OLD_SECRET + SECRET):
        assert through(guard, (HEADER.encode(), wrong.encode()), path="/v1/models").scope is None


SPOILT = [
    (None, None, "the guard has no secret: set SERVING_ENGINE_SECRET_FILE or SERVING_ENGINE_SECRET"),
    (SECRET, SECRET.encode(), "are both set"),
    ("", None, "SERVING_ENGINE_SECRET holds no secret|SERVING_ENGINE_SECRET: holds no secret"),
    (" \n ", None, "holds no secret"),
    (None, b"", "secret holds no secret|holds no secret"),
    (None, b"\r\n \n", "holds no secret"),
    ("two words", None, "printable ASCII"),
    ("schlüssel", None, "printable ASCII"),
    (None, b"\xef\xbb\xbfwith-a-mark\n", "printable ASCII"),
    (None, b"right\nwr\0ng\n", "printable ASCII"),
    (None, "nowhere", "nowhere cannot be read: No such file"),
]


@pytest.mark.parametrize(("value", "content", "message"), SPOILT)
def test_without_a_usable_secret_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, content: bytes | str | None, message: str
) -> None:
    """The guard, which is alone in the engine, and the launcher before it say the same."""
    environ = {} if value is None else {"SERVING_ENGINE_SECRET": value}
    if content is not None:
        path = tmp_path / "secret"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path = tmp_path / content
        environ["SERVING_ENGINE_SECRET_FILE"] = str(path)
    with pytest.raises(Exception, match=message) as caught:
        load_guard(environ)
    assert type(caught.value).__name__ == "NoSecret"
    for name, given_value in environ.items():
        monkeypatch.setenv(name, given_value)
    if environ:
        with pytest.raises(ConfigurationError, match=message) as refused:
            plan()
        told = f"{caught.value}{refused.value}"
        assert not any(secret in told for secret in (SECRET, "two words", "schlüssel", "with-a-mark", "right"))


def test_the_file_needs_nothing_but_the_standard_library_of_python_3_10(tmp_path: Path) -> None:
    (tmp_path / FILE.name).write_bytes(FILE.read_bytes())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import serving_guard; print(serving_guard.Guard.__name__)"
    environ = {"SERVING_ENGINE_SECRET": SECRET}
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=environ, capture_output=True, text=True, timeout=180)
    assert (run.stdout.strip(), run.stderr) == ("Guard", "")
    ast.parse(FILE.read_text(), feature_version=(3, 10))
    assert sorted(path.name for path in GUARD_FOLDER.iterdir() if path.name != "__pycache__") == [FILE.name]


# The launcher


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SERVING_") and name != "SERVING_CACHE_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def plan() -> EngineCommand:
    return plan_engine("smollm2-135m-cpu", catalog_root=catalog_dir(), cache_dir=Path("/cache"), host="127.0.0.1", port=8001)


def test_without_a_secret_the_engine_is_as_it_was() -> None:
    command = plan()
    assert "--middleware" not in command.argv
    assert "PYTHONPATH" not in command.environment


@pytest.mark.parametrize("inherited", ["", "/a", f"/a{os.pathsep}/b"])
def test_with_a_secret_the_guard_rides_along_and_the_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch, inherited: str) -> None:
    plain = plan()
    monkeypatch.setenv("SERVING_ENGINE_SECRET", SECRET)
    monkeypatch.setenv("PYTHONPATH", inherited)
    command = plan()
    assert command.argv == (*plain.argv, "--middleware", GUARD)
    assert command.environment == plain.environment | {
        "PYTHONPATH": os.pathsep.join([str(GUARD_FOLDER), *([inherited] if inherited else [])])
    }
    assert SECRET not in command.shell()


def test_the_printed_command_does_not_hold_the_secret() -> None:
    for words in ([], ["--json"]):
        run = subprocess.run(
            [sys.executable, "-m", "serving", "engine", "smollm2-135m-cpu", "--dry-run", *words],
            env={**os.environ, "SERVING_ENGINE_SECRET": SECRET, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert run.returncode == 0, run.stderr
        assert GUARD in run.stdout
        assert SECRET not in run.stdout + run.stderr


def test_a_misspelt_variable_is_no_open_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_ENGINE_SECRETS", SECRET)
    with pytest.raises(
        ConfigurationError, match=r"SERVING_ENGINE_SECRETS is not a setting; did you mean SERVING_ENGINE_SECRET\?"
    ):
        plan()
    monkeypatch.delenv("SERVING_ENGINE_SECRETS")
    monkeypatch.setenv("serving_engine_secret", SECRET)
    with pytest.raises(ConfigurationError, match="serving_engine_secret must be written in capitals"):
        plan()


@pytest.mark.parametrize("name", ["SERVING_ENGINE_SECRET", "SERVING_ENGINE_SECRET_FILE"])
def test_the_engine_inherits_its_secret_and_no_other_setting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    became: list[dict[str, str]] = []
    monkeypatch.setenv(name, "given")
    for other in ("SERVING_AUTH__API_KEY", "SERVING_RELAY__ENGINE_SECRET", "SERVING_CACHE_DIR"):
        monkeypatch.setenv(other, "kept back")
    monkeypatch.setattr(launch.os, "execvpe", lambda program, argv, environment: became.append(environment))
    launch.become_engine(EngineCommand(("engine",), {"ADDED": "1"}))
    (environment,) = became
    assert {key: value for key, value in environment.items() if key.startswith("SERVING_")} == {name: "given"}
    assert environment["ADDED"] == "1"


# The gateway


def test_the_gateways_secret_comes_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().relay.sent_secret() is None
    path = tmp_path / "secret"
    path.write_text(f"\n{SECRET}\n{OLD_SECRET}\n")
    with monkeypatch.context() as patch:
        patch.setenv("SERVING_RELAY__ENGINE_SECRET", f"{SECRET}\n")
        settings = load_settings()
        assert settings.relay.sent_secret() == SECRET
        assert SECRET not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET_FILE", str(path))
    assert load_settings().relay.sent_secret() == SECRET
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET", SECRET)
    with pytest.raises(ConfigurationError, match="engine_secret and engine_secret_file are both given"):
        load_settings()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "holds no secret"),
        ("a\r\nx-other: b", "more than one secret|printable ASCII"),
        ("two words", "printable ASCII"),
        ("one\ntwo", "more than one secret"),
    ],
)
def test_a_gateways_secret_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET", value)
    with pytest.raises(ConfigurationError, match=rf"^SERVING_RELAY__ENGINE_SECRET: relay.engine_secret: .*({message})") as caught:
        load_settings()
    assert not value or value not in str(caught.value)


def test_a_gateways_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"relay.engine_secret_file: .*nowhere cannot be read: No such file"):
        load_settings()
    path = tmp_path / "secret"
    path.write_text(SECRET)
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET_FILE", str(path))
    settings = load_settings()
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"relay.engine_secret_file: .* is gone"):
        settings.relay.sent_secret()


def gateway_to(url: str, secret: str | None) -> RunningGateway:
    return RunningGateway(
        Settings(
            endpoints=(EndpointSettings(name="e1", url=url, model="tiny"),),
            relay=RelaySettings(engine_secret=secret),
            probe=ProbeSettings(period_seconds=0.1, timeout_seconds=10),
        )
    )


async def ready(gateway: RunningGateway) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (await ask(gateway.url, "/readyz")).status != 200:
            await asyncio.sleep(0.05)


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_the_secret_goes_to_engines_once_with_each_request(secret: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with ScriptedEngine() as engine, gateway_to(engine.url, secret) as gateway:
        await ready(gateway)
        answer = await ask(gateway.url, "/v1/chat/completions", CHAT)
        assert answer.status == 200
        metrics = (await ask(gateway.url, "/metrics")).body
    expected = [] if secret is None else [secret]
    records = [*engine.log.requests, *engine.log.control_requests]
    assert {record.path for record in records} >= {"/v1/chat/completions", "/health", "/v1/models"}
    for record in records:
        assert [value for name, value in record.headers if name.lower() == HEADER] == expected
    assert SECRET not in caplog.text
    assert SECRET.encode() not in metrics + answer.body + json.dumps(answer.headers).encode()


async def test_a_clients_header_of_that_name_stays_behind() -> None:
    async with ScriptedEngine() as engine, gateway_to(engine.url, SECRET) as gateway:
        await ready(gateway)
        await ask(gateway.url, "/v1/chat/completions", CHAT, headers={HEADER: "forged"})
    assert [value for name, value in engine.log.requests[0].headers if name.lower() == HEADER] == [SECRET]


# A real engine


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """A vLLM with the guard, all its documentation and every route that a variable can switch on."""
    folder = tmp_path_factory.mktemp("guarded")
    secrets = folder / "secret"
    secrets.write_text(f"{OLD_SECRET}\n{SECRET}\n")
    environment = {
        "PYTHONPATH": str(GUARD_FOLDER),
        "SERVING_ENGINE_SECRET_FILE": str(secrets),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    arguments = ("--middleware", GUARD, "--enable-tokenizer-info-endpoint")
    with running_engine(tiny_model(), folder / "engine.log", arguments, environment=environment) as engine:
        yield engine


Answer = tuple[int, bytes]
Direct = Callable[..., Answer]


@pytest.fixture
def direct(guarded: RealEngine) -> Iterator[Direct]:
    """Ask the engine over one connection: method, path exactly as it goes out, secret."""
    connection = http.client.HTTPConnection(urlsplit(guarded.url).netloc, timeout=180)

    def once(method: str, path: str, secret: str | None = None, body: Any = None) -> Answer:
        headers = {} if secret is None else {HEADER: secret}
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers | ({} if body is None else {"content-type": "application/json"}))
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield once
    connection.close()


def routes_of(guarded: RealEngine, document: bytes) -> set[str]:
    """All routes of the engine: those that it logs when it starts and those of its documentation."""
    logged = set(re.findall(r"Route: (/[^\s,]*)", guarded.log.read_text(errors="replace")))
    return logged | set(json.loads(document)["paths"]) | {"/docs", "/redoc", "/openapi.json", "/metrics"}


@pytest.mark.engine
def test_every_route_of_vllm_wants_the_secret(guarded: RealEngine, direct: Direct) -> None:
    status, document = direct("GET", "/openapi.json", SECRET)
    assert status == 200
    routes = routes_of(guarded, document)
    known = {"/invocations", "/scale_elastic_ep", "/tokenize", "/v1/models", "/health", "/v1/chat/completions", "/ping"}
    assert routes >= known | {"/collective_rpc", "/sleep", "/tokenizer_info", "/adapters", "/load"}, sorted(routes)
    open_ones = set()
    for route in sorted(routes):
        path = re.sub(r"\{[^}]*\}", "x", route)
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            for secret in (None, "wrong"):
                status, body = direct(method, path, secret, body={} if method in ("POST", "PUT", "DELETE") else None)
                if status != 401:
                    open_ones.add((method, path, status))
                elif method != "HEAD":
                    assert json.loads(body)["error"]["code"] == "engine_secret"
    assert open_ones == {("GET", "/health", 200), ("HEAD", "/health", 405), ("GET", "/metrics", 200), ("HEAD", "/metrics", 200)}


@pytest.mark.engine
@pytest.mark.parametrize(
    "path",
    [
        *("//health", "/health/", "/HEALTH", "/health%2f..", "/%68ealth", "/health/../v1/models", "/metrics/../v1/models"),
        *("/metrics/", "/metricsx", "/metrics%2f..%2fv1%2fmodels", "/v1/models?/health", "/health;x", "http://engine/v1/models"),
    ],
)
def test_a_trick_with_the_path(direct: Direct, path: str) -> None:
    assert direct("GET", path)[0] == 401


@pytest.mark.engine
@pytest.mark.parametrize("secret", [SECRET, OLD_SECRET])
def test_with_a_secret_the_engine_answers(direct: Direct, secret: str) -> None:
    status, body = direct("GET", "/v1/models", secret)
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "tiny")
    assert direct("POST", "/v1/chat/completions", secret, CHAT)[0] == 200
    assert direct("POST", "/tokenize", secret, {"model": "tiny", "prompt": "Hello"})[0] == 200
    assert b"vllm:" in direct("GET", "/metrics")[1]


@pytest.mark.engine
async def test_a_websocket_is_refused(guarded: RealEngine) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    for path in ("/v1/realtime", "/health"):
        assert (await ask(guarded.url, path, headers=upgrade)).status == 403


@pytest.mark.engine
async def test_a_gateway_with_the_secret_serves(guarded: RealEngine) -> None:
    async with gateway_to(guarded.url, SECRET) as gateway:
        await ready(gateway)
        answer = await ask(gateway.url, "/v1/chat/completions", CHAT)
        assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 4)
        stream = await ask(gateway.url, "/v1/chat/completions", CHAT | {"stream": True})
        assert stream.is_done


@pytest.mark.engine
@pytest.mark.parametrize(
    ("secret", "reason"),
    [("wrong", "wants another secret than relay.engine_secret"), (None, "wants a secret; give it as relay.engine_secret")],
)
async def test_a_gateway_without_the_secret_says_why_it_is_not_ready(
    guarded: RealEngine, caplog: pytest.LogCaptureFixture, secret: str | None, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway_to(guarded.url, secret) as gateway:
        async with asyncio.timeout(HANG_SECONDS):
            while reason not in caplog.text:
                await asyncio.sleep(0.05)
        assert (await ask(gateway.url, "/readyz")).status == 503
        answer = await ask(gateway.url, "/v1/chat/completions", CHAT)
        assert (answer.status, answer.json["error"]["code"]) == (503, "model_unavailable")
    assert "wrong" not in caplog.text


@pytest.mark.engine
def test_vllm_does_not_start_with_a_guard_that_has_no_secret(tmp_path: Path) -> None:
    arguments = ("--middleware", GUARD)
    with pytest.raises(EngineDied, match="the guard has no secret: set SERVING_ENGINE_SECRET_FILE or SERVING_ENGINE_SECRET"):
        with running_engine(tiny_model(), tmp_path / "log", arguments, environment={"PYTHONPATH": str(GUARD_FOLDER)}):
            pytest.fail("it serves")
