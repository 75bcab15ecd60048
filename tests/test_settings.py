"""Settings come from the environment and one file; what is wrong is named, and no secret is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from serving.core.errors import ConfigurationError
from serving.settings import EndpointSettings, Settings, TracingSettings, cache_dir, catalog_dir, load_settings

SECRET = "sk-never-shown"
ENDPOINTS = '[{"name": "e1", "url": "http://engine:8000", "model": "tiny"}]'

WriteFile = Callable[[str], Path]
SetVariable = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SERVING_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file_with(tmp_path: Path) -> WriteFile:
    def write(text: str) -> Path:
        path = tmp_path / "gateway.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def set_variable(monkeypatch: pytest.MonkeyPatch) -> SetVariable:
    return monkeypatch.setenv


def complaint(path: Path | None = None) -> str:
    """What the operator reads about wrong settings."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path)
    return str(caught.value)


# Where values come from


def test_without_file_and_variables_all_has_a_default() -> None:
    settings = load_settings()
    assert (settings.server.port, settings.endpoints, settings.auth.api_key) == (8000, (), None)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_changes_nothing(file_with: WriteFile, text: str) -> None:
    assert load_settings(file_with(text)) == load_settings()


def test_a_variable_overrides_its_own_field_only(file_with: WriteFile, set_variable: SetVariable) -> None:
    path = file_with("server: {port: 1111, host: 0.0.0.0}\nlimits: {in_flight: 7}\n")
    set_variable("SERVING_SERVER__PORT", "2222")
    settings = load_settings(path)
    assert (settings.server.port, settings.server.host, settings.limits.in_flight) == (2222, "0.0.0.0", 7)


def test_a_variable_names_all_endpoints_as_json(file_with: WriteFile, set_variable: SetVariable) -> None:
    path = file_with("endpoints: [{name: other, url: 'http://other:1', model: m}]\n")
    set_variable("SERVING_ENDPOINTS", ENDPOINTS)
    assert [endpoint.name for endpoint in load_settings(path).endpoints] == ["e1"]


def test_the_command_lines_own_variables_are_no_mistake(set_variable: SetVariable) -> None:
    set_variable("SERVING_CACHE_DIR", "somewhere")
    set_variable("SERVING_CATALOG_DIR", "somewhere")
    load_settings()


def test_settings_are_frozen() -> None:
    settings = load_settings()
    for section, field, value in ((settings, "endpoints", ()), (settings.server, "port", 1)):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, field, value)


# What is wrong is named


def test_an_unknown_section_is_refused_with_the_nearest_name(file_with: WriteFile) -> None:
    path = file_with("sever: {port: 1}\n")
    assert complaint(path) == f"{path}: sever: is not a setting; did you mean server?"


def test_an_unknown_field_is_refused_with_the_nearest_name(file_with: WriteFile) -> None:
    path = file_with("server: {prot: 1}\n")
    assert complaint(path) == f"{path}: server.prot: is not a setting; did you mean server.port?"


def test_an_unknown_field_like_no_other_gets_no_advice(file_with: WriteFile) -> None:
    path = file_with("server: {zzz: 1}\n")
    assert complaint(path) == f"{path}: server.zzz: is not a setting"


def test_an_unknown_field_of_an_endpoint_is_refused(file_with: WriteFile) -> None:
    path = file_with("endpoints: [{name: e1, url: 'http://engine:1', model: m, modell: m}]\n")
    assert complaint(path).startswith(f"{path}: endpoints.0.modell: is not a setting")


def test_an_unknown_variable_is_refused_with_the_nearest_name(set_variable: SetVariable) -> None:
    set_variable("SERVING_SERVER__PROT", "1")
    assert complaint() == "environment: SERVING_SERVER__PROT is not a setting; did you mean SERVING_SERVER__PORT?"


