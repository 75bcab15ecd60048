"""Engines: what vLLM says of itself. The names are those of the snapshot of its version in configs/engines."""

from __future__ import annotations

from .choices import FLEET
from .measures import TOKENS_PER_SECOND
from .panels import Dashboard, Panel, Query, Row, lines, stacked
from .queries import ENGINE, MODEL, engine_quantile, mean, mean_of_all, rate, summed


def engines() -> Dashboard:
    return Dashboard(
        "serving-engines",
        "Serving / Engines",
        "Why is it slow? The first screen says where the time of a request goes, which engines are full, what waits "
        "and why, and what "
        "the caches save. All of it is vLLM's own account.",
        FLEET,
        (
            *_time(),
            *_room(),
            Row("Work"),
            *_work(),
            Row("Latency in the engine"),
            *_latency(),
            Row("Speculative decoding"),
            *_speculation(),
        ),
    )


def _time() -> tuple[Panel, ...]:
    gateway = f"sum({rate('serving_queue_seconds_sum', MODEL)}) / (sum({rate('serving_queue_seconds_count', MODEL)}) > 0)"
    stages = (
        ("vllm:request_queue_time_seconds", "waits in the engine"),
        ("vllm:request_prefill_time_seconds", "reads the prompt"),
        ("vllm:request_decode_time_seconds", "writes"),
    )
    return (
        stacked(
            "Where the time goes",
            "Mean seconds of a request over what is chosen above: waiting in the gateway (those that had to), in the engine, "
            "reading its prompt, writing.",
            "s",
            Query(f"{gateway} or on () vector(0)", "waits in the gateway"),
            *(Query(mean_of_all(series, ENGINE), words) for series, words in stages),
            width=12,
            height=8,
        ),
        stacked(
            "Waiting by reason",
            "Requests that wait in engines: for a place in the batch or the cache (capacity), or put off for something "
            "else (deferred).",
            "none",
            Query(f"sum by (pool, reason) (vllm:num_requests_waiting_by_reason{{{ENGINE}}})", "{{reason}} {{pool}}"),
            width=12,
            height=8,
        ),
    )


def _room() -> tuple[Panel, ...]:
    hits = summed("pool", rate("vllm:prefix_cache_hits_total", ENGINE))
    queries = summed("pool", rate("vllm:prefix_cache_queries_total", ENGINE))
    return (
        lines(
            "KV cache in use",
            "Of each engine. Near 100 % it puts requests aside, and computes them again later.",
            "percentunit",
            Query(f"max by (pool, pod, instance) (vllm:kv_cache_usage_perc{{{ENGINE}}})", "{{pool}} {{pod}} {{instance}}"),
            width=6,
            most=1,
        ),
        lines(
            "Preemptions",
            "Requests a second that an engine put aside since its cache was full.",
            "ops",
            Query(summed("pool, pod, instance", rate("vllm:num_preemptions_total", ENGINE)), "{{pool}} {{pod}} {{instance}}"),
            width=6,
        ),
        lines(
            "Prefix cache hit rate",
            "Share of the prompt tokens looked up that were cached.",
            "percentunit",
            Query(f"{hits} / ({queries} > 0)", "{{pool}}"),
            width=6,
            most=1,
        ),
        stacked(
            "Prompt tokens by source",
            "Tokens a second that were computed, found in the engine's cache, or fetched from elsewhere.",
            TOKENS_PER_SECOND,
            Query(summed("source", rate("vllm:prompt_tokens_by_source_total", ENGINE)), "{{source}}"),
            width=6,
        ),
    )


