"""The alerts. Each has a page in docs/runbooks/ by its name, and a panel that shows what it is about."""

from __future__ import annotations

from dataclasses import dataclass

from .queries import rate
from .recording import FAST, SLOW

AVAILABILITY, KEPT = 0.999, 0.95
"""What is promised over 30 days: requests that do not fail through this side's fault, and requests that keep their objective."""
WORTH_KNOWING_SECONDS = 0.5
"""Of the mean error of a predicted first token; less sends no request to a worse engine that anybody would notice."""
BURNS = ((14.4, FAST, "critical", "Fast", "2m"), (6.0, SLOW, "warning", "Slow", "15m"))


@dataclass(frozen=True)
class Alert:
    """`panel` is the dashboard and the title of the panel in it."""

    name: str
    expression: str
    hold: str
    severity: str
    summary: str
    description: str
    panel: tuple[str, str]


def burning() -> list[Alert]:
    """Two alerts for each promise: both windows are over, so that neither a blip nor what is long past rings."""
    made: list[Alert] = []
    promises = (
        (
            "ServingAvailabilityBurns",
            "serving:requests_failed:ratio_rate",
            "",
            1 - AVAILABILITY,
            "Requests for {{ $labels.model }} fail",
            "{{ $value | humanizePercentage }} of the requests for {{ $labels.model }} fail through our fault",
            ("overview", "Failed requests"),
        ),
        (
            "ServingTtftBurns",
            "serving:objective_missed:ratio_rate",
            '{objective="ttft"}',
            1 - KEPT,
            "First tokens of {{ $labels.model }} come late",
            "{{ $value | humanizePercentage }} of the {{ $labels.class }} requests for {{ $labels.model }} wait too long for "
            "their first token",
            ("overview", "Objectives kept"),
        ),
        (
            "ServingChunkLatencyBurns",
            "serving:objective_missed:ratio_rate",
            '{objective="inter_chunk"}',
            1 - KEPT,
            "Streams of {{ $labels.model }} are slow",
            "{{ $value | humanizePercentage }} of the {{ $labels.class }} streams of {{ $labels.model }} are slower "
            "than promised",
            ("overview", "Objectives kept"),
        ),
    )
    for name, series, matchers, budget, summary, description, panel in promises:
        for times, (short, long), severity, speed, hold in BURNS:
            most = f"{times * budget:.4g}"
            made.append(
                Alert(
                    f"{name}{speed}",
                    f"{series}{long}{matchers} > {most} and {series}{short}{matchers} > {most}",
                    hold,
                    severity,
                    summary,
                    f"Over {long} {description}: {times:g} times what the promise of a month has room for.",
                    panel,
                )
            )
    return made


