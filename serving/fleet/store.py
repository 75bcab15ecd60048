"""Which endpoints exist and how they are, read as an immutable snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from serving.core.routes import Task


class EndpointState(StrEnum):
    UNKNOWN = "unknown"
    """Not asked yet: neither healthy nor dead."""
    READY = "ready"
    UNREADY = "unready"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A reachable engine address with its identity."""

    name: str
    url: str
    model: str
    pool: str
    target: str
    tasks: tuple[Task, ...] = ("generate",)
    """The same for all endpoints of a model."""
    slots: int | None = None
    """Requests that this gateway gives it at a time; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    endpoint: Endpoint
    state: EndpointState = EndpointState.UNKNOWN
    reason: str = "not probed yet"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet at one moment."""

    statuses: Mapping[str, EndpointStatus] = field(default_factory=dict)
    """By endpoint name."""
    by_model: Mapping[str, tuple[EndpointStatus, ...]] = field(default_factory=dict)
    tasks_by_model: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)

    candidates_by_model: Mapping[str, tuple[Endpoint, ...]] = field(init=False)

    def __post_init__(self) -> None:
        found = {model: _candidates(statuses) for model, statuses in self.by_model.items()}
        object.__setattr__(self, "candidates_by_model", MappingProxyType(found))

    def candidates(self, model: str) -> tuple[Endpoint, ...]:
        """The endpoints that may serve the model: the ready ones, else those of which nothing is known."""
        return self.candidates_by_model.get(model, ())

    def tasks(self, model: str) -> tuple[Task, ...]:
        """What the engines of the model do with it; none where the model is not known."""
        return self.tasks_by_model.get(model, ())

    def ready(self, model: str) -> bool:
        return any(s.state is EndpointState.READY for s in self.by_model.get(model, ()))

    @property
    def any_ready(self) -> bool:
        return any(s.state is EndpointState.READY for s in self.statuses.values())


def _candidates(statuses: tuple[EndpointStatus, ...]) -> tuple[Endpoint, ...]:
    ready = tuple(s.endpoint for s in statuses if s.state is EndpointState.READY)
    return ready or tuple(s.endpoint for s in statuses if s.state is EndpointState.UNKNOWN)


DEPARTED = 64
"""How many names of endpoints that have left are remembered."""


class Fleet:
    """Holds the current snapshot; each change makes a new one."""

    def __init__(self, endpoints: Iterable[Endpoint], models: Mapping[str, tuple[Task, ...]] | None = None) -> None:
        """`models` are known with their tasks even while no endpoint serves them."""
        self._models = dict(models or {})
        self._statuses = {endpoint.name: EndpointStatus(endpoint) for endpoint in endpoints}
        self.departed: deque[str] = deque(maxlen=DEPARTED)
        """The names that left last."""
        self.snapshot = self._freeze()

    def replace(self, pool: str, endpoints: Iterable[Endpoint]) -> bool:
        """Let a pool have exactly these endpoints; what is known of one that stays is kept. Returns whether any came or left."""
        wanted = {endpoint.name: endpoint for endpoint in endpoints}
        present = {name: status.endpoint for name, status in self._statuses.items() if status.endpoint.pool == pool}
        if wanted == present:
            return False
        for name in present.keys() - wanted.keys():
            del self._statuses[name]
            self.departed.append(name)
        for name, endpoint in wanted.items():
            if present.get(name) != endpoint:
                self._statuses[name] = EndpointStatus(endpoint)
        self.snapshot = self._freeze()
        return True

    def record(self, name: str, state: EndpointState, reason: str) -> bool:
        """Note how an endpoint is. Returns whether its state changed; one that has left the fleet has none."""
        before = self._statuses.get(name)
        if before is None:
            return False
        if before.state is state and before.reason == reason:
            return False
        self._statuses[name] = EndpointStatus(before.endpoint, state, reason)
        self.snapshot = self._freeze()
        return before.state is not state

    def _freeze(self) -> Snapshot:
        by_model: dict[str, list[EndpointStatus]] = {model: [] for model in self._models}
        for status in self._statuses.values():
            by_model.setdefault(status.endpoint.model, []).append(status)
        return Snapshot(
            MappingProxyType(dict(self._statuses)),
            MappingProxyType({model: tuple(group) for model, group in by_model.items()}),
            MappingProxyType({m: group[0].endpoint.tasks if group else self._models[m] for m, group in by_model.items()}),
        )
