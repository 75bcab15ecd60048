"""The settings of each tenant: which models, how much, with what parameters, how urgent, and who shares its caches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from serving.model_settings import ModelName
from serving.setting_types import Count, Name, RequestClass, Section

"""The ceiling is far above any use, and below what C code can no longer take."""
DEFAULT_TENANT = "default"
"""Whose the requests are where no key is asked for, and the plain key of `auth.api_key`."""
TenantName = Name
Isolation = Literal["own", "shared", "off"]
TagName = Annotated[str, Field(min_length=1, max_length=64)]
TagText = Annotated[str, Field(max_length=256)]


class ParameterLimits(Section):
    """Ceilings of request fields that multiply an engine's memory or work; above one the request is answered 400."""

    n: Count = 8
    best_of: Count = 8
    top_logprobs: Annotated[int, Field(ge=0)] = 20
    prompt_logprobs: Annotated[int, Field(ge=0)] | None = None
    """None: the field is refused. It has crashed engines on long prompts."""
    max_tokens: Count | None = None
    """Ceiling of max_tokens, max_completion_tokens and max_output_tokens; None leaves it to the model's context."""
    prompts: Count = 256
    """Prompts in one completions request."""
    inputs: Count = 256
    """Inputs in one embeddings request."""
    documents: Count = 1000
    """Documents or pairs in one rerank or score request; each image of a document counts, too."""
    form_fields: Count = 64
    """Fields of one form, its file included."""
    form_field_bytes: Count = 64 * 1024
    """Size of one field of a form that is no file."""
    json_values: Count = 1_000_000
    """Values and escapes in one body, counted roughly: with more of them, reading it would hold up all other requests."""

    @cached_property
    def bounds(self) -> dict[str, tuple[int, int | None]]:
        """Least and most of each integer field; most below least means that the field is refused."""
        return {
            "n": (1, self.n),
            "best_of": (1, self.best_of),
            "logprobs": (0, self.top_logprobs),
            "top_logprobs": (0, self.top_logprobs),
            "prompt_logprobs": (0, -1 if self.prompt_logprobs is None else self.prompt_logprobs),
            "max_tokens": (1, self.max_tokens),
            "max_completion_tokens": (1, self.max_tokens),
            "max_output_tokens": (1, self.max_tokens),
            "min_tokens": (0, self.max_tokens),
        }


class TenantLimits(Section):
    """How much a tenant may use, over all gateways together; what is left out is not limited."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and output together."""
    concurrency: Count | None = None
    """Requests between admission and their last byte."""
    dollars_per_day: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """A day is one of UTC. Needs prices."""


class TenantSettings(Section):
    """One tenant, by the name that its keys carry."""

    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = None
    """The names it may ask for, aliases included; all others do not exist for it. The fallbacks of a model that it may ask for
    answer it, too. None: all."""
    limits: TenantLimits = TenantLimits()
    parameters: ParameterLimits = ParameterLimits()
    """What is given here takes the place of `limits.parameters` for this tenant, field by field; it may be less or more."""
    priority: RequestClass | None = None
    """The class of its requests, for the queue and for routing; None: `models.NAME.objective`, else `routing.objective`."""
    may_use_class_header: bool = False
    """Whether its requests may say another class than `priority` by a header."""
    isolation: Isolation = "own"
    """Who shares an engine's prefix cache with it: nobody, the tenants of its `isolation_group`, or everybody who is `off`.
    Whether a prompt is cached tells what others asked."""
    isolation_group: TenantName | None = None
    tags: Annotated[dict[TagName, TagText], Field(max_length=32)] = Field(default_factory=dict)
    """For people and bills: a team, a cost centre, a contract."""

    @model_validator(mode="after")
    def _group_where_shared(self) -> TenantSettings:
        if self.isolation == "shared" and self.isolation_group is None:
            raise ValueError("isolation is shared and isolation_group is missing: name the group that shares")
        if self.isolation != "shared" and self.isolation_group is not None:
            raise ValueError(
                f"isolation_group is given and isolation is {self.isolation}: make it shared, or leave out the group"
            )
        return self


def check_tenants(tenants: Mapping[str, TenantSettings], keys: Iterable[str], models: Collection[str]) -> None:
    """`keys` are the tenants of the settings' keys, `models` all names that clients may use.

    Raises:
        ValueError: naming the path of a name that leads nowhere
    """
    for name, tenant in tenants.items():
        for place, model in enumerate(tenant.models or ()):
            if model not in models:
                raise ValueError(f"tenants.{name}.models.{place}: {model!r} is neither under models nor served by an endpoint")
    for place, name in enumerate(keys):
        if tenants and name not in tenants and name != DEFAULT_TENANT:
            raise ValueError(f"auth.keys.{place}.tenant: {name!r} is not under tenants; add it there, or name one that is")
