"""Which class a request is of, and what that means."""

from __future__ import annotations

from serving.core.context import RequestContext
from serving.core.errors import InvalidRequest
from serving.routing.cost import Objective
from serving.routing.models import PublicModel
from serving.routing_settings import ObjectiveSettings, RoutingSettings


class Objectives:
    """The objectives of all classes. The class is the tenant's, else the model's, else the gateway's; a header comes before all
    of them where the tenant may choose."""

    def __init__(self, settings: RoutingSettings) -> None:
        named = settings.objectives
        self._by_name = {
            name: _objective(name, given)
            for name, given in (("interactive", named.interactive), ("standard", named.standard), ("batch", named.batch))
        }
        self._default = self._by_name[settings.objective]
        self._tenants = {name: tenant.objective for name, tenant in settings.tenants.items() if tenant.objective is not None}
        self._choosers = frozenset(name for name, tenant in settings.tenants.items() if tenant.may_choose)

    def of(self, ctx: RequestContext, model: PublicModel) -> Objective:
        """Raises: InvalidRequest, where a tenant that may choose names no class."""
        if ctx.asked_class is not None and ctx.tenant in self._choosers:
            chosen = self._by_name.get(ctx.asked_class.decode("latin-1").strip())
            if chosen is None:
                raise InvalidRequest(f"The header x-serving-class must be one of {', '.join(self._by_name)}.")
            return chosen
        if self._tenants and (name := self._tenants.get(ctx.tenant)) is not None:
            return self._by_name[name]
        return self._default if model.objective is None else self._by_name[model.objective]


def _objective(name: str, settings: ObjectiveSettings) -> Objective:
    return Objective(name, settings.dollars_per_hour / 3600.0, settings.ttft_seconds)
