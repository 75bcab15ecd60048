"""What an answer cost on the machines that made it; not what anybody is charged for it."""

from __future__ import annotations

from typing import NamedTuple

SEVERAL = ("(several)", "(several)")
"""In place of a pool and its target; no pool has such a name."""


class MachineDollars(NamedTuple):
    """By kind of token; None where the machine has no price, which is not 0."""

    prompt: float | None = None
    """Of the prompt tokens that were computed."""
    cached: float | None = None
    output: float | None = None
    failed: float | None = None
    """Of the request's attempts that gave no answer."""

    @property
    def total(self) -> float:
        """Of all that is known."""
        prompt, cached, output, failed = self
        return (prompt or 0.0) + (cached or 0.0) + (output or 0.0) + (failed or 0.0)


UNPRICED = MachineDollars()
