"""Can a profile's engine run on its target at all: features, formats, context, and the node's memory on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.hardware import Feature
from serving.catalog.memory import device_memory_of, kv_format_of, load_of, loaded_bytes
from serving.catalog.model import Catalog, Model, Profile, Target
from serving.catalog.parallel import accelerators, parallel_of
from serving.catalog.shape import Shape
from serving.catalog.vocabulary import size_bytes
from serving.core.errors import ConfigurationError

GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class Fit:
    """The bytes that a profile's engine takes of its node's memory when its KV cache is full (CPU targets)."""

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
            f"needs {gigabytes(self.needed_bytes)} of memory ({gigabytes(self.weights_bytes)} weights, "
            f"{gigabytes(self.kv_bytes)} KV cache, {gigabytes(self.overhead_bytes)} besides) and "
            f"{gigabytes(available_bytes)} are free; free some or lower kv-cache-memory-bytes in the profile"
        )


def fit(catalog: Catalog, profile: Profile) -> Fit:
    """What the profile takes on a machine whose memory the engine shares (CPU targets).

    Without `kv-cache-memory-bytes` the KV cache counts as room for one request of the longest length.
    """
    checkpoint = catalog.models[profile.model].checkpoints[profile.checkpoint]
    kv_bytes = size_bytes(profile.arguments.get("kv-cache-memory-bytes")) or request_kv_bytes(catalog, profile)
    return Fit(weights_bytes=loaded_bytes(checkpoint), kv_bytes=kv_bytes, overhead_bytes=profile.memory.overhead_bytes)


def request_kv_bytes(catalog: Catalog, profile: Profile) -> int:
    """Bytes of KV cache that one request of the longest length takes, all accelerators together but for copies."""
    shape = catalog.models[profile.model].shape
    return shape.request_kv_bytes(context_tokens(catalog, profile), kv_format_of(profile))


def context_tokens(catalog: Catalog, profile: Profile) -> int:
    """The longest request in tokens: the profile's `max-model-len`, else the model's own limit."""
    return size_bytes(profile.arguments.get("max-model-len")) or catalog.models[profile.model].max_context_tokens


def shape_problems(catalog: Catalog, profile: Profile) -> list[str]:
    """What keeps a profile from running on any machine of its target. A target that cannot run the model says only that."""
    problems = problems_but_memory(catalog, profile)
    model, target = catalog.models[profile.model], catalog.targets[profile.target]
    if feature_problem(model.shape, target) or format_problem(catalog, profile):
        return problems
    return problems + [problem for problem in (_memory_problem(catalog, profile),) if problem]


def problems_but_memory(catalog: Catalog, profile: Profile) -> list[str]:
    """The same without the question of whether one request has room."""
    model, target = catalog.models[profile.model], catalog.targets[profile.target]
    hopeless = feature_problem(model.shape, target) or format_problem(catalog, profile)
    if hopeless:
        return [hopeless]
    problems = []
    kv_format = kv_format_of(profile)
    if kv_format not in target.kv_formats:
        able = " or ".join(target.kv_formats)
        problems.append(f"arguments.kv-cache-dtype: {target.name} keeps no KV cache in {kv_format}; leave it out, for {able}")
    context = context_tokens(catalog, profile)
    if context > model.max_context_tokens:
        problems.append(
            f"arguments.max-model-len: {context} is more than the {model.max_context_tokens} tokens of {model.name}; lower it"
        )
    return problems + _division_problems(model, profile)


def _division_problems(model: Model, profile: Profile) -> list[str]:
    """Ranks that cannot share heads or layers."""
    try:
        parallel = parallel_of(profile)
    except ConfigurationError:
        return []  # said by whoever counts the accelerators
    problems = []
    heads = model.shape.attention.heads
    if heads % parallel.tensor:
        problems.append(
            f"arguments.tensor-parallel-size: the {heads} heads of {model.name} cannot be shared by {parallel.tensor}; "
            "give a divisor"
        )
    if parallel.pipeline > model.shape.layers:
        problems.append(
            f"arguments.pipeline-parallel-size: {parallel.pipeline} is more than the {model.shape.layers} layers of {model.name}"
        )
    return problems


def feature_problem(shape: Shape, target: Target) -> str | None:
    """What the model needs and the engine lacks on the target, as a problem of the field `target`."""
    needed: dict[Feature, bool] = {"sparse-attention": shape.sparse, "latent-attention": shape.kv_is_replicated}
    for feature in (feature for feature, wanted in needed.items() if wanted and feature in target.unsupported):
        why = target.unsupported[feature]
        return f"target: {target.name} has no {feature.replace('-', ' ')}, which the model needs: {why}; choose another target"
    return None


def format_problem(catalog: Catalog, profile: Profile) -> str | None:
    """Weights that the target cannot compute with, or only by emulation and without the profile's consent."""
    target = catalog.targets[profile.target]
    weight_format = catalog.models[profile.model].checkpoints[profile.checkpoint].format
    entry = target.formats[weight_format]
    why = f" ({entry.why})" if entry.why else ""
    others = f"choose a checkpoint in {' or '.join(target.real_formats())}"
    if entry.support == "refused":
        return f"checkpoint: {weight_format} is refused on {target.name}{why}; {others}"
    if entry.support == "emulated" and not profile.allow_emulation:
        return f"checkpoint: {weight_format} is only emulated on {target.name}{why}; {others}, or set allow_emulation: true"
    return None


def gigabytes(amount_bytes: float) -> str:
    return f"{amount_bytes / GIGABYTE:.1f} GB"


def _memory_problem(catalog: Catalog, profile: Profile) -> str | None:
    """One request of the longest length must have room. How large the machine is matters only where the target says it."""
    model, target = catalog.models[profile.model], catalog.targets[profile.target]
    context = context_tokens(catalog, profile)
    try:
        accelerators(profile, target)
        device = device_memory_of(model, profile, target)
    except ConfigurationError:
        return None  # said by whoever counts the accelerators
    if not device.missing_bytes:
        return None
    if load_of(model, profile, target).kv_bytes is not None:
        needed = request_kv_bytes(catalog, profile)
        return (
            f"arguments.kv-cache-memory-bytes: {device.kv_bytes} cannot hold one request of {context} tokens; at least {needed}"
        )
    return (
        f"arguments: one request of {context} tokens lacks {gigabytes(device.missing_bytes)} on each accelerator of "
        f"{target.name}; `serving plan {profile.name}` says what would make it fit"
    )
