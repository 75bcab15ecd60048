"""The model that a user names: of the catalog, of one of its profiles, or by the path of a config.json."""

from __future__ import annotations

from pathlib import Path

from serving.catalog.load import nearest
from serving.catalog.model import Catalog, Model
from serving.core.errors import ConfigurationError


def find_model(catalog: Catalog, name: str) -> Model:
    """Raises: ConfigurationError: there is none of that name, nor such a file; the message holds the nearest name."""
    if name in catalog.models:
        return catalog.models[name]
    if name in catalog.profiles:
        return catalog.models[catalog.profiles[name].model]
    path = Path(name).expanduser()
    if path.name == "config.json" or path.is_dir():
        from serving.catalog.config_json import model_from_config

        return model_from_config(path)
    known = [*catalog.profiles, *catalog.models]
    raise ConfigurationError(
        f"{name!r} is neither a profile nor a model{nearest(name, known)}; `serving profiles` and `serving models` list them, "
        "and a model of your own is given by the path of its config.json"
    )
