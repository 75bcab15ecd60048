"""Names lead to models, through aliases of any depth; what an alias does not say, its model does."""

from __future__ import annotations

from serving.model_settings import ModelSettings
from serving.routing.models import PublicModel, public_models

SETTINGS = {
    "new": ModelSettings(alias_of="newer", reasoning_field="reasoning_content"),
    "newer": ModelSettings(alias_of="m"),
    "m": ModelSettings(fallbacks=("new-n", "o"), reasoning_field="both"),
    "new-n": ModelSettings(alias_of="n"),
    "o": ModelSettings(),
}


def test_every_name_is_known_once() -> None:
    assert list(public_models(SETTINGS, ["n", "m", "n"])) == ["new", "newer", "m", "new-n", "o", "n"]


def test_a_name_leads_to_its_model_and_its_stand_ins() -> None:
    models = public_models(SETTINGS, ["m", "n"])
    assert models["m"] == PublicModel("m", "m", ("n", "o"), "both")
    assert models["newer"] == PublicModel("newer", "m", ("n", "o"), "both")
    assert models["new"] == PublicModel("new", "m", ("n", "o"), "reasoning_content")
    assert models["n"] == PublicModel("n", "n")
