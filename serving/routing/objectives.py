"""Which class a request is of, and what that means."""

from __future__ import annotations

from collections.abc import Iterator

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

    def of(self, asked: bytes | None, priority: str | None, model: PublicModel) -> Objective:
        """`asked` is the header of a tenant that may choose, `priority` the tenant's own class.

        Raises: InvalidRequest, where the header names no class.
        """
        if asked is not None:
            chosen = self._by_name.get(asked.decode("latin-1").strip())
            if chosen is None:
                words = f"The header x-request-class must be one of {', '.join(self._by_name)}."
                raise InvalidRequest(words, code="invalid_request_class")
            return chosen
        name = priority or model.objective
        return self._default if name is None else self._by_name[name]

    def rows(self) -> Iterator[tuple[tuple[str, str], float]]:
        """For a scrape: what each class is to keep, by objective and class."""
        for name, objective in self._by_name.items():
            yield ("ttft", name), objective.ttft_seconds
            yield ("inter_chunk", name), objective.inter_chunk_seconds


def _objective(name: str, settings: ObjectiveSettings) -> Objective:
    return Objective(name, settings.dollars_per_hour / 3600.0, settings.ttft_seconds, settings.inter_chunk_seconds)
