"""What lies in the memory of one accelerator: weights, activations, KV cache. Arithmetic on bytes and tokens, no hardware needed.

On a CPU target the accelerator is the socket, its memory the machine's own, and the KV cache as large as the arguments say.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.evidence import Workload
from serving.catalog.model import Checkpoint, Model, Profile, Target
from serving.catalog.parallel import Parallel, parallel_of
from serving.catalog.records import BITS, KvFormat
from serving.catalog.shape import GroupedAttention, Shape
from serving.catalog.vocabulary import size_bytes
from serving.core.errors import ConfigurationError

ACCELERATOR_SHARE = 0.92
"""vLLM's own `gpu-memory-utilization` where the arguments say nothing."""
BATCHED_TOKENS = 8192
SEQUENCES = 256
"""Stand for vLLM's own limits, which depend on the accelerator, where the arguments say nothing."""
HIDDEN_COPIES = 8
"""Hidden states of a layer that are alive at once at the peak of a step: an estimate, generous."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is asked to hold, apart from how it is spread."""

    model: Model
    checkpoint: Checkpoint
    kv_format: KvFormat
    drafts: bool = False
    max_model_len: int = 0
    batched_tokens: int = BATCHED_TOKENS
    sequences: int = SEQUENCES
    share: float = ACCELERATOR_SHARE
    block_tokens: int = 16
    kv_bytes: int | None = None
    """Given on the command line; None: what is left of the accelerator."""
    overhead_bytes: int | None = None
    """Of an accelerator, beside weights and KV cache, measured; None: estimated."""

    @property
    def shape(self) -> Shape:
        return self.model.shape

    def request_kv_bytes(self, tokens: int) -> int:
        """Of one request of so many tokens, all accelerators together but for copies."""
        return self.shape.request_kv_bytes(tokens, self.kv_format, draft=self.drafts)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Of one accelerator. `capacity_bytes` is None where the memory is the machine's own."""

    capacity_bytes: int | None
    usable_bytes: int | None
    """What vLLM takes of it at most."""
    weights_bytes: int
    overhead_bytes: int
    kv_bytes: int
    """Negative: so much is missing before the cache has its first block."""
    kv_bytes_per_token: float
    """Of a token's KV cache, the part that lies on this accelerator."""
    request_kv_bytes: float
    """Of one request of the longest length."""
    kv_tokens: int

    @property
    def missing_bytes(self) -> int:
        """What is wanting to hold one request of the longest length; 0 when it fits."""
        return max(0, round(self.request_kv_bytes - self.kv_bytes))

    def requests(self, load: Load, parallel: Parallel, workload: Workload) -> int:
        """How many requests of a workload the KV cache holds whole, if none shares its prompt with another."""
        if workload.request_tokens > load.max_model_len:
            return 0
        each = load.request_kv_bytes(workload.request_tokens) / kv_spread(load.shape, parallel)
        return max(0, int(self.kv_bytes // each))


def load_of(model: Model, profile: Profile, target: Target) -> Load:
    """What a profile's engine holds. Raises: ConfigurationError: an argument that it depends on is no number."""
    arguments = profile.arguments
    share = arguments.get("gpu-memory-utilization", ACCELERATOR_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise ConfigurationError(f"profile {profile.name}: arguments.gpu-memory-utilization: must be a number, not {share!r}")
    return Load(
        model=model,
        checkpoint=model.checkpoints[profile.checkpoint],
        kv_format=kv_format_of(profile),
        drafts=profile.speculation is not None and model.shape.draft_layers > 0,
        max_model_len=_size(profile, "max-model-len") or model.max_context_tokens,
        batched_tokens=_size(profile, "max-num-batched-tokens") or BATCHED_TOKENS,
        sequences=_size(profile, "max-num-seqs") or SEQUENCES,
        share=share,
        block_tokens=_size(profile, "block-size") or target.kv_block_tokens,
        kv_bytes=_size(profile, "kv-cache-memory-bytes"),
        overhead_bytes=profile.memory.accelerator_overhead_bytes if target.memory_bytes else profile.memory.overhead_bytes,
    )


def _size(profile: Profile, name: str) -> int | None:
    value = profile.arguments.get(name)
    size = size_bytes(value)
    if value is not None and size is None:
        raise ConfigurationError(
            f"profile {profile.name}: arguments.{name}: must be a whole number, or one with a unit, not {value!r}"
        )
    return size


def device_memory(load: Load, target: Target, parallel: Parallel) -> DeviceMemory:
    """How the memory of one accelerator is divided."""
    weights_bytes = weights_per_device(load.shape, load.checkpoint, parallel)
    overhead_bytes = load.overhead_bytes or activation_bytes(load, parallel) + target.runtime_bytes
    spread = kv_spread(load.shape, parallel)
    per_token = load.shape.kv_bytes_per_token(load.kv_format, draft=load.drafts) / spread
    request_bytes = load.request_kv_bytes(load.max_model_len) / spread
    usable_bytes = round(target.memory_bytes * load.share) if target.memory_bytes else None
    kv_bytes = load.kv_bytes
    if kv_bytes is None:
        kv_bytes = usable_bytes - weights_bytes - overhead_bytes if usable_bytes is not None else round(request_bytes)
    blocks = max(0, int(kv_bytes // (per_token * load.block_tokens)))
    return DeviceMemory(
        capacity_bytes=target.memory_bytes,
        usable_bytes=usable_bytes,
        weights_bytes=weights_bytes,
        overhead_bytes=overhead_bytes,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        request_kv_bytes=request_bytes,
        kv_tokens=blocks * load.block_tokens,
    )


def device_memory_of(model: Model, profile: Profile, target: Target) -> DeviceMemory:
    """How the memory of one accelerator of a profile's engine is divided. Raises: ConfigurationError: a size is no number."""
    return device_memory(load_of(model, profile, target), target, parallel_of(profile))


def kv_format_of(profile: Profile) -> KvFormat:
    """In which format the arguments keep the KV cache."""
    return "fp8" if str(profile.arguments.get("kv-cache-dtype", "auto")).startswith("fp8") else "bf16"


def loaded_bytes(checkpoint: Checkpoint) -> int:
    """Of the weights, in all memories together if nothing were copied."""
    return checkpoint.weights_bytes - checkpoint.unloaded_bytes


def weights_per_device(shape: Shape, checkpoint: Checkpoint, parallel: Parallel) -> int:
    """Bytes of weights on one accelerator: shards, and whole copies of what tensor parallelism does not divide."""
    rest_bits = BITS[checkpoint.rest_format or checkpoint.format]
    copied = shape.replicated_parameters * rest_bits / 8
    routed = shape.routed_parameters * BITS[checkpoint.format] / 8
    divided = loaded_bytes(checkpoint) - copied - routed
    expert_ranks = parallel.tensor * (parallel.data if parallel.experts else 1)
    return round((divided / parallel.tensor + copied + routed / expert_ranks) / parallel.pipeline)


def activation_bytes(load: Load, parallel: Parallel) -> int:
    """An estimate of what a step of the largest size needs for its intermediate results on one accelerator."""
    shape = load.shape
    wide = (shape.dense_intermediate_size or 0) / parallel.tensor
    if shape.experts:
        chosen = shape.experts.experts_per_token + shape.experts.shared_experts
        wide = max(wide, chosen * shape.experts.intermediate_size / parallel.tensor)
    states = load.batched_tokens * 2 * (HIDDEN_COPIES * shape.hidden_size + 2 * wide)
    logits = load.sequences * shape.vocabulary_size * 8  # in 32 bits, and once more for sampling
    return round(states + logits)


def kv_spread(shape: Shape, parallel: Parallel) -> int:
    """Over how many accelerators the KV cache of a request is divided; the others hold copies."""
    if shape.kv_is_replicated or not isinstance(shape.attention, GroupedAttention):
        return parallel.pipeline
    return parallel.pipeline * min(parallel.tensor, shape.attention.kv_heads)
