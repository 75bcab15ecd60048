"""Does a profile fit into memory, and does its KV cache hold one whole request? Arithmetic on bytes and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.model import Catalog, Profile
from serving.catalog.vocabulary import size_bytes

GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class Fit:
    """The bytes that a profile's engine takes when its KV cache is full."""

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    def problem(self, available_bytes: int) -> str | None:
        """A sentence when `available_bytes` are too few, else None."""
        if self.needed_bytes <= available_bytes:
            return None
        return (
            f"needs {_gigabytes(self.needed_bytes)} of memory ({_gigabytes(self.weights_bytes)} weights, "
            f"{_gigabytes(self.kv_bytes)} KV cache, {_gigabytes(self.overhead_bytes)} besides) and "
            f"{_gigabytes(available_bytes)} are free; free some or lower kv-cache-memory-bytes in the profile"
        )


def fit(catalog: Catalog, profile: Profile) -> Fit:
    """What the profile takes on a machine whose memory the engine shares (CPU targets).

    Without `kv-cache-memory-bytes` the KV cache counts as room for one request of the longest length.
    """
    checkpoint = catalog.models[profile.model].checkpoints[profile.checkpoint]
    kv_bytes = size_bytes(profile.arguments.get("kv-cache-memory-bytes")) or request_kv_bytes(catalog, profile)
    return Fit(weights_bytes=checkpoint.weights_bytes, kv_bytes=kv_bytes, overhead_bytes=profile.memory.overhead_bytes)


def request_kv_bytes(catalog: Catalog, profile: Profile) -> int:
    """Bytes of KV cache that one request of the longest length takes."""
    model = catalog.models[profile.model]
    dtype = str(profile.arguments.get("kv-cache-dtype", "auto"))
    per_token = model.kv_bytes_per_token.get("fp8" if dtype.startswith("fp8") else "bf16")
    if per_token is None:
        per_token = max(model.kv_bytes_per_token.values())
    return per_token * context_tokens(catalog, profile)


def context_tokens(catalog: Catalog, profile: Profile) -> int:
    """The longest request in tokens: the profile's `max-model-len`, else the model's own limit."""
    return size_bytes(profile.arguments.get("max-model-len")) or catalog.models[profile.model].max_context_tokens


def shape_problems(catalog: Catalog, profile: Profile) -> list[str]:
    """What is wrong with a profile on any machine: context, KV cache and weight format against model and target."""
    model, target = catalog.models[profile.model], catalog.targets[profile.target]
    problems = []
    context = context_tokens(catalog, profile)
    if context > model.max_context_tokens:
        problems.append(f"arguments.max-model-len: {context} is more than the {model.max_context_tokens} tokens of {model.name}")
    kv_bytes = size_bytes(profile.arguments.get("kv-cache-memory-bytes"))
    needed = request_kv_bytes(catalog, profile)
    if kv_bytes is not None and kv_bytes < needed:
        problems.append(
            f"arguments.kv-cache-memory-bytes: {kv_bytes} cannot hold one request of {context} tokens; at least {needed}"
        )
    weight_format = model.checkpoints[profile.checkpoint].format
    if weight_format not in target.native_formats:
        formats = ", ".join(target.native_formats)
        problems.append(f"checkpoint: {weight_format} has no real kernels on {target.name}; it has them for {formats}")
    return problems


def _gigabytes(amount_bytes: int) -> str:
    return f"{amount_bytes / GIGABYTE:.1f} GB"
