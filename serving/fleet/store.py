"""Which endpoints exist and how they are, read as an immutable snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from serving.core.clock import monotonic
from serving.core.routes import Task
from serving.fleet.breaker import BreakerState
from serving.fleet.engine_load import EngineLoad
from serving.health_settings import HealthSettings


class EndpointState(StrEnum):
    UNKNOWN = "unknown"
    """Not asked yet, or it did not answer in time: neither healthy nor dead. Takes requests when there is no ready one."""
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
    pod: str = ""
    """The pod's name and uid, where Kubernetes tells them. An address that another pod takes over is another endpoint."""
    uid: str = ""
    slots: int | None = None
    """Requests that this gateway gives it at a time; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """An engine that discovery knows and that gets no new requests, since its pod is not ready or on its way out."""

    name: str
    pool: str
    model: str
    pod: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    endpoint: Endpoint
    state: EndpointState = EndpointState.UNKNOWN
    reason: str = "not probed yet"
    breaker: BreakerState = BreakerState.CLOSED
    """What requests say about it, beside what it says itself."""
    level: int = 0
    """How often its breaker's time has doubled: the higher, the worse."""
    opened_at: float = 0.0
    """When its breaker opened last, in monotonic seconds."""
    began_at: float = 0.0
    """When it came in, new or again, in monotonic seconds."""
    ramp_seconds: float = 0.0
    """How long from then on it takes less than its share; 0: not at all."""
    adapters: frozenset[str] = frozenset()
    """The LoRA adapters that its engine listed last, as far as they are set as models."""
    answers_rightly: bool | None = None
    """What known-answer probes say of it; None: nothing yet."""
    wrong: str = ""
    """How wrong its answers are."""
    is_ejected: bool = False
    """For wrong answers: it gets no requests even if there is no other."""

    @property
    def serves(self) -> bool:
        """Ready, and neither requests nor known answers say anything else."""
        return self.state is EndpointState.READY and self.breaker is BreakerState.CLOSED and not self.is_ejected

    def share(self, now: float) -> float:
        """How much of what it would get otherwise it should get, above 0 and up to 1."""
        if not self.ramp_seconds:
            return 1.0
        return min(1.0, max(LEAST_SHARE, (now - self.began_at) / self.ramp_seconds))


LEAST_SHARE = 0.1
"""What an endpoint takes in the first moments of its slow start."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet at one moment."""

    statuses: Mapping[str, EndpointStatus] = field(default_factory=dict)
    """By endpoint name."""
    by_model: Mapping[str, tuple[EndpointStatus, ...]] = field(default_factory=dict)
    """LoRA adapters are models whose endpoints are those of their model that have them."""
    tasks_by_model: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)

    most_ejected_share: float = HealthSettings().most_ejected_share

    candidates_by_model: Mapping[str, tuple[Endpoint, ...]] = field(init=False)
    ramping: Mapping[str, EndpointStatus] = field(init=False)
    """By name, the endpoints whose `share` may be below 1; mostly none."""

    def __post_init__(self) -> None:
        found = {model: _candidates(statuses, self.most_ejected_share) for model, statuses in self.by_model.items()}
        object.__setattr__(self, "candidates_by_model", MappingProxyType(found))
        ramping = {name: status for name, status in self.statuses.items() if status.ramp_seconds and status.serves}
        object.__setattr__(self, "ramping", MappingProxyType(ramping))

    def candidates(self, model: str) -> tuple[Endpoint, ...]:
        """The endpoints that may serve the model: the ready ones but for those that are out for what requests say, else those of
        which nothing is known."""
        return self.candidates_by_model.get(model, ())

    def tasks(self, model: str) -> tuple[Task, ...]:
        """What the engines of the model do with it; none where the model is not known."""
        return self.tasks_by_model.get(model, ())

    def ready(self, model: str) -> bool:
        return any(s.state is EndpointState.READY and not s.is_ejected for s in self.by_model.get(model, ()))

    @property
    def any_ready(self) -> bool:
        return any(s.state is EndpointState.READY for s in self.statuses.values())


