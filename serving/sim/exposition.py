"""`/metrics` of a simulated engine: vLLM's families from the snapshot of its version, in Prometheus's text format.

A family stands there when the engine's options would bring it (`when` in the snapshot), or always with `every_metric`. What the
simulation does not do is exported as zero, as an engine does that has the option and did not use it yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from serving.sim.facts import Histogram

Labels = Mapping[str, str]
Samples = list[tuple[Labels, "float | Histogram"]]

_SPOKEN_FOR = frozenset({"model_name", "engine"})
VALUES: dict[str, tuple[str, ...]] = {
    "transfer_type": ("CPU_to_GPU", "GPU_to_CPU"),
    "tier": ("fs",),
    "stage": ("waiting_to_start", "in_progress", "completed_waiting"),
    "backend": ("cpu",),
    "page_cache": ("false",),
    "lazy_offload": ("false",),
    "capacity_blocks": ("0",),
    "mode": ("streaming", "non_streaming"),
    "request_type": ("chat_completions", "responses", "other"),
}
"""What labels of families hold that the simulation does not move."""
VALUES_BY_FAMILY: dict[tuple[str, str], tuple[str, ...]] = {
    ("vllm:watermark_requests", "status"): ("watermarked", "skipped", "not_watermarked"),
    ("vllm:tool_call_parser_invocations_total", "outcome"): ("tool_call", "no_tool_call"),
    ("vllm:simple_kv_offload_save_outcomes_total", "outcome"): ("stored",),
    **{
        (f"vllm:mooncake_store_operation_{name}", label): values
        for name in ("total", "bytes_total", "keys_total", "failed_keys_total", "time_seconds")
        for label, values in (("operation", ("get", "put")), ("status", ("ok", "error")))
    },
    **{
        (f"vllm:rl_weight_update_{name}", "operation"): ("init", "shutdown", "start", "start_draft", "update", "finish")
        for name in ("operation_duration_seconds", "operations_in_flight")
    },
    **{
        (f"vllm:sleep_mode_{name}", "operation"): ("sleep", "release_kv_cache_memory", "wake")
        for name in ("operation_duration_seconds", "operations_in_flight")
    },
}


@lru_cache(maxsize=4)
def families(version: str) -> dict[str, dict[str, Any]]:
    """vLLM's metric families by name: kind, help, labels, buckets and when they are there.

    Raises:
        FileNotFoundError: there is no snapshot of that version
    """
    text = resources.files("serving.sim").joinpath(f"data/vllm-{version}-metrics.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)["families"]
    return found


def histograms(version: str, max_model_len: int) -> dict[str, Histogram]:
    """An empty histogram for each family that is one."""
    return {
        name: Histogram(_token_bounds(max_model_len) if family["buckets"] == "request_tokens" else family["buckets"])
        for name, family in families(version).items()
        if family["kind"] == "histogram"
    }


def exposition(
    version: str,
    *,
    options: frozenset[str],
    every_metric: bool,
    own: Labels,
    told: Mapping[str, Samples],
    created_seconds: float,
) -> Iterator[str]:
    """The lines of vLLM's families. `own` are the values of the labels that all have, `told` the samples of those that move."""
    for name, family in families(version).items():
        if not (every_metric or family.get("when") is None or family["when"] in options):
            continue
        samples = told.get(name)
        if samples is None:
            samples = [(labels, _still(family)) for labels in _children(name, family["labels"])]
        fixed = {label: own[label] for label in ("model_name", "engine") if label in family["labels"]}
        yield from lines(
            name, family["kind"], family["help"], [({**fixed, **more}, value) for more, value in samples], created_seconds
        )


def lines(name: str, kind: str, help_: str, samples: Samples, created_seconds: float | None) -> Iterator[str]:
    """One family as prometheus_client writes it, with the moments at which its series were made."""
    base = name.removesuffix("_total") if kind == "counter" else name
    shown = f"{base}_total" if kind == "counter" else name
    yield f"# HELP {shown} {help_}"
    yield f"# TYPE {shown} {kind}"
    for labels, value in samples:
        if isinstance(value, Histogram):
            yield from _histogram_lines(name, labels, value)
        else:
            yield f"{shown}{_spell(labels)} {float(value)}"
    if kind == "gauge" or created_seconds is None or not samples:
        return
    yield f"# HELP {base}_created {help_}"
    yield f"# TYPE {base}_created gauge"
    for labels, _ in samples:
        yield f"{base}_created{_spell(labels)} {created_seconds}"


def _histogram_lines(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    count = 0
    for bound, observed in zip((*histogram.bounds, None), histogram.counts, strict=True):
        count += observed
        le = "+Inf" if bound is None else str(float(bound))
        yield f"{name}_bucket{_spell({**labels, 'le': le})} {float(count)}"
    yield f"{name}_count{_spell(labels)} {float(count)}"
    yield f"{name}_sum{_spell(labels)} {float(histogram.total)}"


def _spell(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels.items())) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _still(family: Mapping[str, Any]) -> float | Histogram:
    if family["kind"] != "histogram":
        return 0.0
    return Histogram([] if family["buckets"] == "request_tokens" else family["buckets"])


def _children(name: str, labels: Iterable[str]) -> list[Labels]:
    """The values of a family's own labels, all combinations; no series where they are not known."""
    children: list[dict[str, str]] = [{}]
    for label in labels:
        if label not in _SPOKEN_FOR:
            values = VALUES_BY_FAMILY.get((name, label)) or VALUES.get(label, ())
            children = [{**child, label: value} for child in children for value in values]
    return list(children)


def _token_bounds(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 … up to a model's context."""
    bounds: list[float] = []
    decade = 1
    while True:
        for digit in (1, 2, 5):
            if digit * decade > most:
                return bounds
            bounds.append(digit * decade)
        decade *= 10
