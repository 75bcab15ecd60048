"""Finds replay profiles: by name in the folder `replay` of the catalog, or in a file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.catalog.load import nearest, read_record
from serving.core.errors import ConfigurationError
from serving.replay.profile import ReplayProfile, Trace, TracedRequest

_MOONCAKE = {"timestamp", "input_length", "output_length", "hash_ids"}
"""Fields of a published kind of trace: milliseconds, tokens, and ids of blocks of 512 tokens."""


def load_profiles(catalog_root: Path) -> dict[str, ReplayProfile]:
    """All of the catalog's. Raises: ConfigurationError naming file, field and what would be right."""
    profiles = {}
    for path in sorted((catalog_root / "replay").glob("*.yaml")):
        profile = read_record(path, ReplayProfile)
        if profile.name != path.stem:
            raise ConfigurationError(f"{path}: name: is {profile.name!r}; must be {path.stem!r} like the file")
        profiles[profile.name] = profile
    return profiles


def find_replay_profile(given: str, catalog_root: Path) -> ReplayProfile:
    """A profile by its name, or by the path of a .yaml file or a .jsonl trace. Raises: ConfigurationError."""
    path = Path(given)
    if path.suffix == ".jsonl":
        return read_trace(path)
    if path.suffix in (".yaml", ".yml"):
        return read_record(path, ReplayProfile)
    profiles = load_profiles(catalog_root)
    if given not in profiles:
        known = ", ".join(profiles) or "none"
        raise ConfigurationError(f"replay profile {given!r} is not known{nearest(given, profiles)}; there are: {known}")
    return profiles[given]


def read_trace(path: Path) -> ReplayProfile:
    """A JSONL file, one request a line, as `TracedRequest` or with the fields of Mooncake's traces.

    Raises: ConfigurationError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    requests = tuple(_request(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    if not requests:
        raise ConfigurationError(f'{path}: holds no request; a line is like {{"prompt_tokens": 900, "output_tokens": 50}}')
    if len({request.at_seconds is None for request in requests}) > 1:
        raise ConfigurationError(f"{path}: at_seconds: must be on all lines or on none")
    moments = [request.at_seconds for request in requests if request.at_seconds is not None]
    if moments != sorted(moments):
        raise ConfigurationError(f"{path}: at_seconds: must not fall from line to line")
    span = moments[-1] if moments else 0.0
    return ReplayProfile(
        name="trace",
        description=f"{len(requests)} requests of {path.name}",
        traffic=Trace(kind="trace", requests=requests),
        concurrency=8,
        settle_seconds=0.0 if span else 10.0,
        measure_seconds=span or 60.0,
    )


def _request(where: str, line: str) -> TracedRequest:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where}: is not JSON") from None
    if not isinstance(data, dict):
        raise ConfigurationError(f"{where}: must be an object with prompt_tokens and output_tokens")
    if data.keys() & _MOONCAKE - {"output_length"} and "prompt_tokens" not in data:
        data = _from_mooncake(where, data)
    try:
        return TracedRequest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{where}: {field}{': ' if field else ''}{problem['msg']}") from None


def _from_mooncake(where: str, data: dict[str, Any]) -> dict[str, Any]:
    if unknown := data.keys() - _MOONCAKE:
        raise ConfigurationError(f"{where}: {sorted(unknown)[0]}: is not a field; there are: {', '.join(sorted(_MOONCAKE))}")
    renamed = {"prompt_tokens": data.get("input_length"), "output_tokens": data.get("output_length")}
    if isinstance(moment := data.get("timestamp"), int | float):
        renamed["at_seconds"] = moment / 1000
    return {**renamed, "block_ids": data.get("hash_ids", [])}
