"""The settings of each public model: other names, stand-ins, and what a marketplace is told about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from serving.setting_types import RequestClass, Section, Variant

MOST_FALLBACKS = 8
DOLLARS_PER_TOKEN_CEILING = Decimal("0.01")
"""Ten thousand dollars a million tokens: whoever writes more has written the price of a million."""
_PRICE = re.compile(r"\d{1,9}(\.\d{1,24})?")
_DEPRECATION = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}:00:00Z)?")

ReasoningField = Literal["reasoning", "reasoning_content", "both"]
"""Where clients find the text of a model's reasoning; engines call it `reasoning`."""
Quantization = Literal["int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32"]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
"""What clients write as `model`."""
Tokens = Annotated[int, Field(ge=1, le=2**53)]


def _decimal_text(price: object) -> object:
    if not isinstance(price, str):
        raise ValueError('must be a decimal number in quotes, as "0.0000006": a bare number would lose digits')
    return price


def _price(price: str) -> str:
    if not _PRICE.fullmatch(price):
        raise ValueError('must be a decimal number without sign and exponent, as "0.0000006"')
    if Decimal(price) == 0:
        raise ValueError("is zero; leave out what is not billed, or say is_free: true where nothing is")
    return price


def _token_price(price: str) -> str:
    if Decimal(price) >= DOLLARS_PER_TOKEN_CEILING:
        raise ValueError(f"is {price} dollars a token; give the price of one token, not of a million")
    return price


Dollars = Annotated[str, AfterValidator(_price), BeforeValidator(_decimal_text)]
"""US dollars as a decimal string, so that nothing is rounded."""
DollarsPerToken = Annotated[Dollars, AfterValidator(_token_price)]


class PriceSettings(Section):
    """What is billed; what is not billed is left out."""

    prompt: DollarsPerToken | None = None
    cached_prompt: DollarsPerToken | None = None
    cache_write: DollarsPerToken | None = None
    completion: DollarsPerToken | None = None
    internal_reasoning: DollarsPerToken | None = None
    request: Dollars | None = None
    """Of a request as a whole."""

    @model_validator(mode="after")
    def _some(self) -> PriceSettings:
        if not self.model_fields_set:
            raise ValueError("is empty; give the prices that are billed, or leave it out")
        return self


class CapacitySettings(Section):
    """Declared throughput; what is left out is not declared."""

    prompt_tokens_per_minute: Tokens | None = None
    output_tokens_per_minute: Tokens | None = None
    requests_per_minute: Tokens | None = None
    concurrent_requests: Tokens | None = None


Unit = Literal["second", "pixel", "byte", "token", "character"]


class RangeParameter(Variant):
    """Any number from `min` to `max`."""

    type: Literal["range"]
    min: int | float | None = None
    max: int | float | None = None
    default: int | float | None = None
    unit: Unit | None = None


class IntegerParameter(Variant):
    type: Literal["integer"]
    min: int | None = None
    max: int | None = None
    default: int | None = None
    unit: Unit | None = None


class BooleanParameter(Variant):
    """Supported, without more to say."""

    type: Literal["boolean"]
    default: bool | None = None


class EnumParameter(Variant):
    type: Literal["enum"]
    values: Annotated[tuple[str | int | float, ...], Field(min_length=1)]
    default: str | int | float | None = None


class ArrayParameter(Variant):
    type: Literal["array"]
    max_items: Tokens | None = None
    items: Parameter | None = None


class ObjectParameter(Variant):
    type: Literal["object"]
    properties: dict[str, Parameter]


class UnknownParameter(Variant):
    """Accepted, and its values are not described."""

    type: Literal["unknown"]


Parameter = Annotated[
    RangeParameter | IntegerParameter | BooleanParameter | EnumParameter | ArrayParameter | ObjectParameter | UnknownParameter,
    Field(discriminator="type"),
]
"""What a request's parameter takes; one that is not listed is not supported."""
ArrayParameter.model_rebuild()
ObjectParameter.model_rebuild()


def _deprecation(day: str) -> str:
    if not _DEPRECATION.fullmatch(day):
        raise ValueError("must be a day as 2027-06-01, or an hour of it as 2027-06-01T15:00:00Z")
    date.fromisoformat(day[:10])
    if len(day) > 10 and int(day[11:13]) > 23:
        raise ValueError("its hour must be from 00 to 23")
    return day


class ListingSettings(Section):
    """What the provider listing says about one model."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """As people read it."""
    context_tokens: Tokens
    """The context window: prompt and output together."""
    prompt_tokens: Tokens | None = None
    """The longest prompt, where it is less than the window."""
    output_tokens: Tokens | None = None
    """The longest output."""
    parameters: dict[str, Parameter]
    """Parameters and features that requests may use: temperature, max_tokens, tools, structured_outputs, reasoning, …"""
    prices: PriceSettings | None = None
    is_free: bool = False
    """Nothing is billed."""
    hugging_face_id: str | None = None
    quantization: Quantization | None = None
    tokenizer: str | None = None
    description: str | None = None
    released: date | None = None
    capacity: CapacitySettings | None = None
    slug: str | None = None
    """The listing's own name for the model, where it maps to one."""
    deprecation_date: Annotated[str, AfterValidator(_deprecation)] | None = None
    discount_to_user: Annotated[float, Field(lt=1, ge=-1)] | None = None

    @model_validator(mode="after")
    def _priced(self) -> ListingSettings:
        if self.is_free == (self.prices is not None):
            raise ValueError("must have either prices or is_free: true")
        if max(self.prompt_tokens or 0, self.output_tokens or 0) > self.context_tokens:
            raise ValueError("prompt_tokens and output_tokens cannot be more than context_tokens")
        return self


