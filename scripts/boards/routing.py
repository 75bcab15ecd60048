"""Routing: what was predicted and what came of it, retries, breakers."""

from __future__ import annotations

from .choices import FLEET
from .panels import Dashboard, Panel, Query, Row, lines, stacked, stepped
from .queries import POOL, TARGET, quantile, rate, summed

SPACE = 'namespace=~"$namespace"'
ENDPOINT = f'{SPACE}, pool=~"$pool"'
"""Of series that name an endpoint by its pool."""
PREDICTED, ERROR = "serving_predicted_time_to_first_token_seconds", "serving_time_to_first_token_error_seconds"


def routing() -> Dashboard:
    return Dashboard(
        "serving-routing",
        "Serving / Routing",
        "Why did requests go where they went, and was it right? Times and cached tokens as predicted beside those that "
        "came, then what "
        "failed and was tried again.",
        FLEET,
        (*_predictions(), Row("Where requests go"), *_decisions(), Row("What fails"), *_failures()),
    )


def _predictions() -> tuple[Panel, ...]:
    error = summed("pool", rate(f"{ERROR}_sum", POOL))
    predicted = summed("pool", rate(f"{PREDICTED}_sum", POOL))
    cached = summed("pool", rate("serving_predicted_cached_tokens_total", POOL))
    found = summed("pool", rate("serving_predicted_cached_tokens_observed_total", POOL))
    return (
        lines(
            "First token: expected and seen",
            "The median of the streams that had a choice of engines, from when the engine is asked; and of all "
            "streams, from their arrival.",
            "s",
            Query(quantile(0.5, PREDICTED, "pool"), "expected {{pool}}"),
            Query(quantile(0.5, "serving_time_to_first_token_seconds", "pool"), "seen {{pool}}"),
        ),
        lines(
            "Error of the expected time",
            "How far the time to the first token was off, up or down, as a share of what was expected. Above 100 % for "
            "an hour, and half a second on average, it is an alert.",
            "percentunit",
            Query(f"{error} / ({predicted} > 0)", "{{pool}}"),
        ),
        lines(
            "Error of the expected time, distribution",
            "Half of the predictions were off by less, and all but one in twenty.",
            "s",
            Query(quantile(0.5, ERROR, "pool"), "p50 {{pool}}"),
            Query(quantile(0.95, ERROR, "pool"), "p95 {{pool}}"),
        ),
        lines(
            "Cached tokens: expected and found",
            "Prompt tokens a second that routing expected in the caches of the engines, and those that were there, of "
            "the same requests.",
            "suffix:tok/s",
            Query(cached, "expected {{pool}}"),
            Query(found, "found {{pool}}"),
        ),
        lines(
            "Error of the expected cache",
            "Tokens that were expected and not found, or found and not expected, as a share of those found.",
            "percentunit",
            Query(f"abs({cached} - {found}) / ({found} > 0)", "{{pool}}"),
        ),
        lines(
            "Memory of known prompts",
            "What each gateway keeps to know which engine has which prompts cached; routing.index_bytes bounds it.",
            "bytes",
            Query(f"serving_prefix_index_bytes{{{SPACE}}}", "{{instance}}"),
        ),
    )


def _decisions() -> tuple[Panel, ...]:
    return (
        stacked(
            "Decisions",
            "Engines chosen a second, by what decided.",
            "ops",
            Query(summed("reason", rate("serving_routing_decisions_total", SPACE)), "{{reason}}"),
        ),
        lines(
            "Requests under way by engine",
            "That gateways have at each engine. Even lines are an even load only where engines are alike.",
            "none",
            Query(f"sum by (pool, endpoint) (serving_endpoint_requests_in_flight{{{TARGET}}})", "{{endpoint}}"),
        ),
        lines(
            "Output tokens by engine",
            "Tokens a second that each engine wrote for requests that have ended.",
            "suffix:tok/s",
            Query(summed("endpoint", rate("serving_endpoint_output_tokens_total", ENDPOINT)), "{{endpoint}}"),
        ),
    )


def _failures() -> tuple[Panel, ...]:
    endpoints = "namespace, model, pool, target, endpoint"
    states = f'max by ({endpoints}, state) (serving_endpoint_breaker{{{TARGET}, state!="closed"}})'
    attempts = f"sum({rate('serving_engine_attempts_total', SPACE)})"
    return (
        stacked(
            "Attempts by result",
            "Attempts at engines a second. `busy` is a full engine, `unreachable` never became a request.",
            "ops",
            Query(summed("result", rate("serving_engine_attempts_total", ENDPOINT)), "{{result}}"),
        ),
        lines(
            "Retries",
            "Share of the attempts that followed a failed one; the budget ends at 20 %.",
            "percentunit",
            Query(f"sum({rate('serving_retries_total', SPACE)}) / {attempts}", "retries"),
        ),
        stacked(
            "Retries not made",
            "Failed attempts a second that another engine might have mended and that were final, by why.",
            "ops",
            Query(summed("reason", rate("serving_retries_denied_total", SPACE)), "{{reason}}"),
        ),
        stepped(
            "Endpoints not ready",
            "By pool, as their health says; an engine that comes and goes shows as a comb.",
            "none",
            Query(f"sum by (pool) (1 - max by ({endpoints}) (serving_endpoint_ready{{{TARGET}}}))", "{{pool}}"),
        ),
        stepped(
            "Breakers not closed",
            "Endpoints that are left out for what requests say about them (open) or are on trial (half_open).",
            "none",
            Query(f"sum by (pool, state) ({states})", "{{state}} {{pool}}"),
        ),
        lines(
            "Endpoints left out",
            "How often an endpoint was left out for failing within the last hour, by pool.",
            "none",
            Query(f"sum by (pool) (increase(serving_endpoint_ejections_total{{{ENDPOINT}}}[1h])) or on () vector(0)", "{{pool}}"),
        ),
    )
