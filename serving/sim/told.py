"""From an engine's facts to the samples of vLLM's families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from serving.core.clock import wall_seconds
from serving.sim.exposition import Labels, Samples, exposition, lines
from serving.sim.model import EngineModel
from serving.sim.plan import EnginePlan

_FINISHED = ("stop", "length", "abort", "error", "repetition")
_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
_REJECTED = ("max_num_queued_reqs", "max_num_queued_tokens")


def engine_lines(plan: EnginePlan, models: Iterable[EngineModel], *, every_metric: bool, created_seconds: float) -> Iterator[str]:
    """All of vLLM's families; an engine with several data-parallel ranks has a series of each."""
    ranks = list(models)
    told: dict[str, Samples] = {}
    for number, model in enumerate(ranks):
        for name, samples in _samples(plan, model).items():
            told.setdefault(name, []).extend(({"engine": str(number), **labels}, value) for labels, value in samples)
    told |= _of_the_front_end(plan, ranks)
    own = {"model_name": plan.model, "engine": "0"}
    return exposition(
        plan.version,
        options=plan.options,
        every_metric=every_metric,
        own=own,
        told=told,
        created_seconds=created_seconds,
    )


def simulation_lines(plan: EnginePlan, facts: Mapping[str, str], lag_seconds: float) -> Iterator[str]:
    """What no real engine exports: that it is simulated, and whether the simulation keeps up."""
    labels = {"profile": plan.profile, "target": plan.target, "model": plan.model, **facts}
    yield from lines(
        "serving_sim_info", "gauge", "This engine is simulated; none of its figures is a measurement.", [(labels, 1)], None
    )
    about = "How late the last event was; above a step's time the process has too many engines or too high a speed."
    yield from lines("serving_sim_lag_seconds", "gauge", about, [({}, lag_seconds)], None)


def _samples(plan: EnginePlan, model: EngineModel) -> dict[str, Samples]:
    facts, scheduler, pool = model.facts, model.scheduler, model.pool
    waiting, deferred = model.waiting, min(model.waiting, scheduler.deferred)
    finished: dict[str, int] = {str(reason): count for reason, count in facts.finished.items()}
    computed = facts.prompt_tokens - facts.cached_prompt_tokens
    single: dict[str, float] = {
        "num_requests_running": model.running,
        "num_requests_waiting": waiting,
        "kv_cache_usage_perc": pool.used_blocks / pool.capacity_blocks,
        "prefix_cache_queries": facts.prefix_queries,
        "prefix_cache_hits": facts.prefix_hits,
        "num_preemptions": facts.preemptions,
        "prompt_tokens": facts.prompt_tokens,
        "prompt_tokens_cached": facts.cached_prompt_tokens,
        "generation_tokens": facts.generation_tokens,
        "spec_decode_num_drafts": facts.drafts,
        "spec_decode_num_draft_tokens": facts.drafts * plan.draft_tokens,
        "spec_decode_num_accepted_tokens": facts.accepted_tokens,
    }
    samples: dict[str, Samples] = {f"vllm:{name}": [({}, value)] for name, value in single.items()}
    samples |= {name: [({}, histogram)] for name, histogram in facts.histograms.items() if name in _OBSERVED}
    by_label: dict[str, tuple[str, Mapping[str, float]]] = {
        "num_requests_waiting_by_reason": ("reason", {"capacity": waiting - deferred, "deferred": deferred}),
        "engine_sleep_state": ("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}),
        "prompt_tokens_by_source": (
            "source",
            {"local_compute": computed, "local_cache_hit": facts.cached_prompt_tokens, "external_kv_transfer": 0},
        ),
        "prompt_tokens_cached_by_source": ("source", dict.fromkeys(_TIERS, 0) | {"device": facts.prefix_hits}),
        "request_success": ("finished_reason", {reason: finished.get(reason, 0) for reason in _FINISHED}),
    }
    for name, (label, values) in by_label.items():
        samples[f"vllm:{name}"] = [({label: value}, count) for value, count in values.items()]
    places = range(max(1, plan.draft_tokens))
    samples["vllm:spec_decode_num_accepted_tokens_per_pos"] = [({"position": str(at)}, facts.accepted_at[at]) for at in places]
    samples["vllm:cache_config_info"] = [(_cache_config(plan, model), 1)]
    return samples


_OBSERVED = frozenset(
    f"vllm:{name}"
    for name in (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "iteration_tokens_total", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "request_prefill_time_seconds", "request_inference_time_seconds"),
        *("request_decode_time_seconds", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
        *("request_prompt_tokens", "request_generation_tokens", "request_time_per_output_token_seconds"),
        *("request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"),
    )
)


def _of_the_front_end(plan: EnginePlan, ranks: list[EngineModel]) -> dict[str, Samples]:
    rejected = {reason: sum(model.facts.rejections[reason] for model in ranks) for reason in _REJECTED}
    running = {s.adapter: None for model in ranks for s in model.scheduler.running if s.adapter}
    waiting = {s.adapter: None for model in ranks for s in model.scheduler.waiting if s.adapter}
    adapters = {
        "max_lora": str(plan.limits.max_loras),
        "running_lora_adapters": ",".join(running),
        "waiting_lora_adapters": ",".join(waiting),
    }
    return {
        "vllm:admission_rejections": [({"reason": reason}, count) for reason, count in rejected.items()],
        "vllm:lora_requests_info": [(adapters, wall_seconds())],
    }


def _cache_config(plan: EnginePlan, model: EngineModel) -> Labels:
    tokens = plan.capacity_blocks * plan.block_tokens
    known = {
        "block_size": str(plan.block_tokens),
        "effective_attention_block_size": str(plan.block_tokens),
        "num_gpu_blocks": str(plan.capacity_blocks),
        "kv_cache_size_tokens": str(tokens),
        "kv_cache_max_concurrency": str(tokens / plan.limits.max_model_len),
        "enable_prefix_caching": str(plan.keeps_prefixes),
    }
    return _CACHE_CONFIG | known


_CACHE_CONFIG: dict[str, str] = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
"""What a real engine of this version says where nothing is set."""
