"""Pools and endpoints: which there are, how they are, and what happens at them."""

from serving.observability.series.definition import counter, gauge

POOL_INFO = gauge(
    "serving_pool_info",
    "Always 1; which models and targets a pool has. A pool with endpoints of several targets has one series for each.",
    "model", "pool", "target",
    over_gateways="max",
)  # fmt: skip
READY_ENDPOINTS = gauge(
    "serving_ready_endpoints", "Endpoints of a pool that are ready; 0 when it has none.", "model", "pool", over_gateways="max"
)
RUNNING_REQUESTS = gauge(
    "serving_running_requests", "Requests under way at a pool's engines; 0 when it has none.", "model", "pool"
)
ENDPOINT_READY = gauge(
    "serving_endpoint_ready",
    "1 ready, 0 not ready; absent while nothing is known.",
    "model", "pool", "target", "endpoint",
    over_gateways="each",
)  # fmt: skip
ENDPOINT_BREAKER = gauge(
    "serving_endpoint_breaker",
    "1 for the state of the endpoint's breaker: closed, open (left out for failing), half_open (on trial).",
    "model", "pool", "target", "endpoint", "state",
    over_gateways="each",
)  # fmt: skip
ENDPOINT_IN_FLIGHT = gauge(
    "serving_endpoint_requests_in_flight",
    "Requests that this gateway has under way at an endpoint.",
    "model", "pool", "target", "endpoint",
)  # fmt: skip
ENDPOINT_OUTPUT_TOKENS = counter(
    "serving_endpoint_output_tokens", "Output tokens of an endpoint's answers, as its engine counted them.", "pool", "endpoint"
)
ATTEMPTS = counter(
    "serving_engine_attempts",
    "Attempts at engines, by result; `unreachable` ones never became a request.",
    "pool", "endpoint", "result",
)  # fmt: skip
EJECTIONS = counter(
    "serving_endpoint_ejections",
    "Times that an endpoint was left out for what requests or a trial said about it, by what happened last.",
    "pool", "endpoint", "reason",
)  # fmt: skip
DISCOVERY_FAILURES = counter(
    "serving_discovery_failures", "Look-ups of a pool's addresses that failed; the last known ones are kept.", "pool"
)
LOAD_FAILURES = counter(
    "serving_engine_load_failures",
    "Reads of an engine's own metrics that failed; what it said last grows stale and is then unknown.",
    "pool",
)
ENGINE_RUNNING = gauge(
    "serving_engine_running_requests",
    "Requests that an engine says it runs, over all of its ranks.",
    "model", "pool", "target", "endpoint",
    over_gateways="max",
)  # fmt: skip
ENGINE_WAITING = gauge(
    "serving_engine_waiting_requests",
    "Requests that an engine says wait in it, over all of its ranks.",
    "model", "pool", "target", "endpoint",
    over_gateways="max",
)  # fmt: skip
ENGINE_KV_CACHE = gauge(
    "serving_engine_kv_cache_usage_ratio",
    "Used share of an engine's KV cache, the mean of its ranks.",
    "model", "pool", "target", "endpoint",
    over_gateways="max",
)  # fmt: skip
