from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.argv import ENVIRONMENT, EngineCommand, engine_command
from serving.catalog.load import load_catalog
from serving.catalog.model import Catalog
from serving.core.errors import ConfigurationError
from serving.settings import Settings
from tests.doubles.catalogs import SHIPPED

CATALOG = load_catalog(SHIPPED)
NAME = "smollm2-135m-cpu"


def command(arguments: dict[str, Any] | None = None, catalog: Catalog = CATALOG, **options: Any) -> EngineCommand:
    if arguments is not None:
        changed = catalog.profiles[NAME].model_copy(update={"arguments": arguments})
        catalog = catalog.model_copy(update={"profiles": {**catalog.profiles, NAME: changed}})
    given = {"model_path": Path("/models/x"), "host": "127.0.0.1", "port": 8001, **options}
    return engine_command(catalog, given.pop("profile", NAME), **given)


def has(argv: tuple[str, ...], *words: str) -> bool:
    return any(argv[start : start + len(words)] == words for start in range(len(argv)))


def test_the_two_ways_to_start_vllm() -> None:
    module = command().argv
    assert module[:5] == ("python", "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", "/models/x")
    image = command(launcher="command", program="vllm").argv
    assert image[:3] == ("vllm", "serve", "/models/x")
    assert image[3:] == module[5:]


def test_what_every_engine_gets() -> None:
    argv = command({}).argv
    for flag in (
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--fail-on-environ-validation",
        "--disable-fastapi-docs",
    ):
        assert argv.count(flag) == 1
    assert has(argv, "--served-model-name", "smollm2-135m-instruct")
    assert has(argv, "--host", "127.0.0.1", "--port", "8001")
    assert has(argv, "--fingerprint-mode", "none")


def test_a_socket_takes_the_place_of_host_and_port() -> None:
    argv = command(uds=Path("/run/e.sock")).argv
    assert has(argv, "--uds", "/run/e.sock")
    assert "--port" not in argv


def test_the_forms_of_values() -> None:
    argv = command({
        "enforce-eager": True,
        "async-scheduling": False,
        "max-model-len": 4096,
        "cudagraph-capture-sizes": [1, 2],
        "middleware": ["a.b", "c.d"],
        "allowed-origins": ["*"],
        "compilation-config": {"mode": 3, "cudagraph": True},
        "seed": -1,
        "hf-overrides": {},
        "lora-modules": [{"name": "n", "path": "p"}],
    }).argv  # fmt: skip
    assert "--enforce-eager" in argv
    assert "--no-async-scheduling" in argv
    assert has(argv, "--max-model-len", "4096")
    assert has(argv, "--cudagraph-capture-sizes", "1", "2")
    assert has(argv, "--middleware", "a.b", "--middleware", "c.d")
    assert has(argv, "--allowed-origins", '["*"]')
    assert has(argv, "--compilation-config", '{"mode":3,"cudagraph":true}')
    assert "--seed=-1" in argv
    assert has(argv, "--hf-overrides", "{}")
    assert has(argv, "--lora-modules", '{"name":"n","path":"p"}')


def test_a_profile_may_change_a_default_but_not_what_must_be() -> None:
    assert has(command({"shutdown-timeout": 5}).argv, "--shutdown-timeout", "5")
    assert command({"enable-prefix-caching": True}).argv.count("--enable-prefix-caching") == 1
    with pytest.raises(ConfigurationError, match="enable-prefix-caching: is always on"):
        command({"enable-prefix-caching": False})
    with pytest.raises(ConfigurationError, match="port: is set by"):
        command({"port": 1})


def test_the_models_parsers_are_switched_on() -> None:
    argv = command(profile="qwen3-0.6b-cpu").argv
    assert "--enable-auto-tool-choice" in argv
    assert has(argv, "--tool-call-parser", "hermes")
    assert has(argv, "--reasoning-parser", "qwen3")


def test_a_default_that_this_version_lacks_is_left_out() -> None:
    vocabulary = CATALOG.vocabularies["0.32.0"]
    flags = {name: flag for name, flag in vocabulary.flags.items() if name != "fingerprint-mode"}
    older = vocabulary.model_copy(update={"flags": flags})
    catalog = CATALOG.model_copy(update={"vocabularies": {"0.32.0": older}})
    assert "--fingerprint-mode" not in command(catalog=catalog).argv


def test_the_environment() -> None:
    environment = command().environment
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert float(ENVIRONMENT["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > Settings().relay.idle_connection_seconds
    known = CATALOG.vocabularies["0.32.0"].environment
    assert all(name in known for name in ENVIRONMENT if name.startswith("VLLM_"))


def test_the_shell_line_comes_back_as_it_was() -> None:
    given = command({"compilation-config": {"a": "it's"}}, model_path=Path("/a folder/m"))
    words = shlex.split(given.shell())
    assert tuple(words[len(given.environment) :]) == given.argv


def test_an_unknown_profile() -> None:
    with pytest.raises(ConfigurationError, match="did you mean"):
        command(profile="smollm2-135m-cpus")
