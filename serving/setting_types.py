"""What all settings are made of: sections that are frozen and closed, and the types of fields that several of them have."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""Of a pool, an endpoint, a target, a tenant."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=2**53)]
"""The ceiling is far above any use, and below what C code can no longer take."""


def _dns_name(name: str) -> str:
    """A name as resolvers take it, or an IP address; not what stands around one in a URL."""
    if not name.isprintable() or any(letter.isspace() or letter in "/@?#[]" for letter in name):
        raise ValueError("must be a host name alone, without scheme, port, path or spaces")
    if ":" in name:
        try:
            ip_address(name)
        except ValueError:
            raise ValueError("must be a host name alone, without scheme, port, path or spaces") from None
    return name


DnsName = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_dns_name)]
"""Whose addresses are looked up."""
RequestClass = Literal["interactive", "standard", "batch"]
"""How urgent a request is, the most urgent first: the queue and routing go by it."""


class Variant(BaseModel):
    """Base of sections that a field tells apart; pydantic wants no validator before that field's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Section(Variant):
    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """YAML's true, yes and on are no 1."""
        if isinstance(value, bool) and _is_number(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("must be a number, not true or false")
        return value


def _is_number(annotation: Any) -> bool:
    """Whether a field takes numbers and no bool."""
    kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in (annotation, *get_args(annotation))}
    return not kinds.isdisjoint((int, float)) and bool not in kinds
