"""SQLite in a file: for one gateway, with the standard library."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from serving.tenancy.database.base import DatabaseAway, Row, StatementRefused
from serving.tenancy.database.schema import COLUMN_NAMES, LEDGER_COLUMNS

_VALUES = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(LEDGER_COLUMNS)))
_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError)


class SqliteDatabase:
    """A connection to a file, made if it is not there, readable by its owner only."""

    day_of = "date(ended_at, 'unixepoch')"
    row_locks = ""
    tables_named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
    insert_records = (
        f"INSERT INTO serving_ledger ({COLUMN_NAMES}) SELECT {_VALUES} FROM json_each(?) WHERE true ON CONFLICT (id) DO NOTHING"
    )

    def __init__(self, path: Path, *, timeout_seconds: float) -> None:
        """Raises: DatabaseAway."""
        self._path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise DatabaseAway(f"database.url: {path} cannot be opened: {error.strerror}") from None
        with self._translated():
            self._connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None)
            # Readers do not wait for the writer; FULL: what is committed outlives a loss of power.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            return self._connection.execute(sql, parameters).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _REFUSED as error:
            raise StatementRefused(str(error)) from None
        except sqlite3.Error as error:
            raise DatabaseAway(f"{self._path}: {error}") from None
