"""The conservation check: after a flow nothing is lost, counted twice or left over.

    async with conserved(settings, {"e1": engine}) as gateway:
        ...

checks on the way out that each client request has one final outcome, that the gateway's attempts are the requests in the
engines' logs, that the tokens metered are the tokens scripted, and that gauges, tasks and sockets are back where they began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field

import psutil

from serving.core.outcomes import AttemptResult
from serving.core.routes import ROUTES
from serving.settings import Settings
from tests.doubles.engine_log import Record
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled

REQUESTS = "serving_requests_total"
ATTEMPTS = "serving_engine_attempts_total"
TOKENS = "serving_tokens_total"
ESTIMATED = "serving_tokens_estimated_total"
"""The part of the tokens that is a guess, since an answer broke off."""
GAUGES = ("serving_in_flight_requests", "serving_open_leases")
TOKEN_KINDS = ("prompt", "cached", "output")


def is_client_request(method: str, path: str) -> bool:
    """What must end in exactly one outcome: work for a model, whatever becomes of it."""
    return method == "POST" and path in ROUTES


@dataclass
class Expectation:
    """What a test knows better than the default rules."""

    client_requests: int | None = None
    """None: counted at the gateway's door."""
    tokens: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Kind → least and most. Default: what engines reported in complete answers, and up to what they have begun."""
    answers_may_be_given_up: bool = False
    """Clients leave while an engine has just written all of its answer: that need not have been read, nor its usage."""
    unreached_results: Collection[str] = (AttemptResult.UNREACHABLE,)
    """Results of attempts that no engine can have seen."""
    unsure_results: Collection[str] = (AttemptResult.STALE,)
    """Results of attempts that an engine may have seen or not; where engines are killed these are more."""


@dataclass
class _Before:
    """Counts before the flow; registries may outlive a gateway in one process."""

    metrics: MetricValues
    requests: dict[str, int]


def _open_sockets() -> list[str]:
    return [f"{c.status} {c.laddr} {c.raddr or ''}" for c in psutil.Process().net_connections(kind="inet")]


class Resources:
    """Tasks and file descriptors of this process at one moment."""

    def __init__(self) -> None:
        self.tasks = asyncio.all_tasks()
        self.descriptors = psutil.Process().num_fds()
        self.sockets = _open_sockets()

    async def problems(self) -> list[str]:
        """What is there now and was not then."""
        now = Resources()
        found = [f"task left: {task!r}" for task in now.tasks - self.tasks]
        if now.descriptors > self.descriptors:
            new = Counter(now.sockets) - Counter(self.sockets)
            found.append(f"file descriptors: {self.descriptors} → {now.descriptors}; new sockets: {sorted(new)}")
        return found


def _delta(after: MetricValues, before: MetricValues, name: str, **labels: str) -> float:
    return after.sum(name, **labels) - before.sum(name, **labels)


def token_bounds(records: Collection[Record]) -> dict[str, tuple[float, float]]:
    """Least and most that a true meter may show for these requests.

    An answer that came whole counts exactly as the engine says. One that broke off has no last usage: its prompt and what
    was delivered may be estimated or missing. Errors cost nothing.
    """
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for record in records:
        if record.usage is None or (record.script is not None and record.script.status != 200):
            continue
        usage = record.usage
        counts = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.completion_tokens}
        most.update(counts)
        if record.outcome == "completed" and "error" not in record.marks:
            least.update(counts)
    return {kind: (least[kind], most[kind]) for kind in TOKEN_KINDS}


def _ledger_problems(
    gateway: RunningGateway,
    engines: Mapping[str, ScriptedEngine],
    before: _Before,
    after: MetricValues,
    expected: Expectation,
) -> list[str]:
    found = []
    clients = expected.client_requests
    if clients is None:
        clients = sum(is_client_request(*arrived) for arrived in gateway.arrived)
    outcomes = _delta(after, before.metrics, REQUESTS)
    if outcomes != clients:
        by_outcome = {(s.labels.get("route"), s.labels.get("outcome")): s.value for s in after.select(REQUESTS)}
        found.append(f"client requests {clients} ≠ final outcomes {outcomes:g}: {by_outcome}")
    for name, engine in engines.items():
        seen = len(engine.log.requests) - before.requests[name]
        attempts = _delta(after, before.metrics, ATTEMPTS, endpoint=name)
        unreached = sum(
            _delta(after, before.metrics, ATTEMPTS, endpoint=name, result=result) for result in expected.unreached_results
        )
        unsure = sum(_delta(after, before.metrics, ATTEMPTS, endpoint=name, result=result) for result in expected.unsure_results)
        if not attempts - unreached - unsure <= seen <= attempts - unreached:
            by_result = {s.labels.get("result"): s.value for s in after.select(ATTEMPTS, endpoint=name)}
            outcomes_seen = Counter(r.outcome for r in engine.log.requests[before.requests[name] :])
            found.append(
                f"{name}: attempts {attempts:g} − unreached {unreached:g} ≠ requests {seen}: {by_result}; log {outcomes_seen}"
            )
    records = [r for name, engine in engines.items() for r in engine.log.requests[before.requests[name] :]]
    for kind, (least, most) in (token_bounds(records) | dict(expected.tokens)).items():
        metered = _delta(after, before.metrics, TOKENS, kind=kind)
        estimated = _delta(after, before.metrics, ESTIMATED, kind=kind)
        if expected.answers_may_be_given_up:
            least = 0
        if not least <= metered <= most + estimated:
            found.append(f"{kind} tokens metered {metered:g}, scripted {least:g}" + (f"…{most:g}" if most != least else ""))
    for name in GAUGES:
        left = [(sample.labels, sample.value) for sample in after.select(name) if sample.value != 0]
        if left:
            found.append(f"{name} is not back to 0: {left}")
    missing = [name for name in GAUGES if not after.select(name)]
    if missing:
        found.append(f"not exported: {missing}")
    return found


def _engine_problems(engines: Mapping[str, ScriptedEngine]) -> list[str]:
    found = []
    for name, engine in engines.items():
        if engine.metrics.running or engine.metrics.waiting:
            found.append(f"{name}: running {engine.metrics.running}, waiting {engine.metrics.waiting}")
        open_records = [(record.number, record.path) for record in engine.log.requests if record.outcome is None]
        if open_records:
            found.append(f"{name}: requests without an end: {open_records}")
    return found


@contextlib.asynccontextmanager
async def conserved(
    settings: Settings,
    engines: Mapping[str, ScriptedEngine],
    expected: Expectation | None = None,
    *,
    within_seconds: float = HANG_SECONDS,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway over engines (by endpoint name) and check conservation when the body ends well.

    `expected` may be changed by the body. A failing body is not checked: its own error is the better message.
    """
    expected = expected or Expectation()
    resources = Resources()
    async with RunningGateway(settings) as gateway:
        requests = {name: len(engine.log.requests) for name, engine in engines.items()}
        before = _Before(await gateway.metrics(), requests)
        yield gateway

        async def problems() -> list[str]:
            after = await gateway.metrics()
            return _ledger_problems(gateway, engines, before, after, expected) + _engine_problems(engines)

        await settled(problems, within_seconds=within_seconds)
    await settled(resources.problems, within_seconds=within_seconds)
