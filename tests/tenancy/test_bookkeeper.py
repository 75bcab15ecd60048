"""Passes of the bookkeeper, one by one and with a clock that stands: what it knows, keeps, and loses."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings, LedgerSettings
from serving.observability.metrics import AccountMetrics
from serving.tenancy.bookkeeper import CLOCK_SKEW_SECONDS, Bookkeeper
from serving.tenancy.database.base import Database, DatabaseAway
from serving.tenancy.database.open import open_database
from serving.tenancy.key_file import WatchedKeyFile
from serving.tenancy.keys import KeyHashes, KeyRecord, KeyTable, key_line, new_key
from serving.tenancy.spill import Spill
from tests.tenancy.records import StandingClock, ended, identity, ledger

HASHES = KeyHashes("the server's secret")
LONGEST_REVOCATION_SECONDS = 5
LONGEST_SECRET_UPDATE_SECONDS = 90
"""Of a mounted Secret in Kubernetes: the kubelet's sync period of a minute and its cache."""


class Keys:
    """Takes keys and remembers the last ones."""

    def __init__(self) -> None:
        self.ids: dict[str, list[str]] = {}
        self.times = 0

    def take_keys(self, source: str, records: Sequence[KeyRecord]) -> None:
        self.ids[source] = [record.id for record in records]
        self.times += 1


