"""What a judgement is made of: the candidate, its references, the limits and the floor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from serving.catalog.gate_rules import Band, Floor, FormatRules, GateRules
from serving.core.errors import ConfigurationError
from serving.gate.collected import Collected
from serving.gate.compare import Distance, distance
from serving.gate.statistics import Estimate
from serving.gate.verdict import Finding, Outcome


@dataclass(frozen=True)
class Evidence:
    """At least one of `matched`, `honest` with `reference`, and `reference` is there."""

    candidate: Collected
    format: str
    rules: GateRules
    target: str
    floor: Floor | None
    matched: Collected | None = None
    """The candidate's own weights, dequantized."""
    reference: Collected | None = None
    """The original."""
    honest: Collected | None = None
    """A stored run of a trusted engine with the candidate's checkpoint."""
    is_same_engine: bool = False
    """Whether the honest run's engine has the candidate's version, flags and hardware."""
    plain: Collected | None = None
    """The candidate without speculative decoding."""
    expected_acceptance: float | None = None
    """Tokens a step, from the profile."""
    customer_share: float = 1.0
    """Of the customer's checks, how many must hold."""

    @property
    def format_rules(self) -> FormatRules:
        """Raises: ConfigurationError for a format without rules."""
        found = self.rules.formats.get(self.format)
        if found is None:
            known = ", ".join(sorted(self.rules.formats))
            raise ConfigurationError(f"--format: {self.format!r} is not in the rules {self.rules.name}; there are: {known}")
        return found

    @property
    def is_quantized(self) -> bool:
        return self.format != self.rules.reference_format

    @property
    def own(self) -> Collected | None:
        """What the candidate must be equal to but for noise. An unquantized one is matched by the original."""
        return self.matched or (self.reference if not self.is_quantized else None)

    @property
    def base(self) -> Collected | None:
        """Whose answers the candidate's are paired with: the nearest to it that there is."""
        return self.own or self.honest or self.reference

    @cached_property
    def from_own(self) -> Distance | None:
        return distance(self.own, self.candidate) if self.own else None

    @cached_property
    def from_reference(self) -> Distance | None:
        return distance(self.reference, self.candidate) if self.reference else None

    @cached_property
    def honest_from_reference(self) -> Distance | None:
        return distance(self.reference, self.honest) if self.reference and self.honest else None

    @cached_property
    def from_honest(self) -> Distance | None:
        return distance(self.honest, self.candidate) if self.honest else None

    def references(self) -> Iterator[tuple[str, Collected]]:
        """Names and collections of all that are given."""
        for name, collected in (("matched reference", self.matched), ("reference", self.reference), ("honest run", self.honest)):
            if collected is not None:
                yield name, collected


def decide(estimate: Estimate, band: Band, *, sign_matters: bool = True) -> Outcome:
    """By the whole interval: what lies on a limit is not decided."""
    low, high = estimate.low, estimate.high
    if not sign_matters:
        low, high = (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    if low > band.fails:
        return "fail"
    return "pass" if high <= band.passes else "not_decided"


def number(value: float) -> str:
    """Four digits that mean something."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.3g}"


def measured(name: str, estimate: Estimate, band: Band, said: str, outcome: Outcome | None = None) -> Finding:
    """A finding of a figure with its limits."""
    return Finding(
        name=name,
        outcome=outcome or decide(estimate, band),
        said=said,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        pass_limit=band.passes,
        fail_limit=band.fails,
    )
