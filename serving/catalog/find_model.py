"""The model that a user names: of the catalog, of one of its profiles, or by the path of a config.json."""

from __future__ import annotations

from pathlib import Path

from serving.catalog.load import nearest
from serving.catalog.model import Catalog, Model
from serving.core.errors import ConfigurationError

LONGEST_SHOWN = 200


def find_model(catalog: Catalog, name: str) -> Model:
    """Raises: ConfigurationError: there is none of that name, nor such a file; the message holds the nearest name."""
    if name in catalog.models:
        return catalog.models[name]
    if name in catalog.profiles:
        return catalog.models[catalog.profiles[name].model]
    if _is_a_path(name):
        from serving.catalog.config_json import model_from_config

        return model_from_config(_path(name))
    shown = repr(name) if len(name) < LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]!r}…"
    known = [*catalog.profiles, *catalog.models]
    raise ConfigurationError(
        f"{shown} is neither a profile nor a model{nearest(name, known)}; `serving profiles` and `serving models` list them, "
        "and a model of your own is given by the path of its config.json"
    )


def _is_a_path(name: str) -> bool:
    """Whether it ends in config.json or is a folder that is there. No name is the current folder by being empty."""
    if not name or "\0" in name:
        return False
    path = _path(name)
    try:
        return path.name == "config.json" or path.is_dir()
    except OSError:  # too long for a path
        return False


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # of a user who is not there
        return Path(name)