class World:
    """A bookkeeper over a database that can be made to go away."""

    def __init__(self, url: str, folder: Path, **fields: Any) -> None:
        self.settings = DatabaseSettings(url=SecretStr(url))
        self.clock, self.wall = StandingClock(), StandingClock(1_796_000_000.0)
        self.is_away = False
        """Opening it and every statement fail."""
        self.fails_after = False
        """The next statement is done, and yet its answer never comes."""
        self.keys = Keys()
        self.dropped: list[None] = []
        self.ledger = ledger(
            dropped=lambda: self.dropped.append(None), memory_records=1000, clock=StandingClock(15.0), wall=self.wall
        )
        self.metrics = AccountMetrics(CollectorRegistry())
        self.spill = Spill(folder / "spill", most_bytes=10**9) if fields.pop("spills", False) else None
        self.keeper = Bookkeeper(
            database=self.settings,
            ledger_settings=LedgerSettings(**fields),
            open_database=self._open,
            keys=self.keys,
            key_file=None,
            ledger=self.ledger,
            spill=self.spill,
            metrics=self.metrics,
            clock=self.clock,
            wall=self.wall,
        )
        self.own = open_database(self.settings)
        """For the test itself."""
        self.table = KeyTable(self.own)

    def _open(self) -> Database:
        self._check()
        database = open_database(self.settings)
        execute = database.execute

        def checked(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            self._check()
            rows = execute(sql, parameters)
            if self.fails_after and sql == database.insert_records:
                self.fails_after = False
                raise DatabaseAway("the answer never came")
            return rows

        database.execute = checked  # type: ignore[method-assign]
        return database

    def _check(self) -> None:
        if self.is_away:
            raise DatabaseAway("it is away")

    def pass_(self, seconds: float = 1.0) -> bool:
        """Let time pass, then one pass."""
        self.clock.now += seconds
        self.wall.now += seconds
        return self.keeper.step()

    def end_requests(self, *numbers: int) -> None:
        for number in numbers:
            self.ledger.add(ended(number), identity(), 15.0)

    def written(self) -> list[str]:
        """The request ids in the ledger's table, in order."""
        return [row[0] for row in self.own.execute("SELECT request_id FROM serving_ledger ORDER BY ended_at, id")]

    def counted(self) -> dict[str, float]:
        return {labels[0]: value for labels, value in self.metrics.records._values.items() if value}

    def close(self) -> None:
        self.is_away = False
        self.keeper.close()
        self.keeper._last_step()
        self.own.close()


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[Callable[..., World]]:
    with contextlib.ExitStack() as worlds:

        def make(**fields: Any) -> World:
            made = World(database_url, tmp_path, **fields)
            worlds.callback(made.close)
            return made

        yield make


MakeWorld = Callable[..., World]


def add_key(world: World, tenant: str = "red") -> str:
    record, _ = new_key(tenant, HASHES, note="", now=world.wall.now)
    world.table.add(record)
    return record.id


# Keys


def test_keys_are_known_after_the_first_pass(world: MakeWorld) -> None:
    here = world()
    key = add_key(here)
    here.pass_()
    assert here.keys.ids == {"database": [key]}


def test_a_revoked_key_is_gone_after_the_next_look(world: MakeWorld) -> None:
    here = world()
    key = add_key(here)
    here.pass_()
    here.table.revoke(key, here.wall.now)
    here.pass_(here.settings.refresh_seconds)
    assert here.keys.ids == {"database": []}


def test_a_look_comes_so_often_that_five_seconds_are_kept() -> None:
    for settings in (DatabaseSettings(), DatabaseSettings(refresh_seconds=2, timeout_seconds=2)):
        assert settings.refresh_seconds + settings.timeout_seconds < LONGEST_REVOCATION_SECONDS


def test_a_revocation_is_seen_though_the_revokers_clock_is_ahead(world: MakeWorld) -> None:
    here = world()
    key = add_key(here)
    here.pass_()
    here.table.revoke(key, here.wall.now + CLOCK_SKEW_SECONDS - 5)
    here.pass_()
    assert here.keys.ids == {"database": []}


def test_a_key_that_ends_later_ends_by_itself(world: MakeWorld) -> None:
    here = world()
    old = add_key(here)
    new, _ = new_key("red", HASHES, note="", now=here.wall.now + 1)
    here.table.replace(old, new, here.wall.now + 3600)
    here.pass_()
    assert here.keys.ids == {"database": [old, new.id]}
    here.pass_(3500)
    assert here.keys.ids == {"database": [old, new.id]}
    here.pass_(100)
    assert here.keys.ids == {"database": [new.id]}


def test_keys_that_have_not_changed_are_not_read_again(world: MakeWorld) -> None:
    here = world()
    add_key(here)
    for _ in range(5):
        here.pass_()
    assert here.keys.times == 1


def test_while_the_database_is_away_the_last_keys_stay_and_one_line_says_so(
    world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "serving.bookkeeper")
    here = world()
    key = add_key(here)
    here.pass_()
    here.is_away = True
    for _ in range(100):
        here.pass_(100)
    assert here.keys.ids == {"database": [key]}
    assert here.metrics.database_up._value.get() == 0
    assert here.clock.now - here.keeper.keys_checked == 100 * 100
    here.table.revoke(key, here.wall.now)
    here.is_away = False
    here.pass_()
    assert here.keys.ids == {"database": []}
    assert here.metrics.database_up._value.get() == 1
    assert [message.partition(";")[0].partition(" after")[0] for message in caplog.messages] == [
        "the database is away",
        "the database is back",
    ]


def test_a_changed_key_file_is_known_within_two_minutes_of_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    (red, _), (blue, _) = (new_key(tenant, HASHES, note="", now=0.0) for tenant in ("red", "blue"))
    path.write_text(f"{key_line(red)}\n{key_line(blue)}\n")
    clock, keys = StandingClock(), Keys()
    poll_seconds = 30.0
    keeper = Bookkeeper(
        database=DatabaseSettings(),
        ledger_settings=LedgerSettings(),
        open_database=lambda: pytest.fail("there is none"),
        keys=keys,
        key_file=WatchedKeyFile(path, poll_seconds=poll_seconds),
        ledger=None,
        spill=None,
        metrics=AccountMetrics(CollectorRegistry()),
        clock=clock,
    )
    keeper.step()
    assert keys.ids == {"file": [red.id, blue.id]}
    path.write_text(key_line(blue))
    clock.now += poll_seconds
    keeper.step()
    assert keys.ids == {"file": [blue.id]}
    assert poll_seconds + LONGEST_SECRET_UPDATE_SECONDS <= 120


# The ledger


def test_records_are_written_once_in_batches(world: MakeWorld) -> None:
    here = world()
    here.end_requests(*range(700))
    assert not here.pass_()
    assert sorted(here.written()) == sorted(f"r{number}" for number in range(700))
    assert here.keeper.waiting_records == 0
    here.pass_()
    assert here.counted() == {"written": 700}


def test_what_was_written_before_the_connection_broke_is_not_written_twice(world: MakeWorld) -> None:
    here = world()
    here.pass_()
    here.end_requests(1, 2, 3)
    here.fails_after = True
    here.pass_()
    assert here.keeper.waiting_records == 3, "nobody knows whether they are safe"
    here.pass_()
    assert (len(here.written()), here.keeper.waiting_records) == (3, 0)


def test_records_wait_in_bounded_memory_while_the_database_is_away(world: MakeWorld) -> None:
    here = world()
    here.is_away = True
    here.end_requests(*range(1200))
    here.pass_()
    assert (here.keeper.waiting_records, len(here.dropped)) == (1000, 200)
    here.is_away = False
    while here.pass_():
        pass
    assert len(here.written()) == 1000


def test_records_are_spilled_while_the_database_is_away_and_none_is_lost(world: MakeWorld) -> None:
    here = world(spills=True)
    here.pass_()
    here.is_away = True
    for first in range(0, 5000, 500):
        here.end_requests(*range(first, first + 500))
        here.pass_(1.0 if first % 1000 else 0.01)
        assert here.keeper.waiting_records == 0, "also in a pass that is too early for the next try"
    here.is_away = False
    while here.pass_():
        pass
    assert sorted(here.written()) == sorted(f"r{number}" for number in range(5000))
    assert (here.dropped, here.counted()) == ([], {"spilled": 5000, "written": 5000})


def test_a_full_spill_folder_leaves_records_in_memory_until_that_is_full_too(world: MakeWorld) -> None:
    here = world(spills=True)
    assert here.spill is not None
    here.spill._most_bytes = 0
    here.is_away = True
    here.end_requests(*range(1200))
    here.pass_()
    assert (here.keeper.waiting_records, len(here.dropped)) == (1000, 200)
    here.is_away = False
    while here.pass_():
        pass
    assert len(here.written()) == 1000


def test_what_a_killed_process_spilled_the_next_one_brings_in(database_url: str, tmp_path: Path, world: MakeWorld) -> None:
    killed = World(database_url, tmp_path, spills=True)
    killed.is_away = True
    killed.end_requests(1, 2)
    killed.pass_()
    assert killed.spill is not None
    killed.spill.close()  # as the kernel does for a process that is killed
    here = world(spills=True)
    here.pass_()
    assert sorted(here.written()) == ["r1", "r2"]
    killed.close()


def test_a_record_that_the_database_refuses_holds_up_no_other(world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    here = world()
    here.end_requests(1)
    here.ledger.add(ended(2, model=None), identity(), 15.0)
    here.end_requests(3)
    here.pass_()
    assert sorted(here.written()) == ["r1", "r3"]
    assert here.counted() == {"written": 2, "refused": 1}
    assert caplog.messages == ["the database does not take a record of the ledger, which is dropped"]


def test_old_records_go_a_few_at_a_time(world: MakeWorld) -> None:
    here = world(retention_days=10)
    for first in range(0, 2400, 800):
        here.end_requests(*range(first, first + 800))
        here.pass_(0.5)
    here.clock.now += 86_400 * 10
    here.wall.now += 86_400 * 10
    here.end_requests(2400)
    left = []
    for _ in range(3):
        here.pass_(0.5)
        left.append(len(here.written()))
    assert left == [1401, 401, 1]
    assert here.written() == ["r2400"]


def test_between_two_looks_for_old_records_a_minute_passes(world: MakeWorld) -> None:
    here = world(retention_days=10)
    here.end_requests(1)
    here.pass_()
    here.wall.now += 86_400 * 11
    here.pass_(1)
    assert here.written() == ["r1"]
    here.pass_(60)
    assert here.written() == []


def test_without_a_retention_nothing_goes(world: MakeWorld) -> None:
    here = world(retention_days=None)
    here.end_requests(1)
    here.pass_()
    here.pass_(86_400 * 10_000)
    assert here.written() == ["r1"]


# The end


def test_nothing_is_lost_at_the_end(world: MakeWorld) -> None:
    here = world()
    here.keeper.start()
    assert here.keeper.looked.wait(120)
    here.end_requests(*range(1000))
    here.keeper.close()
    assert len(here.written()) == 1000
    assert "lost_at_stop" not in here.counted()


def test_a_connection_that_is_broken_at_the_end_is_made_anew(world: MakeWorld) -> None:
    """The database was started anew and is there again; only what an old connection says is an error."""
    here = world()
    here.pass_()
    here.end_requests(1, 2, 3)
    here.fails_after = True
    here.keeper._last_step()
    here.end_requests(4)
    here.is_away = True
    threading.Timer(0.5, lambda: setattr(here, "is_away", False)).start()
    here.keeper._last_step()
    here.keeper.close()
    assert here.written() == ["r1", "r2", "r3", "r4"]
    assert "lost_at_stop" not in here.counted()


def test_what_is_lost_at_the_end_is_counted_and_said(world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    here = world()
    here.is_away = True
    here.end_requests(1, 2, 3)
    here.keeper.start()
    here.keeper.close()
    assert here.counted() == {"lost_at_stop": 3}
    assert caplog.messages[-1] == "3 records of the ledger could not be written before the end and are lost"
    here.ledger.take()
    here.keeper._batch = []


def test_with_a_spill_folder_nothing_is_lost_at_the_end_though_the_database_is_away(world: MakeWorld) -> None:
    here = world(spills=True)
    here.is_away = True
    here.end_requests(1, 2, 3)
    here.keeper.start()
    here.keeper.close()
    assert here.counted() == {"spilled": 3}
    again = world(spills=True)
    again.pass_()
    assert len(again.written()) == 3


def test_a_fault_does_not_end_the_thread(world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    here = world()

    def fail(source: str, records: Sequence[KeyRecord]) -> None:
        raise ZeroDivisionError

    here.keys.take_keys = fail  # type: ignore[method-assign]
    here.keeper.start()
    assert here.keeper.looked.wait(120)
    del here.keys.take_keys
    here.end_requests(1)
    here.keeper.close()
    assert caplog.messages[0] == "a pass failed"
    assert here.written() == ["r1"]