def test_every_mistake_of_a_file_is_named(file_with: WriteFile) -> None:
    path = file_with("server: {port: 70000, host: [a]}\nrelay: {max_attempts: 4}\n")
    lines = complaint(path).splitlines()
    assert sorted(line.removeprefix(f"{path}: ").partition(":")[0] for line in lines) == [
        "relay.max_attempts",
        "server.host",
        "server.port",
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("server: {port: -1}", "server.port"),
        ("server: {port: http}", "server.port"),
        ("server: [1]", "server"),
        ("server:", "server"),
        ("limits: {in_flight: 0}", "limits.in_flight"),
        ("limits: {body_bytes: 1.5}", "limits.body_bytes"),
        ("relay: {connect_timeout_seconds: 0}", "relay.connect_timeout_seconds"),
        ("relay: {idle_timeout_seconds: .nan}", "relay.idle_timeout_seconds"),
        ("prices: {models: {m: {prompt: .nan}}}", "prices.models.m.prompt"),
        ("prices: {models: {m: {output: .inf}}}", "prices.models.m.output"),
        ("prices: {models: {m: {cached: true}}}", "prices.models.m.cached"),
        ("targets: {own: {dollars_per_accelerator_hour: true}}", "targets.own.dollars_per_accelerator_hour"),
        ("targets: {own: {accelerators_per_node: yes}}", "targets.own.accelerators_per_node"),
        ("server: {operator_port: true}", "server.operator_port"),
        ("health: {most_ejected_share: .nan}", "health.most_ejected_share"),
        ("tenants: {a: {limits: {dollars_per_day: true}}}", "tenants.a.limits.dollars_per_day"),
        ("logging: {level: loud}", "logging.level"),
        ("endpoints: {}", "endpoints"),
        ("endpoints: [{}]", "endpoints.0.name"),
        ("endpoints: [{name: 'Not a label', url: 'http://e:1', model: m}]", "endpoints.0.name"),
        ("endpoints: [{name: e1, url: 'http://e:1', model: ''}]", "endpoints.0.model"),
        ("auth: {keys: [{tenant: a, sha256: 'ABC'}]}", "auth.keys.0.sha256"),
    ],
)
def test_a_wrong_value_is_named_by_file_and_field(file_with: WriteFile, text: str, field: str) -> None:
    path = file_with(text)
    assert complaint(path).startswith(f"{path}: {field}: ")


def test_a_wrong_variable_is_named_even_beside_a_file(file_with: WriteFile, set_variable: SetVariable) -> None:
    set_variable("SERVING_SERVER__PORT", "http")
    assert complaint(file_with("")).startswith("SERVING_SERVER__PORT: server.port: ")


def test_a_variable_that_is_not_json_is_named(set_variable: SetVariable) -> None:
    set_variable("SERVING_ENDPOINTS", "http://engine:8000")
    assert "SERVING_ENDPOINTS" in complaint()


def test_a_wrong_value_inside_a_json_variable_names_the_variable(file_with: WriteFile, set_variable: SetVariable) -> None:
    set_variable("SERVING_ENDPOINTS", ENDPOINTS.replace("http:", "ftp:"))
    assert complaint(file_with("")).startswith("SERVING_ENDPOINTS: endpoints.0.url: ")


@pytest.mark.parametrize("text", ["- a\n", "just text\n", "1\n"])
def test_a_file_that_is_no_mapping_is_refused(file_with: WriteFile, text: str) -> None:
    path = file_with(text)
    assert complaint(path).startswith(f"{path}: must be a mapping of sections")


@pytest.mark.parametrize("text", ["a: [\n", "a: b: c\n", "x: !!python/object/apply:os.getcwd []\n", "a: \x00\n"])
def test_a_file_that_is_not_yaml_is_refused(file_with: WriteFile, text: str) -> None:
    path = file_with(text)
    assert complaint(path).startswith(f"{path}: is not YAML")


