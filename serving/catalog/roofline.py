"""The least time that the hardware needs: an upper bound of throughput, with its arithmetic. No figure here was measured.

Left out, so that it stays a bound: traffic between accelerators, launches, sampling, draft layers, uneven load of experts,
norms and the softmax. Prefill counts operations, decoding counts bytes and operations and takes the longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.evidence import Workload
from serving.catalog.memory import Load, kv_spread
from serving.catalog.model import Target
from serving.catalog.parallel import Parallel
from serving.catalog.records import BITS, Format
from serving.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Prefill:
    """Computing one new token of a prompt, on all accelerators of an engine."""

    routed_flops: float
    other_flops: float
    attention_flops: float
    routed_peak: float
    """Operations per second of all accelerators, in the precision of routed experts."""
    other_peak: float

    @property
    def seconds_per_token(self) -> float:
        routed = self.routed_flops / self.routed_peak if self.routed_flops else 0.0
        return routed + (self.other_flops + self.attention_flops) / self.other_peak

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.seconds_per_token


@dataclass(frozen=True, slots=True)
class Decode:
    """One step that computes the next tokens of a batch."""

    batch: int
    tokens_per_request: int
    """Computed in the step for each request, drafts included."""
    acceptance_tokens: float
    """Of these, how many count in the end."""
    touched_experts: float
    """Of each layer; 0 without experts."""
    weights_bytes: float
    kv_bytes: float
    """Read for the batch by each group of accelerators that holds a whole KV cache."""
    bandwidth: float
    """Bytes per second of all accelerators."""
    kv_bandwidth: float
    """Bytes per second at which one copy of the KV cache is read."""
    compute_seconds: float

    @property
    def weights_seconds(self) -> float:
        return self.weights_bytes / self.bandwidth

    @property
    def kv_seconds(self) -> float:
        return self.kv_bytes / self.kv_bandwidth

    @property
    def step_seconds(self) -> float:
        return max(self.weights_seconds + self.kv_seconds, self.compute_seconds)

    @property
    def output_tokens_per_second(self) -> float:
        return self.batch * self.acceptance_tokens / self.step_seconds


@dataclass(frozen=True, slots=True)
class Bound:
    """Both together at one concurrency, prefill and decoding one after the other."""

    prefill: Prefill
    decode: Decode
    new_tokens_per_output_token: float

    @property
    def output_tokens_per_second(self) -> float:
        prompt_seconds = self.new_tokens_per_output_token * self.prefill.seconds_per_token
        return 1 / (1 / self.decode.output_tokens_per_second + prompt_seconds)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The bounds of one engine."""

    load: Load
    target: Target
    parallel: Parallel
    draft_tokens: int = 0
    acceptance_tokens: float = 1.0

    def prefill(self, context_tokens: float) -> Prefill:
        """With so many tokens before a new one, on average. Raises: ConfigurationError: a peak is not known."""
        shape, checkpoint = self.load.shape, self.load.checkpoint
        return Prefill(
            routed_flops=shape.routed_flops(),
            other_flops=shape.other_flops(),
            attention_flops=shape.attention_flops(context_tokens),
            routed_peak=self._peak(checkpoint.format),
            other_peak=self._peak(checkpoint.rest_format or checkpoint.format),
        )

    def decode(self, batch: int, context_tokens: int) -> Decode:
        """A step of `batch` requests with so many tokens before each. Raises: ConfigurationError: a rate is not known."""
        shape, checkpoint = self.load.shape, self.load.checkpoint
        tokens = 1 + self.draft_tokens
        rest_bytes = BITS[checkpoint.rest_format or checkpoint.format] / 8
        touched = 0.0
        if shape.experts:
            missed = 1 - shape.experts.experts_per_token / shape.experts.experts
            touched = shape.experts.experts * (1 - missed ** (batch * tokens))
        read = (shape.layer_parameters + shape.embedding_parameters) * rest_bytes
        routed = touched * shape.expert_layers * shape.expert_parameters * BITS[checkpoint.format] / 8
        bandwidth = self._bandwidth() * self.parallel.accelerators
        return Decode(
            batch=batch,
            tokens_per_request=tokens,
            acceptance_tokens=self.acceptance_tokens,
            touched_experts=touched,
            weights_bytes=read + routed,
            kv_bytes=batch * shape.kv_bytes_read(context_tokens, self.load.kv_format),
            bandwidth=bandwidth,
            kv_bandwidth=self._bandwidth() * kv_spread(shape, self.parallel) * self.parallel.data,
            compute_seconds=batch * tokens * self.prefill(context_tokens).seconds_per_token,
        )

    def bound(self, batch: int, workload: Workload) -> Bound:
        """At `batch` requests at once. Raises: ConfigurationError: the target's file lacks a rate."""
        return Bound(
            prefill=self.prefill(workload.prefill_context_tokens),
            decode=self.decode(batch, workload.decode_context_tokens),
            new_tokens_per_output_token=workload.new_tokens / workload.output_tokens,
        )

    def _peak(self, weight_format: Format) -> float:
        precision = self.target.formats[weight_format].computes_in
        peak = self.target.peak_flops.get(precision) if precision else None
        if peak is None:
            raise ConfigurationError(
                f"target {self.target.name}: peak_flops.{precision or weight_format}: is not known, so nothing bounds "
                f"{weight_format} there; enter it when it is published"
            )
        return peak * self.parallel.accelerators

    def _bandwidth(self) -> int:
        bandwidth = self.target.memory_bandwidth_bytes_per_second
        if bandwidth is None:
            raise ConfigurationError(f"target {self.target.name}: memory_bandwidth_bytes_per_second: is not known; enter it")
        return bandwidth
