"""A profile as the command line and environment of its engine. Pure: nothing is read, started or looked up."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from serving.catalog.load import find_profile
from serving.catalog.model import Catalog, Flag, Profile, Vocabulary
from serving.core.errors import ConfigurationError

Launcher = Literal["module", "command"]
"""`module`: `python -m …` with `--model`, for the CPU wheel, whose `vllm` command does not start. `command`: `vllm serve
MODEL`, as in the official images."""

ENTRY_MODULE = "vllm.entrypoints.launchers.api_server.entry"

GUARD = "serving_guard.Guard"
"""Our middleware; its file lies in a folder on PYTHONPATH."""

OURS = frozenset({"model", "served-model-name", "host", "port", "uds"})
"""Given by the command line of `serving engine`; a profile may not set them."""

ALWAYS: dict[str, bool] = {
    "enable-prefix-caching": True,  # routing and prices count on cached prompts
    "enable-prompt-tokens-details": True,  # the answer tells how many prompt tokens were cached
    "fail-on-environ-validation": True,  # a misspelt variable is an error and not a warning
}
"""Flags of every engine; a profile cannot switch them off."""

DEFAULTS: dict[str, Any] = {
    "shutdown-timeout": 30,  # seconds in which running requests may finish after SIGTERM
    "disable-fastapi-docs": True,
    "fingerprint-mode": "none",  # the answer does not tell version and parallelism to clients
}
"""Flags that a profile may set to something else."""

ENVIRONMENT: dict[str, str] = {
    "HF_HUB_OFFLINE": "1",  # the model lies on disk; a start never waits for a network
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",  # seconds; the gateway lets go of idle connections long before
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of every engine; a profile's own go over them."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What to execute. `environment` holds only what is added to the inherited one."""

    argv: tuple[str, ...]
    environment: dict[str, str]

    def shell(self) -> str:
        """The command as a line that can be pasted into a POSIX shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, *(shlex.quote(word) for word in self.argv)])


def engine_command(
    catalog: Catalog,
    profile_name: str,
    *,
    model_path: PurePath,
    host: str,
    port: int,
    uds: Path | None = None,
    launcher: Launcher = "module",
    program: str = "python",
) -> EngineCommand:
    """The command that serves a profile.

    `program` is the interpreter for the launcher `module` and the `vllm` command for `command`. With `uds` the engine
    listens on that socket, else on `host` and `port`.

    Raises:
        ConfigurationError: the profile is unknown, sets what is ours to set or switches off what must stay on.
    """
    profile = find_profile(catalog, profile_name)
    problems = contradictions(profile)
    if problems:
        raise ConfigurationError("\n".join(f"profile {profile.name}: {problem}" for problem in problems))
    vocabulary = catalog.vocabularies.get(profile.engine_version)
    words = [program, "serve", str(model_path)]
    if launcher == "module":
        words = [program, "-m", ENTRY_MODULE, "--model", str(model_path)]
    words += ["--served-model-name", profile.model]
    words += ["--uds", str(uds)] if uds is not None else ["--host", host, "--port", str(port)]
    for name, value in _arguments(catalog, profile, vocabulary).items():
        words += _flag_words(name, value, vocabulary.flags.get(name) if vocabulary else None)
    return EngineCommand(argv=tuple(words), environment={**ENVIRONMENT, **profile.environment})


def guarded(command: EngineCommand, guard_folder: PurePath, python_path: str | None = None) -> EngineCommand:
    """The command with our guard before all its routes; the last middleware is the outermost. The secret is not part of it.

    `python_path` is what PYTHONPATH holds already.
    """
    folders = os.pathsep.join(filter(None, (str(guard_folder), command.environment.get("PYTHONPATH") or python_path)))
    return EngineCommand((*command.argv, "--middleware", GUARD), {**command.environment, "PYTHONPATH": folders})


def contradictions(profile: Profile) -> list[str]:
    """Arguments of a profile that clash with what every engine gets."""
    problems = [f"arguments.{name}: is set by `serving engine`; leave it out" for name in profile.arguments if name in OURS]
    for name in ALWAYS:
        if profile.arguments.get(name, True) is not True:
            problems.append(f"arguments.{name}: is always on; leave it out")
    return problems


def _arguments(catalog: Catalog, profile: Profile, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Ours, then the model's parsers, then the profile's; a default that this engine version lacks is left out."""
    model = catalog.models[profile.model]
    arguments: dict[str, Any] = dict(ALWAYS)
    arguments |= {n: v for n, v in DEFAULTS.items() if vocabulary is None or n in vocabulary.flags}
    if model.tool_call_parser:
        arguments |= {"enable-auto-tool-choice": True, "tool-call-parser": model.tool_call_parser}
    if model.reasoning_parser:
        arguments["reasoning-parser"] = model.reasoning_parser
    return arguments | profile.arguments


def _flag_words(name: str, value: Any, flag: Flag | None) -> list[str]:
    if isinstance(value, bool) and (flag is None or flag.kind in ("boolean", "switch")):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list) and not (flag and flag.kind == "json"):
        items = [_word(item) for item in value]
        if flag and flag.repeated:
            return [word for item in items for word in (f"--{name}", item)]
        return [f"--{name}", *items] if items else []
    word = _word(value)
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]


def _word(value: Any) -> str:
    if isinstance(value, bool | dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)