@pytest.mark.parametrize(
    "value",
    [
        "!!binary aGk=",
        "!!set {a}",
        '!!int "abc"',
        '!!int ""',
        '!!float "abc"',
        '!!bool "abc"',
        f"!{SECRET} x",
        f"*{SECRET}",
        "9" * 5000,
        "0x" + "f" * 5000,
        "[" * 3000,
        r'"\ud800"',
        r'"\0"',
        "&a [*a]",
        "{a: 1, a: 2}",
        "{1: 2}",
        "{[a]: 2}",
    ],
    ids=range(17),
)
def test_a_value_that_yaml_can_say_and_nobody_means_is_refused(file_with: WriteFile, value: str) -> None:
    path = file_with(f"logging:\n  level: {value}\n")
    message = complaint(path)
    assert message.startswith(f"{path}: is not YAML: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 500
    assert SECRET not in message


def test_a_section_given_twice_is_refused(file_with: WriteFile) -> None:
    path = file_with("server: {port: 1}\nlimits: {in_flight: 1}\nserver: {host: a}\n")
    assert complaint(path) == f"{path}: is not YAML: the key 'server' is given twice in line 3"


def test_mappings_may_still_be_merged(file_with: WriteFile) -> None:
    path = file_with("endpoints:\n- &e {name: e1, url: 'http://e:1', model: m}\n- {<<: *e, name: e2, url: 'http://e:2'}\n")
    assert [(e.name, e.model) for e in load_settings(path).endpoints] == [("e1", "m"), ("e2", "m")]


@pytest.mark.parametrize("name", ["SERVING_ENDPOINTS", "SERVING_AUTH__KEYS"])
def test_a_variable_nested_without_end_is_named(set_variable: SetVariable, name: str) -> None:
    set_variable(name, "[" * 5000)
    assert complaint().startswith(f"{name}: ")


@pytest.mark.parametrize("read", [cache_dir, catalog_dir])
def test_a_folder_of_nobody_is_refused(set_variable: SetVariable, read: Callable[[], Path]) -> None:
    name = f"SERVING_{read.__name__.upper()}"
    set_variable(name, "~nobody-of-that-name/x")
    with pytest.raises(ConfigurationError, match=name):
        read()


@pytest.mark.parametrize("field", ["host", "operator_host"])
@pytest.mark.parametrize("host", ["a" * 80, "a..b", "a b", r"a\tb"])
def test_a_host_that_no_name_can_be_is_refused(file_with: WriteFile, field: str, host: str) -> None:
    path = file_with(f'server: {{{field}: "{host}"}}')
    assert complaint(path).startswith(f"{path}: server.{field}: must be")


@pytest.mark.parametrize("host", ["", "::", "fe80::1%eth0", "bücher.example", "127.0.0.1"])
def test_a_host_is_taken(file_with: WriteFile, host: str) -> None:
    assert load_settings(file_with(f"server: {{host: '{host}'}}")).server.host == host


@pytest.mark.parametrize(("field", "value"), [("server.backlog", 2**31), ("relay.buffer_bytes", 2**62)])
def test_a_number_that_the_system_cannot_take_is_refused(file_with: WriteFile, field: str, value: int) -> None:
    section, _, name = field.partition(".")
    path = file_with(f"{section}: {{{name}: {value}}}")
    assert complaint(path).startswith(f"{path}: {field}: ")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    assert complaint(path).startswith(f"{path}: is not YAML")


def test_a_section_whose_name_is_not_text_is_refused(file_with: WriteFile) -> None:
    path = file_with("1: 2\n")
    assert complaint(path).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    assert complaint(path) == f"{path}: cannot be read: No such file or directory"


# Endpoints


@pytest.mark.parametrize(
    "url",
    [
        "engine:8000",
        "ftp://engine:8000",
        "https://",
        "https://engine:8000/v1",
        "http://",
        "http://:8000",
        "http://engine:port",
        "http://engine:99999",
        "http://[::1:8000",
        "http://engine:8000/v1",
        "http://engine:8000?x=1",
        "http://engine:8000#x",
        "http://user@engine:8000",
        "unix:relative.sock",
        "unix://host/engine.sock",
        "http://engine..svc:8000",
        "http://engine:8000\n",
        "http://eng\tine:8000",
        "http://eng ine:8000",
        "http://engine:0",
        "http://engine\x7f:8000",
        "http://eng\x00ine:8000",
        "unix:/run/a\x00b",
        "unix:/run/a\nb",
        "unix:/" + "a" * 108,
        "unix:/run/\udcff",
        "",
    ],
)
def test_an_address_that_cannot_be_an_engines_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        EndpointSettings(name="e1", url=url, model="m")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://engine:8000", "http://engine:8000"),
        ("http://engine:8000/", "http://engine:8000"),
        ("http://engine", "http://engine"),
        ("https://engine:8443/", "https://engine:8443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("unix:/run/engine.sock", "unix:/run/engine.sock"),
        ("unix:///run/engine.sock", "unix:///run/engine.sock"),
    ],
)
def test_an_engines_address_is_taken(url: str, kept: str) -> None:
    assert EndpointSettings(name="e1", url=url, model="m").url == kept


def test_two_endpoints_of_one_name_are_refused(file_with: WriteFile) -> None:
    one = "{name: e1, url: 'http://engine:1', model: m}"
    path = file_with(f"endpoints: [{one}, {one}]\n")
    assert complaint(path) == f"{path}: endpoints: the name 'e1' is given twice"


