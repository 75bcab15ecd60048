"""The models that clients can name, and which models may answer for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from serving.model_settings import ListingSettings, ModelSettings, ReasoningField, served_name
from serving.setting_types import RequestClass


@dataclass(frozen=True, slots=True)
class PublicModel:
    """One name that clients may use."""

    name: str
    served: str
    """The model that engines serve; the name itself unless that is an alias."""
    fallbacks: tuple[str, ...] = ()
    """Models, as engines serve them, that may stand in for it, best first."""
    reasoning_field: ReasoningField = "reasoning"
    listing: ListingSettings | None = None
    objective: RequestClass | None = None
    """The class of its requests; None: nothing is said."""
    parent: str | None = None
    """Of a LoRA adapter the model that it belongs to."""


_PLAIN = ModelSettings()


def public_models(settings: Mapping[str, ModelSettings], served: Iterable[str]) -> Mapping[str, PublicModel]:
    """All models by name: those of the settings first, then what endpoints serve besides."""
    names = dict.fromkeys((*settings, *served))
    return MappingProxyType({name: _public(name, settings) for name in names})


def _public(name: str, settings: Mapping[str, ModelSettings]) -> PublicModel:
    own = settings.get(name, _PLAIN)
    served = served_name(name, settings)
    model = settings.get(served, _PLAIN)
    fallbacks = tuple(served_name(fallback, settings) for fallback in model.fallbacks)
    field = own.reasoning_field or model.reasoning_field or "reasoning"
    return PublicModel(name, served, fallbacks, field, own.listing, own.objective or model.objective, model.adapter_of)
