"""What SQLite and PostgreSQL have to do alike, and what becomes of one that is not there, hangs, or is of a newer version."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from serving.core.errors import ConfigurationError
from serving.ledger_settings import DatabaseSettings
from serving.settings import Settings
from serving.tenancy.database.base import Database, DatabaseAway, StatementRefused
from serving.tenancy.database.open import open_database
from serving.tenancy.database.schema import LEDGER_COLUMNS, MIGRATIONS, VERSION, SchemaTooNew
from tests.doubles.postgres import RealPostgres, real_postgres
from tests.doubles.settling import HANG_SECONDS


def settings(url: str, **fields: Any) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(url), **fields)


def record(number: int, **fields: Any) -> list[Any]:
    """A record of the ledger in the order of its columns."""
    values: dict[str, Any] = {
        name: "text" if kind == "TEXT" else 1.5 if kind.startswith("DOUBLE") else 1 for name, kind in LEDGER_COLUMNS
    }
    values |= {"id": f"a-{number}"} | fields
    return [values[name] for name, _ in LEDGER_COLUMNS]


def insert(database: Database, *records: list[Any]) -> None:
    database.execute(database.insert_records, (orjson.dumps(records).decode(),))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(settings(database_url))
    yield opened
    opened.close()


def test_opening_it_again_keeps_what_is_there(database: Database, database_url: str) -> None:
    insert(database, record(1))
    other = open_database(settings(database_url))
    assert other.execute("SELECT id FROM serving_ledger") == [("a-1",)]
    other.close()


def test_many_may_open_a_new_one_at_the_same_time(database_url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        opened = [threads.submit(lambda: open_database(settings(database_url)).close()) for _ in range(8)]
    assert [each.exception() for each in opened] == [None] * 8


def test_a_newer_schema_is_refused_and_left_alone(database: Database, database_url: str) -> None:
    database.execute("UPDATE serving_schema SET version = ?", (VERSION + 1,))
    with pytest.raises(SchemaTooNew) as caught:
        open_database(settings(database_url))
    assert f"database.url: the database has schema {VERSION + 1}, and this version knows schema {VERSION} at most" in str(
        caught.value
    )
    assert database.execute("SELECT version FROM serving_schema") == [(VERSION + 1,)]


def test_a_database_of_the_first_schema_is_brought_up_to_date_and_keeps_its_records(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    for step in (
        "CREATE TABLE serving_schema (version INTEGER NOT NULL)",
        "INSERT INTO serving_schema VALUES (1)",
        *MIGRATIONS[0],
    ):
        connection.execute(step)
    old_columns = [name for name, _ in LEDGER_COLUMNS if not name.startswith("machine_")]
    old = dict(zip((name for name, _ in LEDGER_COLUMNS), record(1), strict=True))
    places = ", ".join("?" for _ in old_columns)
    connection.execute(
        f"INSERT INTO serving_ledger ({', '.join(old_columns)}) VALUES ({places})", [old[name] for name in old_columns]
    )
    connection.commit()
    connection.close()
    database = open_database(settings(f"sqlite:{path}"))
    assert database.execute("SELECT version FROM serving_schema") == [(VERSION,)]
    assert database.execute("SELECT prompt_tokens, machine_prompt_nanodollars FROM serving_ledger") == [
        (old["prompt_tokens"], None)
    ]
    database.close()


def test_a_record_that_an_older_version_spilled_is_taken_in(database: Database) -> None:
    """It ends before the newest columns."""
    older = record(1)[: -sum(name.startswith("machine_") for name, _ in LEDGER_COLUMNS)]
    insert(database, older)
    assert database.execute("SELECT machine_prompt_nanodollars FROM serving_ledger") == [(None,)]


def test_a_record_is_kept_as_it_was_and_once(database: Database) -> None:
    whole = record(
        1, ended_at=1_796_000_000.123, prompt_tokens=2**53, cached_tokens=None, prompt_nanodollars=None, model='é"\\🌍'
    )
    insert(database, whole, record(2))
    insert(database, record(2, tenant="other"), record(3))
    names = ", ".join(name for name, _ in LEDGER_COLUMNS)
    rows = database.execute(f"SELECT {names} FROM serving_ledger ORDER BY id")
    assert [list(row) for row in rows] == [whole, record(2), record(3)]


def test_a_record_that_cannot_be_kept_is_refused_with_all_of_its_batch(database: Database) -> None:
    with pytest.raises(StatementRefused):
        insert(database, record(1), record(2, tenant=None))
    assert database.execute("SELECT count(*) FROM serving_ledger") == [(0,)]
    insert(database, record(1))


def test_a_transaction_is_whole_or_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        with database.transaction():
            insert(database, record(1))
            raise ZeroDivisionError
    assert database.execute("SELECT count(*) FROM serving_ledger") == [(0,)]
    with database.transaction():
        insert(database, record(1))
    assert database.execute("SELECT count(*) FROM serving_ledger") == [(1,)]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseAway, match=f"database.url: {tmp_path}/none/x.db cannot be opened: No such file"):
        open_database(settings(f"sqlite:{tmp_path}/none/x.db"))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(DatabaseAway, match=str(path)):
        open_database(settings(f"sqlite:{path}"))


def test_sqlites_file_is_its_owners_alone(tmp_path: Path) -> None:
    open_database(settings(f"sqlite:{tmp_path}/x.db")).close()
    assert (tmp_path / "x.db").stat().st_mode & 0o777 == 0o600


def test_a_server_that_is_not_there_is_away_and_no_password_is_told() -> None:
    with pytest.raises(DatabaseAway) as caught:
        open_database(settings("postgresql://serving:hush-hush@127.0.0.1:1/postgres"))
    assert "hush-hush" not in str(caught.value)


@pytest.fixture
def own_postgres() -> Iterator[RealPostgres]:
    """One that may be killed."""
    with real_postgres() as server:
        yield server


def patiently_opened(server: RealPostgres, **fields: Any) -> Database:
    """On a busy machine a server may be slower than the time-out although it does not hang."""
    ends = time.monotonic() + HANG_SECONDS
    while True:
        try:
            return open_database(settings(server.url, **fields))
        except DatabaseAway:
            if time.monotonic() > ends:
                raise


def test_a_server_that_hangs_is_away_after_the_time_out(own_postgres: RealPostgres) -> None:
    opened = patiently_opened(own_postgres, timeout_seconds=0.3)
    own_postgres.hang()
    began = time.monotonic()
    with pytest.raises(DatabaseAway):
        opened.execute("SELECT 1")
    with pytest.raises(DatabaseAway):
        open_database(settings(own_postgres.url, timeout_seconds=0.3))
    assert time.monotonic() - began < HANG_SECONDS
    own_postgres.go_on()
    opened.close()
    patiently_opened(own_postgres).close()


def test_a_server_that_is_killed_within_a_transaction_is_away(own_postgres: RealPostgres) -> None:
    opened = patiently_opened(own_postgres)
    with pytest.raises(DatabaseAway):
        with opened.transaction():
            insert(opened, record(1))
            own_postgres.kill()
            insert(opened, record(2))
    opened.close()
    own_postgres.start()
    again = patiently_opened(own_postgres)
    assert again.execute("SELECT count(*) FROM serving_ledger") == [(0,)]
    again.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://x", "must be sqlite:/PATH for one gateway, or postgresql://"),
        ("sqlite:relative.db", "must be sqlite:/PATH with the whole path of a file"),
        ("sqlite:///", "must be sqlite:/PATH with the whole path of a file"),
        ("postgresql:nothing", "must be postgresql://USER:PASSWORD@HOST:PORT/NAME"),
        ("postgresql://h:0/x", "must be postgresql://USER:PASSWORD@HOST:PORT/NAME"),
    ],
)
def test_a_wrong_address_is_told_what_would_be_right(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(url)


@pytest.mark.parametrize("url", ["sqlite:/a/b.db", "sqlite:///a/b.db", "sqlite:////a/b.db"])
def test_sqlites_path_is_whole_however_many_slashes(url: str) -> None:
    assert settings(url).path == Path("/a/b.db")


def test_postgresql_needs_the_secret_of_its_keys() -> None:
    with pytest.raises(ValueError, match=r"auth\.key_secret: is missing: the keys of a PostgreSQL database are hashed with it"):
        Settings.model_validate({"database": {"url": "postgresql://x@h/y"}})


def test_without_an_address_there_is_none() -> None:
    with pytest.raises(ConfigurationError, match=r"database\.url: is missing"):
        open_database(DatabaseSettings())
