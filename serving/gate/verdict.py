"""The verdict on one configuration of an engine: what was decided, why, what it can see here, and what it cost.

It is small enough for a ConfigMap. Prompts, answers and examples stand in the report, never here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from serving.catalog.records import Record, Text
from serving.core.errors import ConfigurationError
from serving.gate.digest import Configuration, Sha256

Outcome = Literal["pass", "fail", "not_decided"]
PASS_STATUS, FAIL_STATUS, NOT_DECIDED_STATUS = 0, 1, 3
"""Of the process; 2 is a command that cannot be understood."""
EXIT_STATUS: dict[Outcome, int] = {"pass": PASS_STATUS, "fail": FAIL_STATUS, "not_decided": NOT_DECIDED_STATUS}


class Finding(Record):
    """What one test found. `value`, its 95 % interval and the limits are None where the test has no number."""

    name: Text
    """Of the test, as `matched.kl`; it does not change from run to run."""
    outcome: Outcome
    said: Text
    """One sentence for people: the figures, and what they mean."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    pass_limit: float | None = None
    fail_limit: float | None = None


class Cost(Record):
    """What the gate itself took of the candidate."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    most_tokens_at_once: int = 0
    """Scored at the same time by the engine; its extra memory grows with them."""
    peak_engine_bytes: int | None = None
    """Highest memory of the engine's processes during the run; None where it cannot be seen."""
    peak_engine_said: str = "not visible over HTTP"


class Verdict(Record):
    """Pass, fail or not decided, on exactly one configuration."""

    format: Literal["serving gate verdict 1"] = "serving gate verdict 1"
    outcome: Outcome
    reason: Text
    """One line: what decided."""
    digest: Sha256
    """Of `configuration`."""
    configuration: Configuration
    calibrated: bool
    """Whether a floor was ever measured on this target. Without one the outcome is never pass."""
    findings: tuple[Finding, ...]
    sees: tuple[str, ...] = ()
    """What a pass on this target means: the faults that would have shown."""
    blind: tuple[str, ...] = ()
    """What no test of this run can have seen."""
    created: Text
    """When, in UTC, as 2026-11-30T20:15:00Z."""
    gate_version: Text
    rules: Text
    """Name of the thresholds in the catalog, with their digest."""
    corpus: Text
    """SHA-256 of passages and tasks."""
    cost: Cost = Field(default_factory=Cost)

    @property
    def needs_approval(self) -> bool:
        """Whether only a person can let this configuration serve: nothing is wrong, and nothing could be proven."""
        return self.outcome == "not_decided" and not self.calibrated

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.outcome]

    def of(self, outcome: Outcome) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.outcome == outcome)


def to_json(verdict: Verdict) -> str:
    return verdict.model_dump_json(indent=2)


def from_json(text: str | bytes, where: str = "verdict") -> Verdict:
    """Raises: ConfigurationError naming `where`, the field and what is wrong, as a digest of another configuration."""
    try:
        verdict = Verdict.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{where}: {field}{': ' if field else ''}{problem['msg']}") from None
    if verdict.digest != verdict.configuration.digest:
        raise ConfigurationError(
            f"{where}: digest: is {verdict.digest[:16]}…, but its configuration has {verdict.configuration.digest[:16]}…; "
            "it was changed by hand"
        )
    if verdict.outcome == "pass" and not verdict.calibrated:
        raise ConfigurationError(f"{where}: outcome: is pass on a target without a measured floor; it was changed by hand")
    return verdict


def read_verdict(path: Path) -> Verdict:
    """Raises: ConfigurationError."""
    try:
        return from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