def _work() -> tuple[Panel, ...]:
    return (
        lines(
            "Running",
            "Requests in the batch of each engine.",
            "none",
            Query(f"sum by (pool, pod, instance) (vllm:num_requests_running{{{ENGINE}}})", "{{pool}} {{pod}} {{instance}}"),
            width=6,
        ),
        lines(
            "Waiting",
            "Requests that each engine holds and does not run.",
            "none",
            Query(f"sum by (pool, pod, instance) (vllm:num_requests_waiting{{{ENGINE}}})", "{{pool}} {{pod}} {{instance}}"),
            width=6,
        ),
        lines(
            "Output tokens by engine",
            "Tokens a second that each engine writes. Zero beside running requests is an engine that hangs.",
            TOKENS_PER_SECOND,
            Query(summed("pool, pod, instance", rate("vllm:generation_tokens_total", ENGINE)), "{{pool}} {{pod}} {{instance}}"),
            width=6,
        ),
        lines(
            "Prompt tokens by engine",
            "Tokens a second that each engine reads, cached ones included.",
            TOKENS_PER_SECOND,
            Query(summed("pool, pod, instance", rate("vllm:prompt_tokens_total", ENGINE)), "{{pool}} {{pod}} {{instance}}"),
            width=6,
        ),
        stacked(
            "Ended requests",
            "A second, by why the engine ended them; `length` is max_tokens or the context's end, `abort` a client that left.",
            "reqps",
            Query(summed("finished_reason", rate("vllm:request_success_total", ENGINE)), "{{finished_reason}}"),
            width=6,
        ),
        lines(
            "Tokens of a step",
            "Mean of prompt and output tokens that one step of an engine works on; its bound is --max-num-batched-tokens.",
            "short",
            Query(mean("vllm:iteration_tokens_total", ENGINE, "pool"), "{{pool}}"),
            width=6,
        ),
        lines(
            "Tokens of a prompt",
            "Half of the prompts are shorter, and all but one in twenty.",
            "short",
            Query(engine_quantile(0.5, "vllm:request_prompt_tokens", "pool"), "p50 {{pool}}"),
            Query(engine_quantile(0.95, "vllm:request_prompt_tokens", "pool"), "p95 {{pool}}"),
            width=6,
        ),
        lines(
            "Tokens of an answer",
            "Half of the answers are shorter, and all but one in twenty.",
            "short",
            Query(engine_quantile(0.5, "vllm:request_generation_tokens", "pool"), "p50 {{pool}}"),
            Query(engine_quantile(0.95, "vllm:request_generation_tokens", "pool"), "p95 {{pool}}"),
            width=6,
        ),
    )


def _latency() -> tuple[Panel, ...]:
    panels = (
        ("First token in the engine", "From the engine's door to its first token; the gateway's includes its own queue.",
         "vllm:time_to_first_token_seconds"),
        ("Time between tokens", "Between two tokens of a request, as the engine counts it.", "vllm:inter_token_latency_seconds"),
        ("Queue in the engine", "That requests wait in the engine before they are run.", "vllm:request_queue_time_seconds"),
        ("Whole requests", "From the engine's door to the last token.", "vllm:e2e_request_latency_seconds"),
    )  # fmt: skip
    return tuple(
        lines(
            title,
            description,
            "s",
            Query(engine_quantile(0.5, series, "pool"), "p50 {{pool}}"),
            Query(engine_quantile(0.95, series, "pool"), "p95 {{pool}}"),
            width=6,
        )
        for title, description, series in panels
    )


def _speculation() -> tuple[Panel, ...]:
    def total(name: str) -> str:
        return summed("pool", rate(f"vllm:spec_decode_num_{name}_total", ENGINE))

    return (
        lines(
            "Accepted draft tokens",
            "Share of the guessed tokens that were right. Only pools that guess have a line.",
            "percentunit",
            Query(f"{total('accepted_tokens')} / ({total('draft_tokens')} > 0)", "{{pool}}"),
            most=1,
        ),
        lines(
            "Tokens of a draft",
            "How many tokens one step of a request yields with guessing: 1 and those accepted.",
            "short",
            Query(f"1 + {total('accepted_tokens')} / ({total('drafts')} > 0)", "{{pool}}"),
        ),
        lines(
            "Accepted by place",
            "Accepted tokens a second at each place of the draft; where it falls to nothing, guessing further is wasted.",
            TOKENS_PER_SECOND,
            Query(
                summed("pool, position", rate("vllm:spec_decode_num_accepted_tokens_per_pos_total", ENGINE)),
                "{{pool}} at {{position}}",
            ),
        ),
    )
