"""The report of a run as it is written: all that is needed to read it, to compare it and to run it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError

from serving.catalog.model import Record
from serving.core.errors import ConfigurationError
from serving.replay.arrivals import Pace
from serving.replay.profile import Objectives, ReplayProfile

FORMAT = "serving replay 1"


class Estimate(Record):
    """A figure with its 95 % interval; None where there was nothing to take it from."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Distribution(Record):
    """Of a latency, in seconds."""

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate


class Options(Record):
    """What a run was told, but for the key and where the report went."""

    url: str
    model: str | None = None
    metrics_urls: tuple[str, ...] = ()
    scale: Annotated[float, Field(gt=0)] = 1.0
    rates: tuple[float, ...] = ()
    concurrencies: tuple[int, ...] = ()
    as_recorded: bool = False
    time_factor: Annotated[float, Field(gt=0)] = 1.0
    """How many times as fast as recorded."""
    search: bool = False
    search_from: float = 1.0
    search_precision: float = 0.03
    pace: Pace = "poisson"
    settle_seconds: float | None = None
    measure_seconds: float | None = None
    drain_seconds: float = 120.0
    timeout_seconds: float = 600.0
    seed: int = 0
    prime_rounds: Annotated[int, Field(ge=1)] = 1
    """How often each shared beginning is sent first; as often as there are engines, where requests are spread over them."""
    objectives: Objectives | None = None
    block_tokens: int | None = None
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Fields of each request over ours."""
    price_dollars_per_hour: float | None = None
    """Of one node, as given."""
    nodes: int = 1
    target: str | None = None
    """Of the catalog."""
    engine_profile: str | None = None
    """The catalog's profile that the engine runs."""


class Check(Record):
    """One of the things that must be right for the figures to mean something."""

    name: str
    passed: bool | None
    """None: it could not be looked at, and `said` says why."""
    said: str


class Engine(Record):
    """What was found of the engine."""

    model: str
    version: str | None
    simulated: str | None
    fingerprints: tuple[str, ...] = ()
    max_model_len: int | None
    block_tokens: int | None
    kv_capacity_tokens: int | None
    prefix_caching: bool | None
    counts_by: str
    template: dict[str, JsonValue]
    vocabulary_words: int
    vocabulary_sha256: str
    forced: tuple[str, ...]
    """The fields that force an answer's length."""


class Money(Record):
    """None where no price is known."""

    dollars_per_hour: float | None
    """Of all nodes."""
    source: str
    per_million_output_tokens: Estimate
    per_million_tokens: Estimate
    """Prompt and output together."""


class Roofline(Record):
    """How much of what the catalog's roofline allows was reached; None where the catalog cannot say."""

    share: float | None
    said: str


class Columns(Record):
    """The measured requests, one place each, in the order of their intended times; seconds, None where there is none."""

    intended: tuple[float, ...]
    """Since the window's beginning."""
    sent_late: tuple[float, ...]
    ttft: tuple[float | None, ...]
    tpot: tuple[float | None, ...]
    e2e: tuple[float | None, ...]
    prompt_tokens: tuple[int | None, ...]
    cached_tokens: tuple[int | None, ...]
    output_tokens: tuple[int | None, ...]
    error: tuple[str | None, ...]


class Timeline(Record):
    """Tokens in slices of time; slice 0 begins with the window, those before it are the settling's."""

    slice_seconds: float
    first_slice: int
    window_slices: int
    output_tokens: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    finished: tuple[int, ...]


class Stage(Record):
    """One load."""

    label: str
    kind: Literal["open", "closed", "recorded"]
    offered: float
    """Requests a second, or how many at a time; the speed of a recording."""
    window_seconds: float
    requests: int
    finished_ok: int
    unfinished: int
    errors: dict[str, int]
    said: dict[str, str] = Field(default_factory=dict)
    """The engine's words on the first error of each kind."""
    offered_requests_per_second: float
    requests_per_second: Estimate
    output_tokens_per_second: Estimate
    prompt_tokens_per_second: Estimate
    ttft: Distribution
    tpot: Distribution
    e2e: Distribution
    itl: dict[str, float | None]
    """Between two events, without intervals."""
    cached_share: float | None
    wanted_cached_share: float
    engine_cached_share: float | None
    """By the engine's own counters."""
    mean_prompt_tokens: float | None
    mean_output_tokens: float | None
    mean_running: float
    """Requests between their first token and their end."""
    good_share: float | None
    good_requests_per_second: float | None
    client_cpu_share: float
    client_lag_seconds: dict[str, float]
    preemptions: float | None
    money: Money
    roofline: Roofline
    checks: tuple[Check, ...]
    columns: Columns
    timeline: Timeline

    @property
    def is_valid(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    @property
    def faults(self) -> list[str]:
        return [check.said for check in self.checks if check.passed is False]


class Found(Record):
    """What a search found."""

    requests_per_second: float | None
    """The highest rate that met the objectives; None: not even the lowest that was tried did."""
    failed_at: float | None
    """The lowest rate that did not; None: none failed."""
    precision: float


class Report(Record):
    """One run."""

    format: Literal["serving replay 1"]
    is_valid: bool
    faults: tuple[str, ...]
    """Why it is not valid."""
    simulated: str | None
    created: str
    serving_version: str
    python: str
    machine: str
    argv: tuple[str, ...]
    options: Options
    profile: ReplayProfile
    profile_sha256: str
    objectives: Objectives | None
    nonce: str
    engine: Engine
    notes: tuple[str, ...]
    statistics: str
    stages: tuple[Stage, ...]
    found: Found | None = None

    @property
    def title(self) -> str:
        scale = "" if self.options.scale == 1 else f" × {self.options.scale:g}"
        return f"{self.profile.name}{scale}"


def write_report(report: Report, path: Path) -> None:
    path.write_text(report.model_dump_json() + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """Raises: ConfigurationError."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a report: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigurationError(f"{path}: is no report of `serving replay` that this version reads (format {FORMAT!r})")
    try:
        return Report.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigurationError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