# Retries


def test_the_retry_budget_is_set_field_by_field(file_with: WriteFile, set_variable: SetVariable) -> None:
    set_variable("SERVING_RELAY__RETRY_BUDGET__SHARE", "0.1")
    budget = load_settings(file_with("relay: {retry_budget: {least_per_second: 0}}\n")).relay.retry_budget
    assert (budget.share, budget.least_per_second, budget.window_seconds) == (0.1, 0.0, 10)


# TLS to engines


def test_half_of_a_client_pair_is_refused(file_with: WriteFile) -> None:
    path = file_with("relay: {engine_client_key: key.pem}\n")
    assert complaint(path) == (
        f"{path}: relay: engine_client_certificate and engine_client_key belong together; give both or none"
    )


# Traces


@pytest.mark.parametrize(
    "url",
    ["collector:4318", "grpc://collector:4317", "http://", "http://c:port", "http://u@c:4318", "http://c:4318/v1/traces?x=1", ""],
)
def test_an_address_that_takes_no_traces_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        TracingSettings(endpoint=url)


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_the_usual_path_of_traces_need_not_be_given(path: str) -> None:
    assert TracingSettings(endpoint=f"http://collector:4318{path}").endpoint == "http://collector:4318/v1/traces"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x key": SECRET}, "holds a name that no HTTP header can have"),
        ({"": SECRET}, "holds a name that no HTTP header can have"),
        ({"x-key": f"{SECRET}\r\nb: c"}, "x-key: must be printable ASCII"),
        ({"x-key": f"{SECRET}ü"}, "x-key: must be printable ASCII"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(
    file_with: WriteFile, headers: dict[str, str], says: str
) -> None:
    path = file_with(f"tracing: {{headers: {json.dumps(headers)}}}\n")
    assert complaint(path) == f"{path}: tracing.headers: {says}"


def test_the_receivers_key_comes_by_environment(set_variable: SetVariable) -> None:
    set_variable("SERVING_TRACING__HEADERS", json.dumps({"x-key": SECRET}))
    settings = load_settings()
    assert settings.tracing.headers["x-key"].get_secret_value() == SECRET
    assert SECRET not in repr(settings)


def test_opentelemetrys_own_variables_are_not_read(set_variable: SetVariable) -> None:
    set_variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert load_settings().tracing.endpoint is None


# Secrets


def test_one_key_listed_twice_is_refused(file_with: WriteFile) -> None:
    sha256 = "ab" * 32
    path = file_with(f"auth: {{keys: [{{tenant: a, sha256: {sha256}}}, {{tenant: b, sha256: {sha256}}}]}}\n")
    message = complaint(path)
    assert "listed twice" in message
    assert sha256 not in message


@pytest.mark.parametrize("value", ["", "  ", "\n"])
def test_an_empty_key_does_not_mean_no_key(set_variable: SetVariable, value: str) -> None:
    set_variable("SERVING_AUTH__API_KEY", value)
    assert "auth.api_key: is empty" in complaint()


@pytest.mark.parametrize("name", ["AUTH__API_KEY", "AUTH__CACHE_SECRET", "RELAY__ENGINE_SECRET"])
def test_a_secret_that_is_not_text_is_refused(set_variable: SetVariable, name: str) -> None:
    set_variable(f"SERVING_{name}", os.fsdecode(b"sk-\xff\xfe"))
    message = complaint()
    assert message.startswith(f"SERVING_{name}: ")
    assert "UTF-8" in message or "ASCII" in message
    assert "codec" not in message


def test_half_a_surrogate_pair_is_no_engine_secret(set_variable: SetVariable) -> None:
    set_variable("SERVING_RELAY", r'{"engine_secret": "sk-\ud800"}')
    assert "ASCII" in complaint()


def test_no_secret_is_in_any_rendering_of_the_settings(set_variable: SetVariable) -> None:
    for name in ("SERVING_AUTH__API_KEY", "SERVING_AUTH__CACHE_SECRET", "SERVING_RELAY__ENGINE_SECRET"):
        set_variable(name, SECRET)
    settings = load_settings()
    assert settings.auth.api_key is not None
    assert settings.auth.api_key.get_secret_value() == SECRET
    for rendered in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert SECRET not in rendered


@pytest.mark.parametrize(
    "text",
    [
        f"auth: {{api_key: [{SECRET}]}}",
        f"auth: {{api_key: {{{SECRET}: {SECRET}}}}}",
        f"auth: {SECRET}",
        f"auth: {{keys: [{{tenant: a, sha256: {SECRET}}}]}}",
        f"auth: {{keys: {SECRET}}}",
        f"auth:\n  api_key: '{SECRET}\n",
        f"auth:\n  api_key: {SECRET}: x\n",
        f"endpoints: [{{name: e1, url: 'http://user:{SECRET}@engine:1', model: m}}]",
    ],
)
def test_no_error_about_a_file_shows_a_secret(file_with: WriteFile, text: str) -> None:
    assert SECRET not in complaint(file_with(text))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVING_AUTH", f'{{"api_key": ["{SECRET}"]}}'),
        ("SERVING_AUTH", SECRET),
        ("SERVING_AUTH__KEYS", f"[{SECRET}"),
        ("SERVING_AUTH__KEYS", f'[{{"tenant": "a", "sha256": "{SECRET}"}}]'),
        ("SERVING_ENDPOINTS", f"{{bad {SECRET}"),
        ("SERVING_ENDPOINTS", f'["{SECRET}"]'),
        ("SERVING_ENDPOINTS", f'[{{"name": "e1", "url": "http://u:{SECRET}@engine:1", "model": "m"}}]'),
        ("SERVING_SERVER__PORT", SECRET),
        ("SERVING_AUTH__API_KEYY", SECRET),
    ],
)
def test_no_error_about_a_variable_shows_its_value(set_variable: SetVariable, name: str, value: str) -> None:
    set_variable(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback would show the value"


def _variables(values: dict[str, Any], prefix: str = "SERVING") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _variables(value, f"{prefix}{'__' if '_' in prefix else '_'}{name}".upper())
        elif value is not None:
            yield f"{prefix}__{name}".upper(), json.dumps(value) if isinstance(value, tuple) else str(value)


def test_each_field_can_be_given_by_a_variable(set_variable: SetVariable) -> None:
    defaults = load_settings()
    for name, value in _variables(defaults.model_dump(exclude={"auth": {"keys"}, "endpoints": True, "pools": True})):
        set_variable(name, value)
    assert load_settings() == defaults


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_cache_secret_is_none_that_keeps_tenants_apart(set_variable: SetVariable, value: str) -> None:
    set_variable("SERVING_AUTH__CACHE_SECRET", value)
    assert "cache_secret" in complaint()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("engine_secret: ''", "relay.engine_secret"),
        (f"engine_secret: two {SECRET}", "relay.engine_secret"),
        (f'engine_secret: "{SECRET}\\nmore"', "relay.engine_secret"),
        ("engine_secret_file: missing", "relay.engine_secret_file"),
        (f"engine_secret: {SECRET}, engine_secret_file: missing", "relay"),
    ],
)
def test_an_engine_secret_that_cannot_be_sent_is_refused_unshown(file_with: WriteFile, text: str, field: str) -> None:
    path = file_with(f"relay: {{{text}}}")
    message = complaint(path)
    assert message.startswith(f"{path}: {field}")
    assert SECRET not in message


