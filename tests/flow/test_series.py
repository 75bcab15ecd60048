"""How many series a gateway exports is bounded: by the fleet and the tenants, and never by what clients write."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from serving.app import create_app
from serving.core.context import RequestContext, Usage
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.routes import CHAT_COMPLETIONS
from serving.fleet.engine_load import EngineLoad
from serving.fleet.store import EndpointState
from serving.observability.metrics import MOST_TENANTS, OTHER, Metrics
from serving.observability.series import GROUPS
from serving.routing.cost import OBJECTIVES
from serving.settings import Settings
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.tenants import tenants
from tests.flow.conftest import chat

ENDPOINTS, POOLS, TENANTS = 100, 20, 200
MOST_SERIES = 20_000
LIMITS = {"requests_per_minute": 1000, "tokens_per_minute": 10_000_000, "concurrency": 100, "dollars_per_day": 100}
DEFINED = {series.exposed: series for group in GROUPS.values() for series in group}


def exported(metrics: Metrics) -> MetricValues:
    return MetricValues(metrics.exposition()[0].decode())


def ended(number: int, endpoint: Any, outcome: Outcome) -> RequestContext:
    ctx = RequestContext(f"r{number}", CHAT_COMPLETIONS, None, 1.0)
    ctx.tenant, ctx.model, ctx.asked_model = f"tenant-{number % TENANTS}", endpoint.model, endpoint.model
    ctx.pool, ctx.target, ctx.endpoint, ctx.outcome, ctx.attempts = endpoint.pool, endpoint.target, endpoint.name, outcome, 1
    ctx.first_byte = ctx.first_token = 2.0
    ctx.last_byte, ctx.stream, ctx.usage, ctx.usage_estimated = 8.0, True, Usage(100, 60, 4), True
    ctx.chunk_intervals = [1] * 16
    return ctx


def test_a_large_fleet_with_many_tenants_stays_within_the_bound() -> None:
    endpoints = [
        {"name": f"e-{n}", "url": f"http://e-{n}:1", "model": f"m-{n % 10}", "pool": f"p-{n % POOLS}", "target": f"t-{n % 4}"}
        for n in range(ENDPOINTS)
    ]
    known = tenants({f"tenant-{number}": {"limits": LIMITS} for number in range(TENANTS)})
    targets = {f"t-{n}": {"dollars_per_accelerator_hour": 3, "power_watts": 1000} for n in range(4)}
    prices = {"models": {f"m-{n}": {"prompt": 1, "output": 1} for n in range(10)}}
    gateway = create_app(Settings.model_validate({"endpoints": endpoints, "targets": targets, "prices": prices, **known}))
    metrics, fleet = gateway.metrics, gateway.fleet
    for status in list(fleet.snapshot.statuses.values()):
        fleet.record(status.endpoint.name, EndpointState.READY, "ok")
        fleet.record_load(status.endpoint, EngineLoad(1e12, 1, 1.0, 1.0, 0.5, 0.5, None, None, None, None, None))
        metrics.attempt(status.endpoint.pool, status.endpoint.name, AttemptResult.OK)
    every = [status.endpoint for status in fleet.snapshot.statuses.values()]
    pairs = itertools.product(range(TENANTS), Outcome)
    for number, (tenant, outcome) in enumerate(pairs):
        ctx = ended(tenant, every[number % ENDPOINTS], outcome)
        for objective in OBJECTIVES.values():
            metrics.settle(ctx, 9.0, objective)
        metrics.charge(ctx.tenant, 0.1)
        for histogram in (metrics.predicted_ttft, metrics.ttft_error):
            histogram.observe((ctx.model, ctx.pool), 1.0)
        metrics.limit_refusals.add((ctx.tenant, "requests"))
    values = exported(metrics)
    assert len(values.samples) < MOST_SERIES
    assert len(values.select("serving_tenant_requests_total")) == TENANTS * len(Outcome), "the whole of it is there"
    assert len(values.select("serving_endpoint_requests_in_flight")) == ENDPOINTS


def test_every_exported_series_is_defined_and_has_the_labels_that_are_defined() -> None:
    endpoint = {"name": "e1", "url": "http://e:1", "model": "m"}
    gateway = create_app(Settings.model_validate({"endpoints": [endpoint]}))
    (status,) = gateway.fleet.snapshot.statuses.values()
    gateway.metrics.settle(ended(0, status.endpoint, Outcome.OK), 9.0, OBJECTIVES["standard"])
    found = [sample for sample in exported(gateway.metrics).samples if sample.name.startswith("serving_")]
    for sample in found:
        name = sample.name
        base = next((name.removesuffix(end) for end in ("_bucket", "_sum", "_count") if name.removesuffix(end) in DEFINED), name)
        if name.endswith("_created"):
            continue  # the library's own
        assert base in DEFINED, f"{name} is not defined in serving/observability/series"
        assert set(sample.labels) - {"le"} == set(DEFINED[base].labels), name


def test_of_too_many_tenants_the_later_ones_are_one() -> None:
    metrics = Metrics()
    endpoint = next(
        iter(
            create_app(
                Settings.model_validate({"endpoints": [{"name": "e", "url": "http://e:1", "model": "m"}]})
            ).fleet.snapshot.statuses.values()
        )
    ).endpoint
    for number in range(MOST_TENANTS + 50):
        ctx = ended(0, endpoint, Outcome.OK)
        ctx.tenant = f"tenant-{number}"
        metrics.settle(ctx, 9.0)
    values = exported(metrics)
    assert values.sum("serving_tenant_requests_total", tenant=OTHER) == 50
    assert len(values.select("serving_tenant_requests_total")) == MOST_TENANTS + 1
    assert values.sum("serving_tenant_requests_total") == MOST_TENANTS + 50


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hostile_client_adds_no_series(engine: ScriptedEngine, stream: bool) -> None:
    """Models, paths, methods, keys, headers and fields of its own choice, and engines' answers that name what is not there."""
    endpoint = {"name": "e1", "url": engine.url, "model": "tiny"}
    sections = tenants({"red": {"may_use_class_header": True}})
    async with RunningGateway(Settings.model_validate({"endpoints": [endpoint], **sections})) as gateway:

        async def hostile(number: int) -> None:
            word = f"x{number}\N{GRINNING FACE}"
            headers = {"Authorization": "Bearer sk-red", "x-request-class": f"c{number}", "x-request-id": f"id-{number}"}
            body = chat(model=word, stream=stream, user=word) | {word: word}
            await ask(gateway.url, "/v1/chat/completions", body, headers=headers)
            await ask(gateway.url, f"/v1/{number}", chat(), headers=headers)
            await ask(gateway.url, f"/metrics/{number}", method="GET")
            await ask(gateway.url, "/v1/chat/completions", chat(), headers={"Authorization": f"Bearer sk-{number}"})
            del headers["x-request-class"]
            engine.script(Script(finish_reason=word, text=(word,)))
            await ask(gateway.url, "/v1/chat/completions", chat(stream=stream, user=word), headers=headers)
            async with RawClient(gateway.url) as client:
                await client.send(request_bytes("/v1/completions", None, method=f"M{number}"))
                await client.read_head()

        await hostile(0)
        await hostile(1)
        before = {(s.name, *sorted(s.labels.items())) for s in (await gateway.metrics()).samples}
        for number in range(2, 12):
            await hostile(number)
        after = {(s.name, *sorted(s.labels.items())) for s in (await gateway.metrics()).samples}
        assert after - before == set()
