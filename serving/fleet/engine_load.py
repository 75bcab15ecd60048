"""What an engine says of itself in its metrics, in the names of vLLM 0.32, over all of its data-parallel ranks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

RUNNING = b"vllm:num_requests_running"
WAITING = b"vllm:num_requests_waiting"
CACHE_USAGE = b"vllm:kv_cache_usage_perc"
PREFIX_QUERIES = b"vllm:prefix_cache_queries_total"
PREFIX_HITS = b"vllm:prefix_cache_hits_total"
PROMPT_TOKENS = b"vllm:prompt_tokens_total"
OUTPUT_TOKENS = b"vllm:generation_tokens_total"
PREEMPTIONS = b"vllm:num_preemptions_total"
NAMES = (RUNNING, WAITING, CACHE_USAGE, PREFIX_QUERIES, PREFIX_HITS, PROMPT_TOKENS, OUTPUT_TOKENS, PREEMPTIONS)
MOST_SERIES = 16_384
"""Lines with these names in one page; more is no engine."""
_ADAPTERS = re.compile(rb"\nvllm:lora_requests_info\{([^\n]*)\} ([0-9.eE+]+)")
"""A series for each set of adapters that there ever was; the value is the time at which it was true."""
_LABEL = re.compile(rb'(max_lora|running_lora_adapters|waiting_lora_adapters)="([^"]*)"')
_PREFIX = b"vllm:"
_SAMPLE = re.compile(b"\n" + _PREFIX + b"(" + b"|".join(name.removeprefix(_PREFIX) for name in NAMES) + rb")([{ \t][^\n]*)")
"""Searching is many times faster than reading all lines, of which few matter: 0.3 ms for the page of a real engine."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One read of an engine's metrics. None: the engine did not say, which is not zero.

    Each rank of a data-parallel engine has series of its own. Requests and tokens are sums over the ranks.
    """

    read_at: float
    """Monotonic seconds."""
    ranks: int
    """How many series each figure has: one for each rank."""
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    """From 0 to 1: the mean of the ranks, whose caches are of one size; so it is the used share of the whole cache."""
    kv_cache_usage_of_fullest: float | None
    """The same of the rank with the fullest cache, which is the first to preempt."""
    prefix_queries: float | None
    """Tokens that were looked up in the prefix cache since the engine began; `prefix_hits` of them were there."""
    prefix_hits: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    preemptions: float | None
    cache_hit_rate: float | None = None
    """Since the read before, as the figures below; None where no token was looked up, and after the engine's restart."""
    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    adapter_slots: int | None = None
    """LoRA adapters that it can have in its memory at once; None: it has none, or did not say."""
    adapters_running: frozenset[str] | None = None
    """Those that requests which are running ask for."""


def read_load(exposition: bytes, read_at: float, before: EngineLoad | None = None) -> EngineLoad | None:
    """The load that the text of a `/metrics` page tells; None when it tells neither running nor waiting requests.

    Whatever the bytes are, nothing is raised. A value that makes no sense is one that is not there, and a figure that not all
    ranks tell is unknown.
    """
    found = _read_values(exposition)
    ranks = max(map(len, found.values()))
    sums = {name: sum(values) if len(values) == ranks else None for name, values in found.items()}
    running, waiting = sums[RUNNING], sums[WAITING]
    if not ranks or (running is None and waiting is None):
        return None
    slots, adapters = _read_adapters(exposition)
    used = found[CACHE_USAGE] if sums[CACHE_USAGE] is not None and max(found[CACHE_USAGE]) <= 1.0 else []
    load = EngineLoad(
        read_at=read_at,
        ranks=ranks,
        running=running,
        waiting=waiting,
        kv_cache_usage=sum(used) / ranks if used else None,
        kv_cache_usage_of_fullest=max(used, default=None),
        prefix_queries=sums[PREFIX_QUERIES],
        prefix_hits=sums[PREFIX_HITS],
        prompt_tokens=sums[PROMPT_TOKENS],
        output_tokens=sums[OUTPUT_TOKENS],
        preemptions=sums[PREEMPTIONS],
        adapter_slots=slots,
        adapters_running=adapters,
    )
    return load if before is None else _with_rates(load, before)


def _with_rates(load: EngineLoad, before: EngineLoad) -> EngineLoad:
    seconds = load.read_at - before.read_at
    queries = _grown(load.prefix_queries, before.prefix_queries)
    hits = _grown(load.prefix_hits, before.prefix_hits)
    prompt, output = _grown(load.prompt_tokens, before.prompt_tokens), _grown(load.output_tokens, before.output_tokens)
    return replace(
        load,
        cache_hit_rate=min(1.0, hits / queries) if hits is not None and queries else None,
        prompt_tokens_per_second=prompt / seconds if prompt is not None and seconds > 0 else None,
        output_tokens_per_second=output / seconds if output is not None and seconds > 0 else None,
    )


def _grown(now: float | None, before: float | None) -> float | None:
    """By how much a counter grew; None where that is unknown, as after the engine's restart."""
    return now - before if now is not None and before is not None and now >= before else None


def _read_values(exposition: bytes) -> dict[bytes, list[float]]:
    """The values of all series of each name; those that make no sense are missing, and a page with too many has none."""
    values: dict[bytes, list[float]] = {name: [] for name in NAMES}
    for count, sample in enumerate(_SAMPLE.finditer(b"\n" + exposition)):
        if count == MOST_SERIES:
            return {name: [] for name in NAMES}
        name, rest = sample.groups()
        # Labels may hold spaces and braces; behind the last brace there is the value, and perhaps a time.
        words = rest[rest.rfind(b"}") + 1 :].split(None, 1)
        value = _number(words[0]) if words else None
        if value is not None:
            values[_PREFIX + name].append(value)
    return values


def _read_adapters(exposition: bytes) -> tuple[int | None, frozenset[str] | None]:
    """How many LoRA adapters an engine can have at once and which of them run, by the newest of its series."""
    newest, labels = -1.0, b""
    for count, sample in enumerate(_ADAPTERS.finditer(b"\n" + exposition)):
        if count == MOST_SERIES:
            return None, None
        when = _number(sample[2])
        if when is not None and when > newest:
            newest, labels = when, sample[1]
    told = dict(_LABEL.findall(labels))
    most = _number(told.get(b"max_lora", b""))
    if not most:
        return None, None
    names = told.get(b"running_lora_adapters", b"").decode("utf-8", "replace").split(",")
    return int(most), frozenset(filter(None, names))


def _number(word: bytes) -> float | None:
    """A value that a count or a share can have. `float` takes digits with underscores, which no exposition has."""
    try:
        value = float(word) if b"_" not in word and len(word) < 64 else math.nan
    except ValueError:
        return None
    return value if 0.0 <= value <= 2.0**63 else None