def _candidates(statuses: tuple[EndpointStatus, ...], most_ejected_share: float) -> tuple[Endpoint, ...]:
    statuses = tuple(s for s in statuses if not s.is_ejected)
    ready = [s for s in statuses if s.state is EndpointState.READY]
    if not ready:
        return tuple(s.endpoint for s in statuses if s.state is EndpointState.UNKNOWN)
    failing = [s for s in ready if not s.serves]
    if failing:
        # Which of them go: the worst, and among equals those that are out already.
        failing.sort(key=lambda s: (-s.level, s.opened_at))
        out = {s.endpoint.name for s in failing[: most_ejected(len(ready), most_ejected_share)]}
        ready = [s for s in ready if s.endpoint.name not in out]
    return tuple(s.endpoint for s in ready)


def most_ejected(endpoints: int, share: float) -> int:
    """How many of the ready endpoints of a model may be out at once: the share rounded down; one at least, and never all."""
    return min(max(int(endpoints * share + 1e-9), 1), endpoints - 1)


DEPARTED = 64
"""How many names of endpoints that have left are remembered."""


class Fleet:
    """Holds the current snapshot; each change makes a new one."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        models: Mapping[str, tuple[Task, ...]] | None = None,
        settings: HealthSettings = HealthSettings(),  # noqa: B008 (frozen)
        adapters: Mapping[str, str] | None = None,
        may_be_empty: Iterable[str] = (),
    ) -> None:
        """`models` are known with their tasks even while no endpoint serves them; `adapters` are models that belong to another
        one, whose engines may have them; `may_be_empty` are pools that are scaled to nothing and back."""
        self._adapters = dict(adapters or {})
        self._models = dict(models or {})
        self._may_be_empty = frozenset(may_be_empty)
        self._found: set[str] = set()
        """The pools whose endpoints, or that they have none, are known by now."""
        self._settings = settings
        self._statuses = {endpoint.name: EndpointStatus(endpoint) for endpoint in endpoints}
        self.departed: deque[str] = deque(maxlen=DEPARTED)
        """The names that left last."""
        self.withheld: Mapping[str, tuple[Withheld, ...]] = {}
        """By pool; for operators to see."""
        self.loads: Mapping[str, EngineLoad] = MappingProxyType({})
        """By endpoint name: what each engine said last of itself, however long ago; see `load`."""
        self.load_stale_seconds = 10.0
        self.snapshot = self._freeze()

    def replace(self, pool: str, endpoints: Iterable[Endpoint]) -> bool:
        """Let a pool have exactly these endpoints; what is known of one that stays is kept. Returns whether any came or left.

        A new one gets nothing before it was asked.
        """
        self._found.add(pool)
        wanted = {endpoint.name: endpoint for endpoint in endpoints}
        present = {name: status.endpoint for name, status in self._statuses.items() if status.endpoint.pool == pool}
        if wanted == present:
            return False
        for name in present.keys() - wanted.keys():
            del self._statuses[name]
            self.departed.append(name)
        # What another engine said at the same address is not this one's.
        gone = {name for name, endpoint in present.items() if wanted.get(name) != endpoint}
        self.loads = MappingProxyType({name: load for name, load in self.loads.items() if name not in gone})
        for name, endpoint in wanted.items():
            if present.get(name) != endpoint:
                self._statuses[name] = EndpointStatus(endpoint, EndpointState.UNREADY)
        self.snapshot = self._freeze()
        return True

    @property
    def takes_requests(self) -> bool:
        """Whether an engine is ready, or is woken by a request that finds none: a pool that may be empty is known to be."""
        if self.snapshot.any_ready:
            return True
        waiting = self._may_be_empty & self._found
        return bool(waiting - {status.endpoint.pool for status in self._statuses.values()})

    def load(self, name: str) -> EngineLoad | None:
        """What an engine said of itself; None when that is unknown, or too old to mean anything."""
        load = self.loads.get(name)
        return load if load is not None and monotonic() - load.read_at <= self.load_stale_seconds else None

    def record_load(self, endpoint: Endpoint, load: EngineLoad) -> bool:
        """Note what an engine said of itself; one that has left the fleet is forgotten, as are the loads of others that have.

        Returns whether it is still in the fleet.
        """
        kept = {name: known for name, known in self.loads.items() if name in self._statuses}
        status = self._statuses.get(endpoint.name)
        is_here = status is not None and status.endpoint == endpoint
        if is_here:
            kept[endpoint.name] = load
        self.loads = MappingProxyType(kept)
        return is_here

    def withhold(self, pool: str, engines: Iterable[Withheld]) -> None:
        """Note which engines of a pool discovery knows besides its endpoints."""
        self.withheld = {**self.withheld, pool: tuple(engines)}

    def record(self, name: str, state: EndpointState, reason: str, *, began_at: float | None = None) -> bool:
        """Note how an endpoint is. Returns whether its state changed; one that has left the fleet has none.

        `began_at`: it comes in now, new or again, and starts slowly where others of its model have served for longer.
        """
        before = self._statuses.get(name)
        if before is None:
            return False
        if before.state is state and before.reason == reason and began_at is None:
            return False
        after = replace(before, state=state, reason=reason)
        self._statuses[name] = after if began_at is None else self._beginning(after, began_at)
        self.snapshot = self._freeze()
        return before.state is not state

    def record_adapters(self, name: str, listed: Iterable[str]) -> None:
        """Note the LoRA adapters that an endpoint's engine lists; those that are not set as models of it are left out."""
        before = self._statuses.get(name)
        if before is None or not self._adapters:
            return
        found = frozenset(each for each in listed if self._adapters.get(each) == before.endpoint.model)
        if found != before.adapters:
            self._statuses[name] = replace(before, adapters=found)
            self.snapshot = self._freeze()

    def forget_adapter(self, name: str, adapter: str) -> None:
        """A request has found that an endpoint does not have it any more."""
        status = self._statuses.get(name)
        if status is not None:
            self.record_adapters(name, status.adapters - {adapter})

    def mark(self, name: str, breaker: BreakerState, level: int, opened_at: float, now: float) -> bool:
        """Note how an endpoint's breaker is at `now` monotonic seconds. Returns whether its state changed."""
        before = self._statuses.get(name)
        if before is None or (before.breaker, before.level, before.opened_at) == (breaker, level, opened_at):
            return False
        after = replace(before, breaker=breaker, level=level, opened_at=opened_at)
        is_back = breaker is BreakerState.CLOSED and before.breaker is not breaker
        self._statuses[name] = self._beginning(after, now) if is_back else after
        self.snapshot = self._freeze()
        return before.breaker is not breaker

    def mark_quality(self, name: str, *, inside: bool, said: str = "", ejected: bool = False) -> bool:
        """Note what known-answer probes say of an endpoint. Returns whether that changed, apart from the words."""
        before = self._statuses.get(name)
        if before is None or (before.answers_rightly, before.wrong, before.is_ejected) == (inside, said, ejected):
            return False
        self._statuses[name] = replace(before, answers_rightly=inside, wrong=said, is_ejected=ejected)
        self.snapshot = self._freeze()
        return (before.answers_rightly, before.is_ejected) != (inside, ejected)

    def end_ramps(self, now: float) -> None:
        """Let go of slow starts that are over."""
        over = [name for name, status in self.snapshot.ramping.items() if status.share(now) >= 1.0]
        for name in over:
            self._statuses[name] = replace(self._statuses[name], ramp_seconds=0.0)
        if over:
            self.snapshot = self._freeze()

    def _beginning(self, status: EndpointStatus, now: float) -> EndpointStatus:
        """The status of an endpoint that comes in. Where all are new, nobody else could take what it leaves."""
        seconds = self._settings.slow_start_seconds
        others = self.snapshot.by_model[status.endpoint.model]
        has_older = any(s.serves and now - s.began_at >= seconds for s in others if s.endpoint.name != status.endpoint.name)
        return replace(status, began_at=now, ramp_seconds=seconds if has_older else 0.0)

    def _freeze(self) -> Snapshot:
        by_model: dict[str, list[EndpointStatus]] = {model: [] for model in self._models}
        for status in self._statuses.values():
            by_model.setdefault(status.endpoint.model, []).append(status)
        tasks = {model: group[0].endpoint.tasks if group else self._models[model] for model, group in by_model.items()}
        for adapter, model in self._adapters.items():
            by_model[adapter] = [status for status in by_model.get(model, ()) if adapter in status.adapters]
            tasks[adapter] = tasks.get(model, ())
        return Snapshot(
            MappingProxyType(dict(self._statuses)),
            MappingProxyType({model: tuple(group) for model, group in by_model.items()}),
            MappingProxyType(tasks),
            self._settings.most_ejected_share,
        )
