"""OpenRouter's schema 2.4 of a provider's model, as far as text models need it, as strict as theirs.

Written from the published OpenAPI document (Provider Monitor Schema V2, version 2.4): unknown fields are refused everywhere,
prices are strings, and entries are unique by what distinguishes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Cost = Annotated[str, Field(pattern=r"^\d+(\.\d+)?$")]
Positive = Annotated[int, Field(ge=1, le=2**53 - 1)]
Unit = Literal["second", "pixel", "byte", "token", "character"]
TextUnit = Literal["token", "character"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Limit(_Strict):
    value: Positive
    unit: Unit = "token"


class Price(_Strict):
    type: Literal["prompt", "cached_prompt", "cache_write"]
    unit: TextUnit
    cost_usd: Cost


class OutputPrice(_Strict):
    type: Literal["completion", "internal_reasoning"]
    unit: Literal["token", "character", "request"]
    cost_usd: Cost


class RequestPrice(_Strict):
    type: Literal["request"]
    unit: Literal["request"]
    cost_usd: Cost


class InputCapacity(_Strict):
    type: Literal["prompt", "cached_prompt", "cache_write"]
    unit: TextUnit
    per: Literal["minute", "hour", "day"]
    value: Positive


class OutputCapacity(_Strict):
    type: Literal["completion", "internal_reasoning"]
    unit: TextUnit
    per: Literal["minute", "hour", "day"]
    value: Positive


class RequestCapacity(_Strict):
    type: Literal["request"]
    unit: Literal["request"]
    per: Literal["minute", "hour", "day"]
    value: Positive


class Concurrency(_Strict):
    type: Literal["concurrency"]
    unit: Literal["request"]
    value: Positive


_ALLOWED = {
    "range": {"min", "max", "unit", "default"},
    "integer": {"min", "max", "unit", "default"},
    "boolean": {"default"},
    "enum": {"values", "default"},
    "array": {"max_items", "items", "default"},
    "object": {"properties", "default"},
    "unknown": {"default"},
}
_NEEDED = {"enum": {"values"}, "object": {"properties"}}


class Descriptor(_Strict):
    type: Literal["range", "integer", "boolean", "enum", "array", "object", "unknown"]
    min: int | float | None = None
    max: int | float | None = None
    default: str | int | float | bool | None = None
    values: list[str | int | float] | None = None
    unit: Unit | None = None
    max_items: Positive | None = None
    properties: dict[str, Descriptor] | None = None
    items: Descriptor | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        given = self.model_fields_set - {"type"}
        assert given <= _ALLOWED[self.type], f"{self.type}: {given}"
        assert given >= _NEEDED.get(self.type, set())
        assert all(getattr(self, name) is not None for name in given), "null is no value of any of them"
        return self


class TextLimits(_Strict):
    max_context_length: Limit
    max_prompt_length: Limit | None = None


class TextInput(_Strict):
    type: Literal["text"]
    supported_inputs: TextLimits
    pricing: list[Price] = []
    capacity: list[InputCapacity] = []


class TextOutput(_Strict):
    type: Literal["text"]
    supported_parameters: dict[str, Descriptor]
    streaming: bool
    max_length: Limit | None = None
    pricing: list[OutputPrice] = []
    capacity: list[OutputCapacity] = []


class Slug(_Strict):
    slug: str


class Datacenter(_Strict):
    country_code: Annotated[str, Field(pattern=r"^[A-Z]{2}$")]
    region: str = ""


class ModelDocument(_Strict):
    schema_version: Literal["2.4"]
    id: str
    name: str
    input_modalities: Annotated[list[TextInput], Field(min_length=1)]
    output_modalities: Annotated[list[TextOutput], Field(min_length=1)]
    quantization: Literal["int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32"] | None
    hugging_face_id: str = ""
    created: int = 0
    tokenizer: str = ""
    description: str = ""
    pricing: list[RequestPrice] = []
    capacity: list[RequestCapacity | Concurrency] = []
    deprecation_date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:00:00Z)?$")] = "2030-01-01"
    is_ready: bool = True
    is_free: bool = False
    discount_to_user: Annotated[float, Field(lt=1)] = 0.0
    openrouter: Slug = Slug(slug="")
    datacenters: list[Datacenter] = []
    compliance: dict[str, bool] = {}

    @model_validator(mode="after")
    def _unique(self) -> Self:
        scopes: list[list[Any]] = [self.pricing, self.capacity]
        for modality in (*self.input_modalities, *self.output_modalities):
            scopes += [modality.pricing, modality.capacity]
        for scope in scopes:
            kinds = [entry.type for entry in scope]
            assert len(kinds) == len(set(kinds)), kinds
        return self


class Listing(_Strict):
    data: list[ModelDocument]
