"""What `serving lint` finds: a file, a field, what is wrong and what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "unchecked", "note"]
"""error: would fail or mislead. unchecked: could not be judged here. note: true and worth knowing; it has its reason."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to say about one field; `file` is relative to the catalog's root."""

    file: str
    field: str
    level: Level
    wrong: str
    right: str

    def __str__(self) -> str:
        return f"{self.level}: {self.file}: {self.field}: {self.wrong}\n  right: {self.right}"


def finding(file: str, problem: str, right: str, level: Level = "error") -> Finding:
    """From a problem as the catalog's checks word it, `field: what is wrong; what would be right`.

    `right` stands in where the problem itself does not say it.
    """
    field, _, said = problem.partition(": ")
    wrong, _, remedy = said.partition("; ")
    return Finding(file=file, field=field, level=level, wrong=wrong, right=remedy or right)
