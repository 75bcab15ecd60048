"""Who is served, and on what terms: the tenants as requests meet them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from serving.setting_types import RequestClass
from serving.tenant_settings import DEFAULT_TENANT, ParameterLimits, TenantLimits, TenantSettings

_UNLIMITED = TenantLimits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant's terms. Made once and shared by all of its requests."""

    name: str
    parameters: ParameterLimits
    """The caps that hold for it, the gateway's own included."""
    models: frozenset[str] | None = None
    """The names it may ask for; None: all."""
    limits: TenantLimits = _UNLIMITED
    priority: RequestClass | None = None
    """The class of its requests; None: that of the model, or of the gateway."""
    may_use_class_header: bool = False
    isolation_group: str | None = None
    """Who shares prefix caches with it has the same; None: it is not kept apart. Not a label: groups and tenants may have the
    same names, so their kind is part of it."""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def may_use(self, model: str) -> bool:
        """Whether a name that clients write as `model` exists for this tenant."""
        return self.models is None or model in self.models


class Identity(NamedTuple):
    """Whose a credential is."""

    tenant: Tenant
    key_id: str
    """Which of the tenant's keys it was; empty where no key is asked for. No secret."""


class Tenants:
    """All tenants by name. Where the settings list some, a name that is not among them is none, but for `default`."""

    def __init__(
        self, settings: Mapping[str, TenantSettings], parameters: ParameterLimits | None = None, *, isolates: bool = False
    ) -> None:
        """`parameters` are the gateway's own caps; `isolates`: whether caches are kept apart at all."""
        self._parameters = parameters or ParameterLimits()
        self._isolates = isolates
        self._is_open = not settings
        self._tenants = {name: self._tenant(name, terms) for name, terms in settings.items()}
        if DEFAULT_TENANT not in self._tenants:
            self._tenants[DEFAULT_TENANT] = self._tenant(DEFAULT_TENANT, _UNLISTED)

    def find(self, name: str) -> Tenant | None:
        """The tenant of that name; None where the settings list tenants and it is not among them."""
        found = self._tenants.get(name)
        if found is None and self._is_open:
            found = self._tenants[name] = self._tenant(name, _UNLISTED)
        return found

    def _tenant(self, name: str, terms: TenantSettings) -> Tenant:
        caps = self._parameters.model_dump() | terms.parameters.model_dump(exclude_unset=True)
        groups = {"own": f"tenant:{name}", "shared": f"group:{terms.isolation_group}", "off": None}
        return Tenant(
            name=name,
            parameters=ParameterLimits(**caps),
            models=None if terms.models is None else frozenset(terms.models),
            limits=terms.limits,
            priority=terms.priority,
            may_use_class_header=terms.may_use_class_header,
            isolation_group=groups[terms.isolation] if self._isolates else None,
            tags=MappingProxyType(dict(terms.tags)),
        )


_UNLISTED = TenantSettings()
