"""For each alert a run in which it rings and one in which it does not."""

from __future__ import annotations

from tests.chart.alert_tests import Fires, Quiet

POOL = 'namespace="a", model="m", pool="p"'
ENGINE = f'{POOL}, target="t", endpoint="e"'
OF_ENGINE = {"namespace": "a", "model": "m", "pool": "p", "target": "t", "endpoint": "e"}
OF_MODEL = {"namespace": "a", "model": "m"}


def requests(ok: str, failed: str, *, kind: str = "engine_error") -> dict[str, str]:
    return {
        f'serving_requests_total{{{POOL.split(", pool")[0]}, outcome="ok"}}': ok,
        f'serving_requests_total{{{POOL.split(", pool")[0]}, outcome="{kind}"}}': failed,
    }


def objective(name: str, met: str, missed: str) -> dict[str, str]:
    labels = f'{POOL}, class="interactive", objective="{name}"'
    return {
        f'serving_objective_requests_total{{{labels}, met="true"}}': met,
        f'serving_objective_requests_total{{{labels}, met="false"}}': missed,
    }


def _objective_cases(alert: str, name: str) -> list[Fires | Quiet]:
    labels = OF_MODEL | {"class": "interactive", "objective": name}
    return [
        Fires(f"{alert}Fast", objective(name, "0+10x400", "0+90x400"), 90, labels, "90%"),
        Quiet(
            f"{alert}Fast",
            "half miss it: that is for the slow one",
            objective(name, "0+50x400", "0+50x400"),
            90,
        ),
        Quiet(
            f"{alert}Fast",
            "it is over: the short window is clean again",
            objective(name, "0+0x60 0+100x30", "0+100x60 6000+0x30"),
            80,
        ),
        Fires(f"{alert}Slow", objective(name, "0+50x400", "0+50x400"), 380, labels, "50%"),
        Quiet(f"{alert}Slow", "a tenth misses it", objective(name, "0+90x400", "0+10x400"), 380),
    ]


PROMISES: list[Fires | Quiet] = [
    Fires("ServingAvailabilityBurnsFast", requests("0+95x400", "0+5x400"), 90, OF_MODEL, "5%"),
    Quiet("ServingAvailabilityBurnsFast", "one in a thousand", requests("0+999x400", "0+1x400"), 90),
    Quiet("ServingAvailabilityBurnsFast", "who asked was wrong", requests("0+1x400", "0+99x400", kind="invalid"), 90),
    Fires("ServingAvailabilityBurnsSlow", requests("0+99x400", "0+1x400"), 380, OF_MODEL, "1%"),
    Quiet("ServingAvailabilityBurnsSlow", "one in a thousand", requests("0+999x400", "0+1x400"), 380),
    *_objective_cases("ServingTtftBurns", "ttft"),
    *_objective_cases("ServingChunkLatencyBurns", "inter_chunk"),
]

ENGINES: list[Fires | Quiet] = [
    Fires(
        "ServingNoReadyEndpoint",
        {
            f'serving_ready_endpoints{{{POOL}, instance="1"}}': "1x4 0x20",
            f'serving_ready_endpoints{{{POOL}, instance="2"}}': "1x4 0x20",
            'serving_ready_endpoints{namespace="b", model="m", pool="p", instance="3"}': "1x24",
        },
        10,
        OF_MODEL,
    ),
    Quiet(
        "ServingNoReadyEndpoint",
        "one gateway does not see the engine, the other one does",
        {
            f'serving_ready_endpoints{{{POOL}, instance="1"}}': "0x20",
            f'serving_ready_endpoints{{{POOL}, instance="2"}}': "1x20",
        },
        10,
    ),
    Quiet(
        "ServingNoReadyEndpoint",
        "one pool of the model is left",
        {
            f'serving_ready_endpoints{{{POOL}, instance="1"}}': "0x20",
            'serving_ready_endpoints{namespace="a", model="m", pool="q", instance="1"}': "2x20",
        },
        10,
    ),
    Fires("ServingEngineDown", {f"serving_endpoint_ready{{{ENGINE}}}": "1x4 0x20"}, 15, OF_ENGINE),
    Quiet("ServingEngineDown", "back after three minutes", {f"serving_endpoint_ready{{{ENGINE}}}": "1x4 0x2 1x20"}, 9),
    Fires(
        "ServingEngineHung",
        {
            f"serving_endpoint_requests_in_flight{{{ENGINE}}}": "3x30",
            'serving_endpoint_output_tokens_total{namespace="a", pool="p", endpoint="e"}': "500x30",
            'serving_engine_attempts_total{namespace="a", pool="p", endpoint="e", result="timeout"}': "0+1x30",
        },
        20,
        OF_ENGINE,
    ),
    Quiet(
        "ServingEngineHung",
        "it writes",
        {
            f"serving_endpoint_requests_in_flight{{{ENGINE}}}": "3x30",
            'serving_endpoint_output_tokens_total{namespace="a", pool="p", endpoint="e"}': "0+500x30",
        },
        20,
    ),
    Quiet(
        "ServingEngineHung",
        "it has nothing to do",
        {
            f"serving_endpoint_requests_in_flight{{{ENGINE}}}": "0x30",
            'serving_endpoint_output_tokens_total{namespace="a", pool="p", endpoint="e"}': "500x30",
        },
        20,
    ),
    Fires(
        "ServingEngineFlaps",
        {f"serving_endpoint_ready{{{ENGINE}}}": "1 0 1 0 1 0 1 0 1 0 1"},
        8,
        OF_ENGINE,
        "8",
    ),
    Quiet("ServingEngineFlaps", "restarted once", {f"serving_endpoint_ready{{{ENGINE}}}": "1x4 0x3 1x10"}, 15),
    Fires("ServingQueueGrows", {f"serving_queued_requests{{{POOL}}}": "10+5x60"}, 40, OF_MODEL),
    Quiet("ServingQueueGrows", "long, and stays as it is", {f"serving_queued_requests{{{POOL}}}": "50x60"}, 40),
    Quiet("ServingQueueGrows", "it was empty a moment ago", {f"serving_queued_requests{{{POOL}}}": "0x30 0+10x10"}, 40),
    Fires(
        "ServingKvCacheFull",
        {
            'vllm:kv_cache_usage_perc{namespace="a", pool="p", target="t", instance="i", engine="0"}': "0.99x30",
            'vllm:num_preemptions_total{namespace="a", pool="p", target="t", instance="i", engine="0"}': "0+3x30",
        },
        20,
        {"namespace": "a", "pool": "p", "target": "t", "instance": "i"},
    ),
    Quiet(
        "ServingKvCacheFull",
        "full of what may be dropped: nothing is put aside",
        {
            'vllm:kv_cache_usage_perc{namespace="a", pool="p", target="t", instance="i", engine="0"}': "0.99x30",
            'vllm:num_preemptions_total{namespace="a", pool="p", target="t", instance="i", engine="0"}': "7x30",
        },
        20,
    ),
    Fires(
        "ServingCacheHitRateCollapsed",
        {
            f'serving_tokens_total{{{POOL}, target="t", kind="prompt"}}': "0+1000x800",
            f'serving_tokens_total{{{POOL}, target="t", kind="cached"}}': "0+600x720 432000+100x80",
        },
        790,
        OF_MODEL | {"pool": "p", "target": "t"},
        "10%",
    ),
    Quiet(
        "ServingCacheHitRateCollapsed",
        "prompts never repeat here",
        {
            f'serving_tokens_total{{{POOL}, target="t", kind="prompt"}}': "0+1000x800",
            f'serving_tokens_total{{{POOL}, target="t", kind="cached"}}': "0+60x720 43200+1x80",
        },
        790,
    ),
    Fires("ServingQualityGateFailed", {f"serving_quality_state{{{ENGINE}}}": "1x4 0x20"}, 15, OF_ENGINE),
    Quiet("ServingQualityGateFailed", "inside the band", {f"serving_quality_state{{{ENGINE}}}": "1x30"}, 15),
]