def engines() -> list[Alert]:
    labels = "namespace, model, pool, target, endpoint"
    busy = f"min by ({labels}) (min_over_time(serving_endpoint_requests_in_flight[10m])) > 0"
    wrote = f"sum by (namespace, pool, endpoint) ({rate('serving_endpoint_output_tokens_total', window='10m')}) > 0"
    ended = rate("serving_engine_attempts_total", 'result=~"ok|refused|busy"', "10m")
    answered = f"sum by (namespace, pool, endpoint) ({ended}) > 0"
    caches = "namespace, pool, target, pod, instance"
    return [
        Alert(
            "ServingNoReadyEndpoint",
            "max by (namespace, model) (sum by (namespace, instance, model) (serving_ready_endpoints)) == 0",
            "2m",
            "critical",
            "No engine is ready for {{ $labels.model }}",
            "Requests for the model {{ $labels.model }} in the namespace {{ $labels.namespace }} are answered 503.",
            ("overview", "Ready engines"),
        ),
        Alert(
            "ServingEngineDown",
            f"max by ({labels}) (serving_endpoint_ready) == 0",
            "5m",
            "warning",
            "The engine {{ $labels.endpoint }} is not ready",
            "No gateway finds the engine {{ $labels.endpoint }} of the pool {{ $labels.pool }} on {{ $labels.target }} ready.",
            ("routing", "Endpoints not ready"),
        ),
        Alert(
            "ServingEngineHung",
            f"{busy} unless on (namespace, pool, endpoint) ({wrote}) unless on (namespace, pool, endpoint) ({answered})",
            "2m",
            "critical",
            "The engine {{ $labels.endpoint }} takes requests and answers none",
            "The engine {{ $labels.endpoint }} of the pool {{ $labels.pool }} has had requests for 10 minutes and ended none of "
            "them, nor written a token.",
            ("engines", "Output tokens by engine"),
        ),
        Alert(
            "ServingEngineFlaps",
            f"max by ({labels}) (changes(serving_endpoint_ready[30m])) > 5",
            "0m",
            "warning",
            "The engine {{ $labels.endpoint }} comes and goes",
            "The engine {{ $labels.endpoint }} of the pool {{ $labels.pool }} changed between ready and not ready "
            "{{ $value | humanize }} times within 30 minutes.",
            ("routing", "Endpoints not ready"),
        ),
        Alert(
            "ServingQueueGrows",
            "deriv(serving:queued_requests:now[15m]) > 0 and min_over_time(serving:queued_requests:now[15m]) > 5",
            "5m",
            "warning",
            "More and more requests wait for {{ $labels.model }}",
            "The queue of {{ $labels.model }} has not been empty for 15 minutes and grows: its engines get more than "
            "they can do.",
            ("overview", "Waiting requests"),
        ),
        Alert(
            "ServingKvCacheFull",
            f"max by ({caches}) (vllm:kv_cache_usage_perc) > 0.95"
            f" and on ({caches}) sum by ({caches}) ({rate('vllm:num_preemptions_total', window='5m')}) > 0",
            "5m",
            "warning",
            "The KV cache of an engine of {{ $labels.pool }} is full",
            "The engine at {{ $labels.instance }} of the pool {{ $labels.pool }} puts requests aside to make room, and computes "
            "them again later.",
            ("engines", "KV cache in use"),
        ),
        Alert(
            "ServingCacheHitRateCollapsed",
            "serving:cache_hit_ratio:rate30m < 0.5 * serving:cache_hit_ratio:rate1d and serving:cache_hit_ratio:rate1d > 0.1",
            "15m",
            "warning",
            "Prompts of {{ $labels.model }} are hardly cached any more",
            "The pool {{ $labels.pool }} finds {{ $value | humanizePercentage }} of its prompt tokens in its cache, less than "
            "half of what the last day had.",
            ("overview", "Cache hit rate"),
        ),
        Alert(
            "ServingQualityGateFailed",
            f"min by ({labels}) (serving_quality_state) == 0",
            "5m",
            "critical",
            "The engine {{ $labels.endpoint }} answers worse than it should",
            "The answers of the engine {{ $labels.endpoint }} of the pool {{ $labels.pool }} on {{ $labels.target }} are outside "
            "the band that its checkpoint was measured with.",
            ("overview", "Quality"),
        ),
    ]


def gateways() -> list[Alert]:
    predicted = f"sum by (namespace, model, pool) ({rate('serving_predicted_time_to_first_token_seconds_sum', window='1h')})"
    error = f"sum by (namespace, model, pool) ({rate('serving_time_to_first_token_error_seconds_sum', window='1h')})"
    streams = f"sum by (namespace, model, pool) ({rate('serving_time_to_first_token_error_seconds_count', window='1h')})"
    return [
        Alert(
            "ServingNoGateway",
            "absent(serving_build_info)",
            "2m",
            "critical",
            "No gateway is scraped",
            "No gateway gives serving_build_info: the pods are gone, or Prometheus does not reach them.",
            ("overview", "Gateways"),
        ),
        Alert(
            "ServingPredictionWrong",
            f"{error} / {predicted} > 1 and {error} / {streams} > {WORTH_KNOWING_SECONDS}",
            "1h",
            "warning",
            "Routing expects other times than {{ $labels.pool }} has",
            "The time to the first token in the pool {{ $labels.pool }} is off by {{ $value | humanizePercentage }} of "
            "what routing "
            "expected: requests go where they should not.",
            ("routing", "Error of the expected time"),
        ),
        Alert(
            "ServingBudgetNearlySpent",
            'min by (namespace, tenant) (serving_limit_left{limit="dollars"})'
            ' / max by (namespace, tenant) (serving_tenant_limit{limit="dollars"}) < 0.1',
            "5m",
            "warning",
            "The tenant {{ $labels.tenant }} has nearly spent its budget",
            "The tenant {{ $labels.tenant }} has {{ $value | humanizePercentage }} of its dollars left; then it is refused.",
            ("tenants", "Limits left"),
        ),
        Alert(
            "ServingGatewayRestarts",
            "changes(process_start_time_seconds[1h]) > 2 and on (namespace, instance, job) serving_build_info",
            "0m",
            "warning",
            "The gateway {{ $labels.instance }} restarts again and again",
            "The gateway at {{ $labels.instance }} started {{ $value | humanize }} times within an hour; what it "
            "streamed was cut off.",
            ("overview", "Restarts of gateways"),
        ),
        Alert(
            "ServingScrapeMissing",
            'up{serving=~"gateway|engine"} == 0',
            "5m",
            "warning",
            "Nothing is read from {{ $labels.instance }}",
            "The {{ $labels.serving }} at {{ $labels.instance }} does not answer Prometheus: its panels are empty and its alerts "
            "are blind.",
            ("overview", "Scraped"),
        ),
    ]


GROUPS = {"promises": burning, "engines": engines, "gateways": gateways}
