"""Plans as JSON: every figure of the text, with the unit in its name."""

from __future__ import annotations

import dataclasses
from typing import Any

from serving.catalog.compare import Versus
from serving.catalog.plan import Plan, Spread
from serving.catalog.plan_text import limit_of
from serving.catalog.roofline import Bound
from serving.catalog.side_by_side import Row


def plan_json(plan: Plan, comparisons: list[Versus] | None = None) -> dict[str, Any]:
    """One plan."""
    checkpoint = plan.load.checkpoint
    return {
        "profile": plan.profile.name if plan.profile else None,
        "model": plan.load.model.name,
        "target": plan.target.name,
        "engine_version": plan.profile.engine_version if plan.profile else None,
        "status": plan.profile.status if plan.profile else None,
        "runs": plan.runs,
        "problems": list(plan.problems),
        "would_fit": list(plan.remedies),
        "weights": {
            "format": checkpoint.format,
            "rest_format": checkpoint.rest_format or checkpoint.format,
            "bytes": checkpoint.weights_bytes,
            "parameters": plan.load.shape.parameters,
            "active_parameters": plan.load.shape.active_parameters,
        },
        "workload": plan.workload.model_dump(),
        "notes": list(plan.notes),
        "engine": _spread(plan.used),
        "best": _spread(plan.best) if plan.best else None,
        "bound_problem": plan.bound_problem,
        "throughput": dataclasses.asdict(plan.throughput) if plan.throughput else None,
        "price": {
            "dollars_per_accelerator_hour": plan.dollars_per_accelerator_hour,
            "source": plan.price_source,
            "dollars_per_engine_hour": plan.dollars_per_hour,
        },
        "dollars_per_million_output_tokens": plan.dollars_per_million_output_tokens,
        "watts": plan.watts,
        "watts_per_output_token_per_second": plan.joules_per_output_token,
        "comparisons": [_versus(entry) for entry in comparisons or []],
    }


def rows_json(rows: list[Row]) -> list[dict[str, Any]]:
    """A comparison, a plan a row."""
    return [
        {
            "name": row.name,
            "verdict": row.verdict,
            "bound_output_tokens_per_node_second": row.bound_per_node,
            "output_tokens_per_node_second": row.throughput_per_node,
            "plan": plan_json(row.plan),
        }
        for row in rows
    ]


def _spread(way: Spread) -> dict[str, Any]:
    device = way.device
    return {
        "parallelism": str(way.parallel),
        "accelerators": way.parallel.accelerators,
        "nodes": way.nodes_per_engine,
        "engines_per_node": way.engines_per_node,
        "memory": {
            "capacity_bytes": device.capacity_bytes,
            "usable_bytes": device.usable_bytes,
            "weights_bytes": device.weights_bytes,
            "overhead_bytes": device.overhead_bytes,
            "kv_bytes": device.kv_bytes,
            "missing_bytes": device.missing_bytes,
        },
        "kv_bytes_per_token": device.kv_bytes_per_token,
        "kv_tokens": device.kv_tokens,
        "requests_that_fit": way.requests,
        "concurrency": way.batch,
        "roofline": _bound(way.bound) if way.bound else None,
    }


def _bound(bound: Bound) -> dict[str, Any]:
    prefill, decode = bound.prefill, bound.decode
    return {
        "prefill": dataclasses.asdict(prefill)
        | {"seconds_per_token": prefill.seconds_per_token, "tokens_per_second": prefill.tokens_per_second},
        "decode": dataclasses.asdict(decode)
        | {
            "weights_seconds": decode.weights_seconds,
            "kv_seconds": decode.kv_seconds,
            "step_seconds": decode.step_seconds,
            "output_tokens_per_second": decode.output_tokens_per_second,
        },
        "new_tokens_per_output_token": bound.new_tokens_per_output_token,
        "output_tokens_per_second": bound.output_tokens_per_second,
        "limited_by": limit_of(bound),
    }


def _versus(versus: Versus) -> dict[str, Any]:
    told = {field.name: getattr(versus, field.name) for field in dataclasses.fields(versus)}
    return told | {"claim": versus.claim.model_dump() if versus.claim else None}