def test_the_engine_secret_comes_from_a_value_or_a_file(tmp_path: Path, set_variable: SetVariable) -> None:
    assert load_settings().relay.sent_secret() is None
    (tmp_path / "secret").write_text(f"{SECRET}\nolder\n")
    set_variable("SERVING_RELAY__ENGINE_SECRET_FILE", str(tmp_path / "secret"))
    assert load_settings().relay.sent_secret() == SECRET
    (tmp_path / "secret").unlink()
    assert "cannot be read" in complaint()


# The edge


@pytest.mark.parametrize(
    "origin", ["https://a.example/", "a.example", "https://a.example/x", "https://u@a.example", "https://", ""]
)
def test_an_origin_is_written_as_browsers_write_it(file_with: WriteFile, origin: str) -> None:
    message = complaint(file_with(f"server: {{cors_origins: ['{origin}']}}"))
    assert "server.cors_origins.0: must be an origin" in message


def test_origins_are_compared_in_lower_case(file_with: WriteFile) -> None:
    path = file_with("server: {cors_origins: ['https://A.example:8443', '*']}")
    assert load_settings(path).server.cors_origins == ("https://a.example:8443", "*")


@pytest.mark.parametrize("text", ["tls_certificate: cert.pem", "tls_key: key.pem"])
def test_a_certificate_and_its_key_belong_together(file_with: WriteFile, text: str) -> None:
    assert "tls_certificate and tls_key belong together" in complaint(file_with(f"server: {{{text}}}"))


