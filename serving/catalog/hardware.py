"""A kind of hardware as data. Nothing else in the product knows a vendor: what differs between targets stands in their files."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from serving.catalog.records import (
    Bytes,
    Count,
    Date,
    EngineBuild,
    Format,
    KvFormat,
    Name,
    Positive,
    Precision,
    Record,
    Text,
)

Support = Literal["native", "weight-only", "emulated", "refused"]
"""native: kernels that compute in the format. weight-only: real kernels that widen the weights first. emulated: vLLM starts
and is merely slow. refused: it does not start, or has no kernel worth the name."""
Flops = Annotated[float, Field(ge=1e6, le=1e20, allow_inf_nan=False)]
Feature = Literal["sparse-attention", "latent-attention"]
"""What a model's shape asks of an engine beyond matrix products and ordinary attention."""


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
    shared_memory_bytes: Bytes
    """The least room of /dev/shm; a profile may ask for more."""
    waits_for_memory: bool = False
    """Whether the memory of accelerators is given back some time after an engine has gone, so that the next one must wait."""


class Price(Record):
    """What an accelerator costs by default; a user's own price goes over it."""

    dollars_per_accelerator_hour: Positive
    date: Date
    source: Text
    others: Text | None = None
    """Other public figures, for orientation."""


class CpuPrice(Record):
    """What one CPU of a rented machine costs, where machines of any number of them are rented."""

    dollars_per_cpu_hour: Positive
    """Of a CPU as the system counts them: a hardware thread."""
    date: Date
    source: Text


class FormatSupport(Record):
    """What a target makes of weights in one format."""

    support: Support
    computes_in: Precision | None = None
    """Whose peak bounds it; left out only where the format is refused."""
    why: Text | None = None

    @model_validator(mode="after")
    def _precision_where_it_runs(self) -> FormatSupport:
        if self.support != "refused" and self.computes_in is None:
            raise ValueError("computes_in: is missing; give fp4, fp8 or bf16, or the support `refused`")
        return self


class Target(Record):
    """A kind of hardware. `None` stands for a figure that has no public source or that the user must give."""

    name: Name
    description: Text
    experimental: bool = False
    """The engine's support is young or has been seen by nobody here."""
    vendor: Text
    """For people; no code looks at it."""
    architecture: Text | None = None
    """As the engine names it: gfx950, sm_100."""
    engine_build: EngineBuild
    """Which build of vLLM drives it."""
    accelerators_per_node: Count
    """GPUs of a node; for a CPU target the sockets."""
    required_cpu_flags: tuple[Text, ...] = ()
    """Names as in the `flags` line of /proc/cpuinfo; without one of them the engine is refused."""
    memory_bytes: Bytes | None = None
    """Usable, of one accelerator; `None` where it is the machine's own memory."""
    memory_bandwidth_bytes_per_second: Count | None = None
    """Of one accelerator."""
    peak_flops: dict[Precision, Flops] = Field(default_factory=dict)
    """Dense operations per second of one accelerator, a multiply-add counted as two."""
    power_watts: Count | None = None
    """Highest rated power of one accelerator."""
    node_power_watts_per_accelerator: Count | None = None
    """The same with its share of the node, the network and the cooling."""
    formats: dict[Format, FormatSupport]
    kv_formats: Annotated[tuple[KvFormat, ...], Field(min_length=1)]
    unsupported: dict[Feature, Text] = Field(default_factory=dict)
    """Features that the engine lacks on this target, with the reason."""
    kv_block_tokens: Count = 16
    """Tokens of a block of the KV cache where a profile sets no block size."""
    runtime_bytes: Bytes = 3_000_000_000
    """Of an accelerator's memory: context, collectives and captured graphs. An estimate unless `sources` says otherwise."""
    price: Price | None = None
    cpu_price: CpuPrice | None = None
    """What `serving up` counts for the machine that it runs on, where there is no `price` since that depends on the machine."""
    nodes: Nodes
    pod: Pod
    sources: dict[Text, Text]
    """Where the facts come from, by the name of the field; `serving lint` wants one for each figure."""

    @model_validator(mode="after")
    def _every_format_is_said(self) -> Target:
        silent = [name for name in get_args(Format) if name not in self.formats]
        if silent:
            raise ValueError(f"formats: says nothing of {', '.join(silent)}; write {{support: refused}} where it cannot run")
        return self

    @model_validator(mode="after")
    def _accelerators_have_memory(self) -> Target:
        if self.nodes.resource is not None and self.memory_bytes is None:
            raise ValueError(f"memory_bytes: is missing; {self.nodes.resource} counts accelerators with a memory of their own")
        return self

    @property
    def dollars_per_node_hour(self) -> float | None:
        return round(self.price.dollars_per_accelerator_hour * self.accelerators_per_node, 4) if self.price else None

    def real_formats(self) -> list[Format]:
        """Formats with kernels of their own: what an engine runs without emulation."""
        return [name for name, entry in self.formats.items() if entry.support in ("native", "weight-only")]
