"""Overview: is it up, and how well does it do?"""

from __future__ import annotations

from .choices import FLEET
from .measures import ALL, DOLLARS, TOKENS_PER_SECOND, bill_per_million, tokens, tokens_per_node
from .panels import GREEN, RED, Dashboard, Query, Row, lines, stacked, stat
from .queries import MODEL, OURS, POOL, POOL_LABELS, TARGET, quantile, rate, summed, with_target

ENDPOINTS = "namespace, model, pool, target, endpoint"


def overview() -> Dashboard:
    return Dashboard(
        "serving-overview",
        "Serving / Overview",
        "Is it up? The first screen says: engines, gateways, failures, objectives, throughput, latency and what it costs. "
        "Why it is slow: Engines. Who uses it: Tenants. What it costs and which target is better: Targets compared.",
        FLEET,
        (*_now(), Row("Requests"), *_requests(), Row("Latency and throughput"), *_speed(), Row("Capacity"), *_capacity()),
    )


def _now() -> tuple[Row | object, ...]:
    scraped = 'up{namespace=~"$namespace", serving=~"gateway|engine"}'
    return (
        stat(
            "Ready engines",
            "Endpoints that are ready, as the gateway that sees most sees them.",
            "none",
            Query(f"sum(max by (namespace, model, pool) (serving_ready_endpoints{{{POOL}}}))", "ready"),
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Gateways",
            "Gateways that Prometheus reads.",
            "none",
            Query('count(serving_build_info{namespace=~"$namespace"})', "gateways"),
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Scraped",
            "Share of the gateways and engines that answer Prometheus; what does not is missing from all other panels.",
            "percentunit",
            Query(f"sum({scraped}) / count({scraped})", "answer"),
            steps=((None, RED), (1, GREEN)),
        ),
        stat(
            "Quality",
            "Engines whose answers are outside the band that their checkpoint was measured with. 0 also where nothing is probed.",
            "none",
            Query(f"count(min by ({ENDPOINTS}) (serving_quality_state{{{TARGET}}}) == 0) or on () vector(0)", "outside"),
            steps=((None, GREEN), (1, RED)),
        ),
        stat(
            "Requests",
            "Requests a second that have ended, whatever their outcome.",
            "reqps",
            Query(f"sum({rate('serving_requests_total', MODEL)})", "requests"),
        ),
        stat(
            "First token",
            "Half of the streams have their first token within this time.",
            "s",
            Query(_quantile_of_all(0.5, "serving_time_to_first_token_seconds"), "p50"),
        ),
        stat(
            "Bill",
            "Dollars an hour for all accelerators that there are now, used or idle.",
            DOLLARS,
            Query(
                f"sum(max by ({POOL_LABELS}) (serving_accelerators{{{TARGET}}})"
                f" * max by ({POOL_LABELS}) (serving_accelerator_price_dollars_per_hour{{{TARGET}}}))",
                "an hour",
            ),
            decimals=2,
        ),
        stat(
            "A million tokens",
            "Dollars: the whole bill, idle time included, over prompt and output tokens.",
            DOLLARS,
            Query(
                f"sum(serving:bill_dollars_per_hour:rate5m{{{TARGET}}})"
                f" / (sum(serving:tokens:rate5m{{{TARGET}, {ALL}}}) * 3600 / 1e6)",
                "a million",
            ),
            decimals=3,
        ),
    )


def _quantile_of_all(share: float, series: str) -> str:
    return f"histogram_quantile({share}, sum by (le) ({with_target('le', rate(f'{series}_bucket', POOL))}))"