def prediction(expected: str, error: str, streams: str = "0+10x200") -> dict[str, str]:
    return {
        f"serving_time_to_first_token_error_seconds_count{{{POOL}}}": streams,
        f"serving_predicted_time_to_first_token_seconds_sum{{{POOL}}}": expected,
        f"serving_time_to_first_token_error_seconds_sum{{{POOL}}}": error,
    }


def dollars_left(values: str) -> dict[str, str]:
    labels = 'namespace="a", tenant="red", limit="dollars"'
    return {f'serving_limit_left{{{labels}, instance="1"}}': values, f"serving_tenant_limit{{{labels}}}": "100x60"}


GATEWAYS: list[Fires | Quiet] = [
    Fires("ServingNoGateway", {}, 5),
    Quiet("ServingNoGateway", "there is one", {'serving_build_info{version="1"}': "1x20"}, 5),
    Fires("ServingPredictionWrong", prediction("0+10x200", "0+20x200"), 150, OF_MODEL | {"pool": "p"}, "200%"),
    Quiet("ServingPredictionWrong", "a fifth of a second", prediction("0+10x200", "0+20x200", "0+100x200"), 150),
    Quiet("ServingPredictionWrong", "a third off", prediction("0+30x200", "0+10x200"), 150),
    Quiet("ServingPredictionWrong", "wrong for a while only", prediction("0+10x200", "0+20x40 800+1x160"), 150),
    Fires("ServingBudgetNearlySpent", dollars_left("50x10 8x30"), 26, {"namespace": "a", "tenant": "red"}, "8%"),
    Quiet("ServingBudgetNearlySpent", "half is left", dollars_left("50x30"), 26),
    Fires(
        "ServingGatewayRestarts",
        {
            'process_start_time_seconds{namespace="a", job="j", instance="i"}': "1x4 2x4 3x4 4x4",
            'serving_build_info{namespace="a", job="j", instance="i", version="1"}': "1x20",
        },
        18,
        {"namespace": "a", "job": "j", "instance": "i"},
        "3",
    ),
    Quiet(
        "ServingGatewayRestarts",
        "another program's",
        {
            'process_start_time_seconds{namespace="a", job="k", instance="i"}': "1x4 2x4 3x4 4x4",
            'serving_build_info{namespace="a", job="j", instance="i", version="1"}': "1x20",
        },
        18,
    ),
    Quiet(
        "ServingGatewayRestarts",
        "one restart",
        {
            'process_start_time_seconds{namespace="a", job="j", instance="i"}': "1x9 2x9",
            'serving_build_info{namespace="a", job="j", instance="i", version="1"}': "1x20",
        },
        18,
    ),
    Fires(
        "ServingScrapeMissing",
        {'up{namespace="a", serving="engine", instance="i"}': "1x4 0x20"},
        15,
        {"namespace": "a", "serving": "engine", "instance": "i"},
    ),
    Quiet("ServingScrapeMissing", "nothing of ours", {'up{namespace="a", instance="i"}': "0x20"}, 15),
]
CASES = [*PROMISES, *ENGINES, *GATEWAYS]