def test_operators_have_an_address_of_their_own(file_with: WriteFile) -> None:
    assert "operator_port" in complaint(file_with("server: {port: 8000, operator_port: 8000}"))
    load_settings(file_with("server: {host: 0.0.0.0, port: 8000, operator_host: 127.0.0.2, operator_port: 8000}"))


SHIPPED = sorted((Path(__file__).parent.parent / "configs" / "gateway").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_each_file_that_ships_is_read(path: Path) -> None:
    assert load_settings(path).endpoints


def test_an_endpoint_generates_unless_it_says_otherwise(file_with: WriteFile) -> None:
    path = file_with(
        "endpoints:\n"
        "- {name: e1, url: 'http://e:1', model: m}\n"
        "- {name: e2, url: 'http://e:2', model: n, tasks: [embed, score]}\n"
        "- {name: e3, url: 'http://e:3', model: n, tasks: [score, embed]}\n"
    )
    assert [endpoint.tasks for endpoint in load_settings(path).endpoints][:2] == [("generate",), ("embed", "score")]


@pytest.mark.parametrize("tasks", ["[]", "[chat]", "generate", "[generate, 1]"])
def test_tasks_are_of_a_closed_set(file_with: WriteFile, tasks: str) -> None:
    path = file_with(f"endpoints: [{{name: e1, url: 'http://e:1', model: m, tasks: {tasks}}}]\n")
    assert complaint(path).startswith(f"{path}: endpoints.0.tasks")


def test_endpoints_of_one_model_do_the_same(file_with: WriteFile) -> None:
    path = file_with(
        "endpoints:\n- {name: e1, url: 'http://e:1', model: m}\n- {name: e2, url: 'http://e:2', model: m, tasks: [embed]}\n"
    )
    assert complaint(path) == (
        f"{path}: endpoints: 'e1' and 'e2' serve the model 'm' with different tasks; give both the same tasks, or two models"
    )


# Models


def test_models_come_as_json_too_and_over_those_of_the_file(file_with: WriteFile, set_variable: SetVariable) -> None:
    path = file_with("models: {a: {}, b: {alias_of: a}}\n")
    set_variable("SERVING_MODELS", '{"b": {"alias_of": "c"}, "c": {}}')
    assert {name: model.alias_of for name, model in load_settings(path).models.items()} == {"a": None, "b": "c", "c": None}


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("{a: {alias_of: b}}", "models.a.alias_of: 'b' is neither under models nor served by an endpoint"),
        ("{a: {alias_of: a}}", "models.a.alias_of: goes round in a circle: a → a"),
        ("{a: {alias_of: b}, b: {alias_of: c}, c: {alias_of: b}}", "models.a.alias_of: goes round in a circle: a → b → c → b"),
        ("{a: {fallbacks: [tiny, b]}}", "models.a.fallbacks.1: 'b' is neither under models nor served by an endpoint"),
        ("{a: {fallbacks: [a]}}", "models.a.fallbacks.0: 'a' is the model itself or one that stands there already"),
        (
            "{a: {fallbacks: [b]}, b: {alias_of: a}}",
            "models.a.fallbacks.0: 'b' is the model itself or one that stands there already",
        ),
        (
            "{a: {fallbacks: [tiny, b]}, b: {alias_of: tiny}}",
            "models.a.fallbacks.1: 'b' is the model itself or one that stands there already",
        ),
        (
            "{tiny: {alias_of: a}, a: {}}",
            "models.tiny.alias_of: the endpoint e1 serves a model of that name; an alias needs its own",
        ),
        (
            "{a: {alias_of: tiny, fallbacks: [tiny]}}",
            "models.a: is an alias and has fallbacks; give them to the model that it stands for",
        ),
        ("{a: {adapter_of: b}}", "models.a.adapter_of: no endpoint serves 'b'; name the model whose engines have it"),
        (
            "{a: {adapter_of: tiny}, b: {adapter_of: a}}",
            "models.b.adapter_of: no endpoint serves 'a'; name the model whose engines have it; 'a' is an adapter itself",
        ),
        (
            "{tiny: {adapter_of: tiny}}",
            "models.tiny.adapter_of: the endpoint e1 serves 'tiny' as a model; an adapter has no endpoints of its own",
        ),
        (
            "{a: {alias_of: tiny, adapter_of: tiny}}",
            "models.a: is an alias and an adapter; an alias of an adapter needs alias_of only",
        ),
        ("{a: {alias_off: tiny}}", "models.a.alias_off: is not a setting; did you mean models.a.alias_of?"),
        ("{a: {listing: {nam: A}}}", "models.a.listing.nam: is not a setting; did you mean models.a.listing.name?"),
        (
            "{a: {reasoning_field: thinking}}",
            "models.a.reasoning_field: Input should be 'reasoning', 'reasoning_content' or 'both'",
        ),
    ],
)
def test_a_model_that_leads_nowhere_or_in_a_circle_is_refused(file_with: WriteFile, models: str, words: str) -> None:
    path = file_with(f"endpoints: {ENDPOINTS}\nmodels: {models}\n")
    assert f"{path}: {words}" in complaint(path).splitlines()


