"""The part of vLLM's `/metrics` that others read, kept by a scripted engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_GAUGES = {
    "vllm:num_requests_running": "Number of requests in model execution batches.",
    "vllm:num_requests_waiting": "Number of requests waiting to be processed.",
    "vllm:kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS = {
    "vllm:prefix_cache_queries_total": "Prefix cache queries, in terms of number of queried tokens.",
    "vllm:prefix_cache_hits_total": "Prefix cache hits, in terms of number of cached tokens.",
    "vllm:prompt_tokens_total": "Number of prefill tokens processed.",
    "vllm:prompt_tokens_cached_total": "Number of cached prompt tokens (local + external).",
    "vllm:generation_tokens_total": "Number of generation tokens processed.",
}
_FINISHED = ("stop", "length", "abort", "error", "repetition")


@dataclass
class EngineMetrics:
    """Counts of one engine process."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FINISHED, 0))

    def text(self, model: str, overrides: Mapping[str, float]) -> bytes:
        """The exposition; `overrides` replaces values by name (to freeze or to lie)."""
        values: dict[str, float] = {
            "vllm:num_requests_running": self.running,
            "vllm:num_requests_waiting": self.waiting,
            "vllm:kv_cache_usage_perc": 0.0,
            "vllm:prefix_cache_queries_total": self.prompt_tokens,
            "vllm:prefix_cache_hits_total": self.cached_tokens,
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:prompt_tokens_cached_total": self.cached_tokens,
            "vllm:generation_tokens_total": self.generation_tokens,
        }
        values.update(overrides)
        labels = f'engine="0",model_name="{model}"'
        lines = []
        for kind, names in (("gauge", _GAUGES), ("counter", _COUNTERS)):
            for name, explanation in names.items():
                lines += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}"]
                lines.append(f"{name}{{{labels}}} {float(values[name])}")
        name = "vllm:request_success_total"
        lines += [f"# HELP {name} Count of successfully processed requests.", f"# TYPE {name} counter"]
        for reason, count in self.finished.items():
            lines.append(f'{name}{{engine="0",finished_reason="{reason}",model_name="{model}"}} {float(count)}')
        return ("\n".join(lines) + "\n").encode()
