"""What is known of vLLM itself: its images, and the names that each version understands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from serving.catalog.records import EngineBuild, Record, Text

FlagName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]


class EngineImage(Record):
    """vLLM's official image of one version and build."""

    version: Text
    build: EngineBuild
    registry: Text
    repository: Text
    tag: Text
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """None while nobody has looked it up; the tag is then taken, which its owner may move."""
    digest_missing_because: Text | None = None
    """Said where there is no digest; without a reason `serving lint` refuses the image."""
    source: Text | None = None
    """Where tag and digest were seen, with the date."""


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


class EngineMetrics(Record):
    """Series of the engine that the product reads, as a snapshot names them."""

    names: Annotated[tuple[Text, ...], Field(min_length=1)]


class Removed(Record):
    """Names that the engine once had, with what stands in their place (a sentence without a full stop)."""

    flags: dict[FlagName, Text]
    environment: dict[VariableName, Text]
