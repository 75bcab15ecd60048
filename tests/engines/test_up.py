"""`serving up` before anything is started: settings, ports, the two programs and the text to paste."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.argv import EngineCommand
from serving.core.errors import ConfigurationError
from serving.engines import up
from serving.engines.kept import Program, rotate_log
from serving.engines.supervise import StopSignals
from serving.settings import catalog_dir, load_settings
from tests.doubles.real_engine import free_port

KEY = "sk-very-secret"
Planned = Callable[[up.UpOptions], tuple[Program, Program, dict[str, Any]]]


class Lines:
    """A screen that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    fail = say

    def starting(self, seconds: float, log_tail: list[str]) -> None: ...

    def started(self) -> None: ...


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> up.UpOptions:
    monkeypatch.setattr(up, "prepare_engine", lambda *_, **__: EngineCommand(("engine",), {"ADDED": "1"}))
    return up.UpOptions(
        profile="smollm2-135m-cpu",
        catalog_root=catalog_dir(),
        port=free_port(),
        engine_port=free_port(),
        log_dir=tmp_path / "logs",
    )


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Runs all but the supervision, and tells what would be supervised."""

    def plan(options: up.UpOptions) -> tuple[Program, Program, dict[str, Any]]:
        taken: list[tuple[Program, Program, dict[str, Any]]] = []

        class Supervisor:
            def __init__(self, engine: Program, gateway: Program, **rest: Any) -> None:
                taken.append((engine, gateway, rest))

            def run(self) -> int:
                return 0

        monkeypatch.setattr(up, "Supervisor", Supervisor)
        assert up.run_up(options, Lines()) == 0
        return taken[0]

    return plan


def test_an_address_that_others_reach_needs_a_key(options: up.UpOptions) -> None:
    with pytest.raises(ConfigurationError, match=r"server\.host: 0\.0\.0\.0 can be reached from other machines"):
        up.run_up(replace(options, host="0.0.0.0"), Lines())


def test_keys_of_a_database_are_a_blank_to_fill(options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_DATABASE__URL", "sqlite:/var/lib/serving/serving.db")
    _, _, rest = planned(options)
    assert "Authorization: Bearer YOUR_KEY" in rest["announcement"]


def test_the_gateway_gets_the_engine_as_an_endpoint_and_the_address(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_AUTH__API_KEY", "k")
    _, gateway, _ = planned(replace(options, host="0.0.0.0"))
    assert gateway.argv[1:] == ("-m", "serving", "gateway")
    assert gateway.environment["SERVING_SERVER__HOST"] == "0.0.0.0"
    assert gateway.environment["SERVING_SERVER__PORT"] == str(options.port)
    assert json.loads(gateway.environment["SERVING_ENDPOINTS"]) == [
        {
            "name": "local",
            "url": f"http://127.0.0.1:{options.engine_port}",
            "model": "smollm2-135m-instruct",
            "tasks": ["generate"],
            "pool": "smollm2-135m-cpu",
            "target": "cpu-epyc",
        }
    ]
    assert (gateway.host, gateway.ready_path) == ("127.0.0.1", "/livez")


def test_the_gateway_is_told_what_the_engine_runs_on(
    options: up.UpOptions, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gateway, _ = planned(options)
    (pool,) = json.loads(gateway.environment["SERVING_ROUTING__POOLS"]).values()
    assert set(pool) == {"dollars_per_hour"}, "one accelerator, as is taken anyhow"
    assert gateway.environment["SERVING_CATALOG_DIR"] == str(options.catalog_root), "where the prices are"
    monkeypatch.setenv("SERVING_ENDPOINTS", '[{"name": "x", "url": "http://x:1", "model": "x", "pool": "mine"}]')
    monkeypatch.setenv("SERVING_ROUTING__POOLS", '{"mine": {"dollars_per_hour": 7}}')
    _, gateway, _ = planned(replace(options, profile="glm-5.2-mxfp4-mi355x"))
    known = json.loads(gateway.environment["SERVING_ROUTING__POOLS"])
    assert known == {"mine": {"dollars_per_hour": 7.0}, "glm-5.2-mxfp4-mi355x": {"accelerators": 8}}


def test_what_is_rented_by_the_cpu_costs_what_this_machine_has_of_them(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(10)))
    _, gateway, _ = planned(options)
    assert json.loads(gateway.environment["SERVING_ROUTING__POOLS"]) == {"smollm2-135m-cpu": {"dollars_per_hour": 0.33}}
    monkeypatch.setenv("SERVING_TARGETS", '{"cpu-epyc": {"dollars_per_accelerator_hour": 5}}')
    _, gateway, _ = planned(options)
    assert "SERVING_ROUTING__POOLS" not in gateway.environment, "the user's price of the target holds"


def test_the_users_file_is_passed_on_with_its_endpoints_and_times(
    options: up.UpOptions, planned: Planned, tmp_path: Path
) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "server: {drain_delay_seconds: 2, shutdown_grace_seconds: 5}\n"
        "endpoints: [{name: other, url: 'http://127.0.0.1:9', model: other}]\n"
    )
    _, gateway, _ = planned(replace(options, config=config))
    assert gateway.argv[-2:] == ("--config", str(config))
    assert [endpoint["name"] for endpoint in json.loads(gateway.environment["SERVING_ENDPOINTS"])] == ["other", "local"]
    assert gateway.stop_seconds == 2 + 5 + up.STOP_MARGIN_SECONDS


def test_settings_may_speak_of_the_engine_of_up(options: up.UpOptions, planned: Planned, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "routing: {pools: {smollm2-135m-cpu: {dollars_per_hour: 3}}}\n"
        "models: {gpt-4o: {alias_of: smollm2-135m-instruct}}\n"
        "prices: {pools: {smollm2-135m-cpu: {prompt: 1, output: 2}}}\n"
        "tenants: {a: {models: [smollm2-135m-instruct], limits: {dollars_per_day: 5}}}\n"
        "auth: {api_key: sk-very-secret-and-long}\n"
    )
    _, gateway, _ = planned(replace(options, config=config))
    assert "SERVING_ROUTING__POOLS" not in gateway.environment, "the file's price holds"
    with pytest.raises(ConfigurationError, match=r"models\.gpt-4o\.alias_of: .* is neither under models nor served"):
        load_settings(config)
    assert load_settings(config, runs_gateway=False).server.port == 8000


def test_the_name_of_the_engine_of_up_is_taken(options: up.UpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_ENDPOINTS", '[{"name": "local", "url": "http://127.0.0.1:9", "model": "x"}]')
    with pytest.raises(ConfigurationError, match="endpoints: the name 'local' belongs to up's own engine"):
        up.run_up(options, Lines())


def test_the_key_reaches_the_gateway_and_neither_engine_nor_screen(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_AUTH__API_KEY", KEY)
    engine, gateway, rest = planned(options)
    assert gateway.environment["SERVING_AUTH__API_KEY"] == KEY
    assert KEY not in "".join((*engine.environment.values(), *engine.argv))
    assert engine.environment["ADDED"] == "1"
    assert KEY not in rest["announcement"]
    assert '-H "Authorization: Bearer $SERVING_AUTH__API_KEY"' in rest["announcement"]


@pytest.mark.parametrize(
    ("variables", "page"),
    [
        ({}, "http://127.0.0.1:{port}/ui"),
        ({"SERVING_SERVER__OPERATOR_PORT": "9900"}, "http://127.0.0.1:9900/ui"),
        ({"SERVING_SERVER__OPERATOR_PORT": "9900", "SERVING_SERVER__OPERATOR_HOST": "::"}, "http://[::1]:9900/ui"),
        ({"SERVING_SERVER__OPERATOR_PORT": "0"}, None),
    ],
)
def test_the_address_of_the_page_is_said(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], page: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lines = [line for line in planned(options)[2]["announcement"].splitlines() if line.startswith("page ")]
    assert [line.split()[1] for line in lines] == ([] if page is None else [page.format(port=options.port)])


def test_each_run_has_a_secret_of_its_own_between_gateway_and_engine(options: up.UpOptions, planned: Planned) -> None:
    secrets = []
    for _ in range(2):
        engine, gateway, rest = planned(options)
        secret = engine.environment["SERVING_ENGINE_SECRET"]
        assert gateway.environment["SERVING_RELAY__ENGINE_SECRET"] == secret
        assert "SERVING_ENGINE_SECRET_FILE" not in engine.environment
        assert secret not in "".join((*engine.argv, *gateway.argv, rest["announcement"]))
        assert rest["announcement"].count(f":{options.engine_port}") == 1
        assert f":{options.engine_port}/metrics " in rest["announcement"]
        secrets.append(secret)
    assert len(set(secrets)) == 2
    assert min(map(len, secrets)) >= 43


def test_a_secret_that_other_engines_want_is_the_local_ones_too(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text("of-the-fleet\n")
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET_FILE", str(path))
    engine, gateway, _ = planned(options)
    assert engine.environment["SERVING_ENGINE_SECRET"] == "of-the-fleet"
    assert "SERVING_RELAY__ENGINE_SECRET" not in gateway.environment
    assert gateway.environment["SERVING_RELAY__ENGINE_SECRET_FILE"] == str(path)


def test_a_secret_given_for_engines_is_taken_over(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_ENGINE_SECRET", "of-the-user")
    engine, gateway, _ = planned(options)
    assert engine.environment["SERVING_ENGINE_SECRET"] == "of-the-user"
    assert gateway.environment["SERVING_RELAY__ENGINE_SECRET"] == "of-the-user"


def test_a_file_of_secrets_for_engines_is_taken_over_with_all_of_them(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    path.write_text("new\nold\n")
    monkeypatch.setenv("SERVING_ENGINE_SECRET_FILE", str(path))
    engine, gateway, _ = planned(options)
    assert engine.environment["SERVING_ENGINE_SECRET_FILE"] == str(path)
    assert "SERVING_ENGINE_SECRET" not in engine.environment
    assert gateway.environment["SERVING_RELAY__ENGINE_SECRET"] == "new"
    monkeypatch.setenv("SERVING_RELAY__ENGINE_SECRET", "old")
    engine, gateway, _ = planned(options)
    assert engine.environment["SERVING_ENGINE_SECRET_FILE"] == str(path)
    assert gateway.environment["SERVING_RELAY__ENGINE_SECRET"] == "old"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SERVING_ENGINE_SECRET": "a", "SERVING_RELAY__ENGINE_SECRET": "b"}, "relay.engine_secret is not among the secrets"),
        ({"SERVING_ENGINE_SECRET": " "}, "SERVING_ENGINE_SECRET: holds no secret"),
        ({"SERVING_ENGINE_SECRET_FILE": "/nowhere"}, "SERVING_ENGINE_SECRET_FILE: /nowhere cannot be read"),
    ],
)
def test_secrets_that_cannot_work_are_one_sentence(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        planned(options)


def test_the_models_folder_is_handed_on(
    options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def prepare(*_: object, **given: Any) -> EngineCommand:
        asked.append(given["model_path"])
        return EngineCommand(("engine",), {})

    monkeypatch.setattr(up, "prepare_engine", prepare)
    planned(replace(options, model_path=tmp_path))
    assert asked == [tmp_path]


def test_the_local_engine_is_always_guarded(options: up.UpOptions, planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def prepare(*_: object, **given: Any) -> EngineCommand:
        asked.append(given["guard"])
        return EngineCommand(("engine",), {})

    monkeypatch.setattr(up, "prepare_engine", prepare)
    planned(options)
    assert asked == [True]


def test_the_commands_can_be_pasted(options: up.UpOptions, planned: Planned) -> None:
    _, _, rest = planned(options)
    once, stream = (shlex.split(line) for line in rest["announcement"].splitlines() if line.startswith("curl"))
    assert f"http://127.0.0.1:{options.port}/v1/chat/completions" in once
    assert "Authorization" not in rest["announcement"]
    question = json.loads(once[-1])
    assert question == {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }
    assert "--no-buffer" in stream
    assert json.loads(stream[-1]) == question | {"stream": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": "smollm2-135m-cpx"}, "did you mean smollm2-135m-cpu"),
        ({"config": Path("/nowhere.yaml")}, "/nowhere.yaml: cannot be read"),
        ({"port": 8001, "engine_port": 8001}, "--port and --engine-port are both 8001"),
        ({"log_dir": Path("/dev/null/logs")}, "give --log-dir"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: up.UpOptions, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        up.run_up(replace(options, **change), Lines())


@pytest.mark.parametrize(("field", "option"), [("port", "--port"), ("engine_port", "--engine-port")])
def test_a_taken_port_is_found_before_the_engine_is_prepared(
    options: up.UpOptions, monkeypatch: pytest.MonkeyPatch, field: str, option: str
) -> None:
    def prepare(*_: object, **__: object) -> EngineCommand:
        raise AssertionError("too late")

    monkeypatch.setattr(up, "prepare_engine", prepare)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is taken .*{option}"):
            up.run_up(replace(options, **{field: port}), Lines())


def test_a_port_that_the_system_would_choose_is_refused(options: up.UpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_SERVER__PORT", "0")
    with pytest.raises(ConfigurationError, match="give --port"):
        up.run_up(replace(options, port=None), Lines())


def test_an_interrupt_while_the_model_is_fetched_is_a_success(options: up.UpOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_: object, **__: object) -> EngineCommand:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        raise AssertionError("not reached")

    monkeypatch.setattr(up, "prepare_engine", prepare)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert up.run_up(options, Lines()) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_double_delivery_of_one_interrupt_is_one_wish() -> None:
    now = 100.0
    with StopSignals(clock=lambda: now).caught() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.wishes == 1
        now += 1.0
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.wishes == 2
        signals.wishes = 0


def test_a_new_log_keeps_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "engine.log"
    rotate_log(log)
    for text in ("first", "second"):
        log.write_text(text)
        rotate_log(log)
    assert not log.exists()
    assert (tmp_path / "logs" / "engine.log.1").read_text() == "second"