def _requests() -> tuple[object, ...]:
    every = summed("model", rate("serving_requests_total", f'{MODEL}, outcome=~"ok|{OURS}"'))
    failed = summed("model", rate("serving_requests_total", f'{MODEL}, outcome=~"{OURS}"'))
    return (
        stacked(
            "Requests by outcome",
            "Ended requests a second. Every request has exactly one outcome.",
            "reqps",
            Query(summed("outcome", rate("serving_requests_total", MODEL)), "{{outcome}}"),
        ),
        lines(
            "Failed requests",
            "Share of requests that failed through this side's fault: engines or gateways full, away or broken. "
            "Requests that were "
            "wrong or given up by who asked count in neither part.",
            "percentunit",
            Query(f"({failed} or {every} * 0) / {every}", "{{model}}"),
        ),
        lines(
            "Objectives kept",
            "Share of requests that met their class's objective for the first token (ttft) and for the time between chunks.",
            "percentunit",
            Query(
                f"avg by (objective, class) (serving:objective_attainment:rate5m{{{POOL}}})",
                "{{objective}} {{class}}",
            ),
            most=1,
        ),
    )


def _speed() -> tuple[object, ...]:
    def latency(title: str, description: str, series: str, high: float) -> object:
        return lines(
            title,
            description,
            "s",
            Query(quantile(0.5, series, "target"), "p50 {{target}}"),
            Query(quantile(high, series, "target"), f"p{round(high * 100)} {{{{target}}}}"),
        )

    return (
        latency(
            "Time to first token",
            "From arrival at the gateway to the first chunk of a stream, queueing included.",
            "serving_time_to_first_token_seconds",
            0.95,
        ),
        latency(
            "Time between chunks",
            "As a client sees it; a chunk may carry several tokens.",
            "serving_inter_chunk_seconds",
            0.99,
        ),
        latency(
            "Time to the last byte",
            "From arrival to the last byte of whole answers.",
            "serving_request_duration_seconds",
            0.95,
        ),
        lines(
            "Output tokens",
            "Tokens a second that engines wrote, by target.",
            TOKENS_PER_SECOND,
            Query(tokens("target", 'kind="output"'), "{{target}}"),
        ),
        lines(
            "Prompt tokens",
            "Tokens a second that engines read, cached ones included, by target.",
            TOKENS_PER_SECOND,
            Query(tokens("target", 'kind="prompt"'), "{{target}}"),
        ),
        lines(
            "Output tokens of a node",
            "The same for one node of each target, so that targets of different size compare.",
            TOKENS_PER_SECOND,
            Query(tokens_per_node("target", 'kind="output"'), "{{target}}"),
        ),
    )


def _capacity() -> tuple[object, ...]:
    cached, prompt = tokens("target", 'kind="cached"'), tokens("target", 'kind="prompt"')
    return (
        lines(
            "KV cache in use",
            "Mean of the engines of a pool, as they say. From 95 % on requests wait or are put aside.",
            "percentunit",
            Query(f"avg by (pool) (serving_engine_kv_cache_usage_ratio{{{TARGET}}})", "{{pool}}"),
            most=1,
        ),
        lines(
            "Waiting requests",
            "That wait in gateways for a slot, and in engines.",
            "none",
            Query(f"sum by (model) (serving:queued_requests:now{{{MODEL}}})", "{{model}}"),
        ),
        lines(
            "Cache hit rate",
            "Share of the prompt tokens that engines had cached.",
            "percentunit",
            Query(f"({cached} or {prompt} * 0) / {prompt}", "{{target}}"),
            most=1,
        ),
        lines(
            "Dollars of a million tokens",
            "The whole bill of a target, idle time included, over its prompt and output tokens.",
            DOLLARS,
            Query(bill_per_million("target", ALL), "{{target}}"),
        ),
        lines(
            "Running requests",
            "Requests under way at the engines of each pool.",
            "none",
            Query(f"sum by (pool) (serving_running_requests{{{POOL}}})", "{{pool}}"),
        ),
        lines(
            "Restarts of gateways",
            "How often a gateway's process started anew within the last hour.",
            "none",
            Query(
                'changes(process_start_time_seconds{namespace=~"$namespace"}[1h])'
                " and on (namespace, instance, job) serving_build_info",
                "{{instance}}",
            ),
        ),
    )
