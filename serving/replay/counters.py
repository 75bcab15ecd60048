"""What an engine's /metrics say of a run: its cache, its tokens and whether somebody else used it meanwhile."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S*)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_NAMES = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "output_tokens",
    "vllm:prefix_cache_queries_total": "cache_queries",
    "vllm:prefix_cache_hits_total": "cache_hits",
    "vllm:num_preemptions_total": "preemptions",
}
"""Series of vLLM, summed over all their labels."""


@dataclass(frozen=True)
class Counters:
    """Tokens and events since the engines began, summed over all addresses that were asked."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0
    preemptions: float = 0.0

    def since(self, earlier: Counters) -> Counters:
        return Counters(**{name: getattr(self, name) - getattr(earlier, name) for name in Counters.__dataclass_fields__})

    @property
    def cached_share(self) -> float | None:
        """Of the tokens that were looked up."""
        return self.cache_hits / self.cache_queries if self.cache_queries else None

    @property
    def went_back(self) -> bool:
        """A counter fell: an engine began anew."""
        return min(self.prompt_tokens, self.output_tokens, self.cache_queries) < 0


@dataclass(frozen=True)
class CacheFacts:
    """Of an engine's prefix cache, as it tells them."""

    block_tokens: int | None = None
    capacity_tokens: int | None = None
    is_enabled: bool | None = None


def read_counters(texts: Iterable[str]) -> Counters | None:
    """Of one or several engines' expositions; None when one of them has no counter of vLLM's, or one that is no number."""
    sums = dict.fromkeys(_NAMES.values(), 0.0)
    for text in texts:
        found = False
        for line in text.splitlines():
            if line.startswith("vllm:") and (match := _LINE.match(line)) and (field := _NAMES.get(match[1])):
                sums[field] += _number(match[3])
                found = True
        if not found or not all(map(math.isfinite, sums.values())):
            return None
    return Counters(**sums)


def read_cache_facts(texts: Iterable[str]) -> CacheFacts:
    """Blocks of the first engine that tells them, the capacity of all together."""
    block_tokens: int | None = None
    capacity_tokens: int | None = None
    is_enabled: bool | None = None
    for text in texts:
        labels = info_labels(text, "vllm:cache_config_info")
        if (size := _whole(labels.get("block_size"))) is not None:
            block_tokens = block_tokens or size
        if (capacity := _whole(labels.get("kv_cache_size_tokens"))) is not None:
            capacity_tokens = (capacity_tokens or 0) + capacity
        if labels.get("enable_prefix_caching") in ("True", "False"):
            is_enabled = labels["enable_prefix_caching"] == "True" and is_enabled is not False
    return CacheFacts(block_tokens, capacity_tokens, is_enabled)


def info_labels(text: str, name: str) -> dict[str, str]:
    """The labels of a series that is there for them; empty without it."""
    for line in text.splitlines():
        if line.startswith(name + "{") and (match := _LINE.match(line)):
            return dict(_LABEL.findall(match[2] or ""))
    return {}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