class DatacenterSettings(Section):
    country_code: Annotated[str, Field(pattern=r"^[A-Z]{2}$")]
    region: str | None = None


class ProviderListingSettings(Section):
    """`GET /v1/providers/models`: what a marketplace reads to send its customers here."""

    enabled: bool = False
    datacenters: tuple[DatacenterSettings, ...] = ()
    compliance: dict[str, bool] = Field(default_factory=dict)
    """Certificates and promises, as zdr (no data is retained) and hipaa."""


class ModelSettings(Section):
    """One public model, by the name that clients use. A model without endpoints is known, and answered 503."""

    alias_of: ModelName | None = None
    """The name is another one of that model."""
    adapter_of: ModelName | None = None
    """It is a LoRA adapter of that model. Engines of the model that list it in their `/v1/models` serve it."""
    fallbacks: Annotated[tuple[ModelName, ...], Field(max_length=MOST_FALLBACKS)] = ()
    """Models that stand in for this one, best first, when none of its engines can serve. They are not followed further."""
    reasoning_field: ReasoningField | None = None
    """None: as the model that an alias stands for; for a model itself `reasoning`, which leaves the bytes as they are."""
    listing: ListingSettings | None = None
    objective: RequestClass | None = None
    """The class of its requests, where their tenant has none; None: as the model that an alias stands for, else the gateway's."""

    @model_validator(mode="after")
    def _alias_or_model(self) -> ModelSettings:
        if self.alias_of is not None and self.fallbacks:
            raise ValueError("is an alias and has fallbacks; give them to the model that it stands for")
        if self.alias_of is not None and self.adapter_of is not None:
            raise ValueError("is an alias and an adapter; an alias of an adapter needs alias_of only")
        return self


def check_models(models: Mapping[str, ModelSettings], endpoints: Mapping[str, str]) -> None:
    """`endpoints` maps each served model to the name of one of its endpoints.

    Raises:
        ValueError: naming the path of a name that leads nowhere, to itself, or to two things
    """
    known = {*models, *endpoints}
    for name, model in models.items():
        if model.alias_of is not None:
            if name in endpoints:
                raise ValueError(
                    f"models.{name}.alias_of: the endpoint {endpoints[name]} serves a model of that name; an alias needs its own"
                )
            _check_alias(name, models, known)
        if model.adapter_of is not None:
            _check_adapter(name, model.adapter_of, models, endpoints)
    for name, model in models.items():
        seen = {name}
        for place, fallback in enumerate(model.fallbacks):
            path = f"models.{name}.fallbacks.{place}"
            _check_known(path, fallback, known)
            served = served_name(fallback, models)
            if served in seen:
                raise ValueError(f"{path}: {fallback!r} is the model itself or one that stands there already")
            seen.add(served)


def _check_alias(name: str, models: Mapping[str, ModelSettings], known: Collection[str]) -> None:
    way = [name]
    while (model := models.get(way[-1])) is not None and model.alias_of is not None:
        _check_known(f"models.{way[-1]}.alias_of", model.alias_of, known)
        if model.alias_of in way:
            raise ValueError(f"models.{name}.alias_of: goes round in a circle: {' → '.join([*way, model.alias_of])}")
        way.append(model.alias_of)


def _check_adapter(name: str, base: str, models: Mapping[str, ModelSettings], endpoints: Mapping[str, str]) -> None:
    path = f"models.{name}.adapter_of"
    if name in endpoints:
        raise ValueError(
            f"{path}: the endpoint {endpoints[name]} serves {name!r} as a model; an adapter has no endpoints of its own"
        )
    if base not in endpoints:
        behind = models.get(base, ModelSettings())
        hint = f"; {base!r} is an adapter itself" if behind.adapter_of else f"; {base!r} is an alias" if behind.alias_of else ""
        raise ValueError(f"{path}: no endpoint serves {base!r}; name the model whose engines have it{hint}")


def adapters_of(models: Mapping[str, ModelSettings]) -> dict[str, str]:
    """The model of each LoRA adapter, by the adapter's name."""
    return {name: model.adapter_of for name, model in models.items() if model.adapter_of is not None}


def _check_known(path: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"{path}: {name!r} is neither under models nor served by an endpoint")


def served_name(name: str, models: Mapping[str, ModelSettings]) -> str:
    """The model behind a name, through all aliases. The names must have passed `check_models`."""
    while (model := models.get(name)) is not None and model.alias_of is not None:
        name = model.alias_of
    return name
