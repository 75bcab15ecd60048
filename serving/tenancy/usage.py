"""What was used, and by whom: sums over the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from serving.tenancy.database.base import Database
from serving.tenancy.prices import NANODOLLARS

DIMENSIONS: Mapping[str, str] = {
    "tenant": "tenant",
    "model": "model",
    "key": "key_id",
    "day": "day",
    "pool": "pool",
    "target": "target",
    "outcome": "outcome",
}
"""What can be summed by, and the column that holds it. A day is one of UTC."""

_ANSWERED = "first_token_seconds IS NOT NULL"
_SUMS = {
    "requests": "count(*)",
    "answered": f"sum(CASE WHEN {_ANSWERED} THEN 1 ELSE 0 END)",
    "prompt_tokens": "sum(prompt_tokens)",
    "cached_tokens": "sum(cached_tokens)",
    "output_tokens": "sum(output_tokens)",
    "seconds": "sum(seconds)",
    "prompt_nanodollars": "sum(prompt_nanodollars)",
    "cached_nanodollars": "sum(cached_nanodollars)",
    "output_nanodollars": "sum(output_nanodollars)",
    "machine_prompt_nanodollars": "sum(machine_prompt_nanodollars)",
    "machine_cached_nanodollars": "sum(machine_cached_nanodollars)",
    "machine_output_nanodollars": "sum(machine_output_nanodollars)",
    "machine_failed_nanodollars": "sum(machine_failed_nanodollars)",
    "estimated": "sum(estimated)",
    "tokens_unknown": f"sum(CASE WHEN {_ANSWERED} AND prompt_tokens IS NULL THEN 1 ELSE 0 END)",
    "dollars_unknown": f"sum(CASE WHEN {_ANSWERED} AND (prompt_nanodollars IS NULL"
    " OR (output_tokens IS NOT NULL AND output_nanodollars IS NULL)) THEN 1 ELSE 0 END)",
}

_FAILED = "machine_failed_nanodollars"
_FAILED_AT = {"pool": "machine_failed_pool", "target": "machine_failed_target"}
"""Columns that say where attempts without an answer were."""
Groups = dict[tuple[str, ...], dict[str, Any]]
"""By group: what `_SUMS` sums."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One group. Dollars and tokens are the sums of what is known, None where nothing is."""

    group: tuple[str, ...]
    requests: int
    answered: int
    """Those of which a client got something."""
    prompt_tokens: int | None
    """The cached ones included."""
    cached_tokens: int | None
    output_tokens: int | None
    seconds: float
    """From arrival to end, summed."""
    prompt_dollars: float | None
    """For the prompt tokens that were not cached."""
    cached_dollars: float | None
    output_dollars: float | None
    machine_prompt_dollars: float | None
    """What the machines cost meanwhile, as docs/cost.md says; nobody is charged that."""
    machine_cached_dollars: float | None
    machine_output_dollars: float | None
    machine_failed_dollars: float | None
    """Of attempts that gave no answer, in the group of the pool and target where they were; it may have no requests else."""
    estimated: int
    """Requests whose tokens are a guess, since the answer broke off."""
    tokens_unknown: int
    """Answered requests of which the engine did not say the tokens."""
    dollars_unknown: int
    """Answered requests that have no price, or not for all of their tokens."""

    @property
    def dollars(self) -> float | None:
        """What is charged."""
        return _sum_of_known(self.prompt_dollars, self.cached_dollars, self.output_dollars)

    @property
    def machine_dollars(self) -> float | None:
        parts = (self.machine_prompt_dollars, self.machine_cached_dollars, self.machine_output_dollars)
        return _sum_of_known(*parts, self.machine_failed_dollars)

    def as_dict(self, by: Sequence[str]) -> dict[str, Any]:
        """For JSON and CSV: the group's names first."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "group"}
        return {
            **dict(zip(by, self.group, strict=True)),
            **fields,
            "dollars": self.dollars,
            "machine_dollars": self.machine_dollars,
        }


def _sum_of_known(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def read_usage(
    database: Database, *, by: Sequence[str], since: datetime, until: datetime, tenant: str | None = None
) -> list[UsageRow]:
    """Sums for each group of requests that ended from `since` on and before `until`, sorted by group.

    `by` names `DIMENSIONS`; none gives one row. Raises: DatabaseError.
    """
    columns = [database.day_of if name == "day" else DIMENSIONS[name] for name in by]
    where = "ended_at >= ? AND ended_at < ?"
    parameters: list[Any] = [since.timestamp(), until.timestamp()]
    if tenant is not None:
        where += " AND tenant = ?"
        parameters.append(tenant)
    found: Groups = {}
    for row in _grouped(database, columns, list(_SUMS.values()), where, parameters):
        sums = dict(zip(_SUMS, row[len(columns) :], strict=True))
        if sums["requests"]:
            found[_group(row, len(columns))] = sums
    if _FAILED_AT.keys() & set(columns):
        _move_failed(database, columns, where, parameters, found)
    return [_row(group, found[group]) for group in sorted(found)]


def _move_failed(database: Database, columns: Sequence[str], where: str, parameters: Sequence[Any], found: Groups) -> None:
    """Take what failed elsewhere out of the groups that answered, and put it where it failed."""
    width = len(columns)
    names = [*columns, *(_FAILED_AT.get(column, column) for column in columns)]
    elsewhere = f"{where} AND (machine_failed_pool <> pool OR machine_failed_target <> target)"
    for row in _grouped(database, names, [f"sum({_FAILED})"], elsewhere, parameters):
        answered, failed, nanodollars = _group(row, width), _group(row[width:], width), int(row[-1] or 0)
        for group, more in ((answered, -nanodollars), (failed, nanodollars)):
            sums = found.setdefault(group, dict.fromkeys(_SUMS))
            sums[_FAILED] = int(sums[_FAILED] or 0) + more


def _grouped(
    database: Database, columns: Sequence[str], sums: Sequence[str], where: str, parameters: Sequence[Any]
) -> Sequence[Sequence[Any]]:
    sql = f"SELECT {', '.join([*columns, *sums])} FROM serving_ledger WHERE {where}"
    if columns:
        sql += f" GROUP BY {', '.join(str(place) for place in range(1, len(columns) + 1))}"
    return database.execute(sql, parameters)


def _group(row: Sequence[Any], width: int) -> tuple[str, ...]:
    return tuple(str(part) for part in row[:width])


def _row(group: tuple[str, ...], sums: Mapping[str, Any]) -> UsageRow:
    counts = {name: _integer(value) for name, value in sums.items() if name != "seconds"}
    return UsageRow(
        group=group,
        requests=counts["requests"] or 0,
        answered=counts["answered"] or 0,
        prompt_tokens=counts["prompt_tokens"],
        cached_tokens=counts["cached_tokens"],
        output_tokens=counts["output_tokens"],
        seconds=round(float(sums["seconds"] or 0), 3),
        prompt_dollars=_dollars(counts["prompt_nanodollars"]),
        cached_dollars=_dollars(counts["cached_nanodollars"]),
        output_dollars=_dollars(counts["output_nanodollars"]),
        machine_prompt_dollars=_dollars(counts["machine_prompt_nanodollars"]),
        machine_cached_dollars=_dollars(counts["machine_cached_nanodollars"]),
        machine_output_dollars=_dollars(counts["machine_output_nanodollars"]),
        machine_failed_dollars=_dollars(counts["machine_failed_nanodollars"]),
        estimated=counts["estimated"] or 0,
        tokens_unknown=counts["tokens_unknown"] or 0,
        dollars_unknown=counts["dollars_unknown"] or 0,
    )


def _integer(value: Any) -> int | None:
    """PostgreSQL sums large integers as decimals."""
    return None if value is None else int(value)


def _dollars(nanodollars: int | None) -> float | None:
    return None if nanodollars is None else nanodollars / NANODOLLARS
