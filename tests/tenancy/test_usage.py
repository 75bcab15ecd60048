"""Sums over the ledger, the same from both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from serving.core.context import UNKNOWN_USAGE, Usage
from serving.core.money import SEVERAL, MachineDollars
from serving.core.outcomes import Outcome
from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.base import Database
from serving.tenancy.database.open import open_database
from serving.tenancy.usage import UsageRow, read_usage
from tests.tenancy.records import StandingClock, ended, identity, ledger

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0
ALL = {"since": datetime(2026, 1, 1, tzinfo=UTC), "until": datetime(2027, 1, 1, tzinfo=UTC)}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(DatabaseSettings(url=SecretStr(database_url)))
    yield opened
    opened.close()


def note(database: Database, *, at: float = NOON, tenant: str = "red", key_id: str = "key-1", **fields: Any) -> None:
    """Write the record of one request that ended at `at`."""
    book = ledger(clock=StandingClock(15.0), wall=StandingClock(at))
    book.add(ended(**fields), identity(tenant, key_id), 15.0)
    database.execute(database.insert_records, (orjson.dumps(book.take()).decode(),))


def by(database: Database, *names: str, **fields: Any) -> dict[tuple[str, ...], UsageRow]:
    return {row.group: row for row in read_usage(database, by=names, **(ALL | fields))}


def test_a_group_is_the_sum_of_its_requests(database: Database) -> None:
    note(database, machine=MachineDollars(4e-6, 1e-6, 3e-6, 2e-6))
    note(database, usage=Usage(50, 0, 1))
    note(database, tenant="blue")
    assert by(database, "tenant")["red",] == UsageRow(
        group=("red",),
        requests=2,
        answered=2,
        prompt_tokens=150,
        cached_tokens=60,
        output_tokens=6,
        seconds=10.0,
        prompt_dollars=90 / 1e6,
        cached_dollars=30 / 1e6,
        output_dollars=12 / 1e6,
        machine_prompt_dollars=4e-6,
        machine_cached_dollars=1e-6,
        machine_output_dollars=3e-6,
        machine_failed_dollars=2e-6,
        estimated=0,
        tokens_unknown=0,
        dollars_unknown=0,
    )
    assert by(database, "tenant")["red",].dollars == pytest.approx(132 / 1e6)
    assert by(database, "tenant")["red",].machine_dollars == pytest.approx(10 / 1e6)
    assert by(database, "tenant")["blue",].machine_dollars is None, "unknown, which is not nothing"


def test_by_every_dimension(database: Database) -> None:
    note(database, model="a", pool="p", target="t", key_id="k", outcome=Outcome.OK)
    note(database, at=NOON + DAY, model="b")
    assert list(by(database, "model")) == [("a",), ("b",)]
    assert list(by(database, "key")) == [("k",), ("key-1",)]
    assert list(by(database, "day")) == [("2026-11-29",), ("2026-11-30",)]
    assert list(by(database, "pool")) == [("cpu",), ("p",)]
    assert list(by(database, "target")) == [("epyc",), ("t",)]
    assert list(by(database, "outcome")) == [("ok",)]
    assert list(by(database, "model", "day")) == [("a", "2026-11-29"), ("b", "2026-11-30")]
    assert by(database)[()].requests == 2


def test_what_failed_stands_where_it_failed(database: Database) -> None:
    note(database, machine=MachineDollars(4e-6, 1e-6, 3e-6, 2e-6), failed_at=("spot", "old"))
    note(database, machine=MachineDollars(4e-6, 1e-6, 3e-6, 5e-6), failed_at=("cpu", "epyc"))
    note(database, machine=MachineDollars(0.0, 0.0, 0.0, 7e-6), pool="spot", target="old", failed_at=SEVERAL)
    note(database, machine=MachineDollars(0.0, 0.0, 0.0, 1e-6))
    for names in (("pool",), ("target",), ("tenant", "pool", "target")):
        failed = {row.group[-1]: row.machine_failed_dollars for row in by(database, *names).values()}
        assert sorted(filter(None, failed.values())) == pytest.approx([2e-6, 6e-6, 7e-6]), names
    spot = by(database, "pool")["spot",]
    assert (spot.requests, spot.machine_failed_dollars) == (1, pytest.approx(2e-6))
    assert by(database, "pool")["(several)",].requests == 0
    assert by(database, "pool")["cpu",].machine_dollars == pytest.approx(8e-6 + 8e-6 + 6e-6)
    assert by(database, "tenant")["red",].machine_failed_dollars == by(database)[()].machine_failed_dollars
    assert by(database)[()].machine_failed_dollars == pytest.approx(15e-6)


def test_a_day_is_one_of_utc(database: Database) -> None:
    note(database, at=datetime(2026, 11, 29, 23, 59, 59, tzinfo=UTC).timestamp())
    note(database, at=datetime(2026, 11, 30, 0, 0, 0, tzinfo=UTC).timestamp())
    assert list(by(database, "day")) == [("2026-11-29",), ("2026-11-30",)]


def test_from_is_included_and_to_is_not(database: Database) -> None:
    for day in range(3):
        note(database, at=NOON + day * DAY)
    first, last = (datetime.fromtimestamp(NOON + day * DAY, UTC) for day in (0, 2))
    assert by(database, since=first, until=last)[()].requests == 2
    assert by(database, since=last, until=ALL["until"])[()].requests == 1


def test_one_tenant_alone(database: Database) -> None:
    note(database)
    note(database, tenant="blue")
    assert list(by(database, "tenant", tenant="blue")) == [("blue",)]


def test_nothing_is_no_row(database: Database) -> None:
    assert by(database) == by(database, "tenant") == {}


def test_what_is_unknown_is_counted_and_never_zero(database: Database) -> None:
    note(database, usage=UNKNOWN_USAGE)
    row = by(database)[()]
    assert (row.prompt_tokens, row.output_tokens, row.dollars) == (None, None, None)
    assert (row.tokens_unknown, row.dollars_unknown) == (1, 1)
    note(database, model="unpriced")
    row = by(database)[()]
    assert (row.prompt_tokens, row.dollars, row.tokens_unknown, row.dollars_unknown) == (100, None, 1, 2)
    note(database)
    row = by(database)[()]
    assert row.dollars == pytest.approx(80 / 1e6)
    assert (row.tokens_unknown, row.dollars_unknown) == (1, 2)


def test_what_was_refused_costs_nothing_and_is_no_unknown(database: Database) -> None:
    note(database, first_byte=0.0, attempts=0, outcome=Outcome.OVERLOADED, pool="", target="")
    row = by(database)[()]
    assert (row.requests, row.answered, row.tokens_unknown, row.dollars_unknown) == (1, 0, 0, 0)


def test_estimates_are_counted(database: Database) -> None:
    note(database, usage_estimated=True)
    note(database)
    assert by(database)[()].estimated == 1


def test_large_sums_are_exact(database: Database) -> None:
    for _ in range(3):
        note(database, usage=Usage(2**53 + 1, 0, 0), model="unpriced")
    assert by(database)[()].prompt_tokens == 3 * (2**53 + 1)