def test_models_may_stand_in_for_each_other(file_with: WriteFile) -> None:
    path = file_with("models: {a: {fallbacks: [b]}, b: {fallbacks: [a]}}\n")
    assert load_settings(path).models["b"].fallbacks == ("a",)


# Who may ask from where

OPEN_AND_NOT: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"auth": {"api_key": "k"}}, False),
    ({"auth": {"keys": [{"tenant": "red", "sha256": "a" * 64}]}}, False),
    ({"auth": {"key_file": "/keys", "key_secret": "0123456789abcdef"}}, False),
    ({"database": {"url": "sqlite:/a.db"}}, False),
]


@pytest.mark.parametrize(("sections", "is_open"), OPEN_AND_NOT)
@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.1", "example.test", "127.0.0.1.example.test"])
def test_where_nobody_is_asked_for_a_key_others_cannot_come(sections: dict[str, Any], is_open: bool, host: str) -> None:
    settings = Settings.model_validate(sections)
    if not is_open:
        settings.check_reach(host)
        return
    with pytest.raises(ConfigurationError, match=r"server\.host: .* nobody is asked for a key"):
        settings.check_reach(host)
    Settings.model_validate({"auth": {"allow_anonymous": True}}).check_reach(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_the_loopback_is_open_to_everybody_on_the_machine(host: str) -> None:
    Settings().check_reach(host)


TWO_POOLS = [{"name": name, "url": f"http://{name}:8001", "model": "m", "pool": name} for name in ("x", "y")]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"endpoints": TWO_POOLS, "routing": {"pools": {"x": {"weight": 5}, "y": {"weight": 95}}}}, "have no revision of 'm'"),
        ({"endpoints": TWO_POOLS, "routing": {"pools": {"x": {"weight": 5}}}}, "the weights 5 and 1; a weight is a revision's"),
        (
            {"endpoints": TWO_POOLS, "routing": {"pools": {"x": {"revision": "r", "weight": 5}, "y": {"revision": "r"}}}},
            "'x' and 'y' have the revision 'r' of 'm' and the weights 5 and 1",
        ),
        *(
            ({"pools": [{"name": "p", "model": "m", "host": host, "port": 1}]}, "must be a host name alone")
            for host in ("http://engines", "engines:8000", "engines/v1", "two words", "[::1]")
        ),
        ({"peers": {"host": "gateways:8002", "secret": "s" * 16}}, "must be a host name alone"),
    ],
)
def test_settings_of_a_fleet_that_would_be_misread_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings.model_validate(sections)


def test_one_address_may_serve_two_models_and_a_revision_have_two_pools() -> None:
    two_models = [{"name": name, "url": "http://engine:8001", "model": name} for name in ("a", "b")]
    routing = {"pools": {name: {"revision": "r", "weight": 5} for name in ("x", "y")}}
    Settings.model_validate({"endpoints": [*two_models, *TWO_POOLS], "routing": routing})
    for host in ("::1", "10.0.0.1", "engines_of.serving.svc.", "motoren-für-alle.example"):
        Settings.model_validate({"pools": [{"name": "p", "model": "m", "host": host, "port": 1}]})
