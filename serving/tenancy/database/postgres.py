"""PostgreSQL, through psycopg: for several gateways. Imported only where it is configured."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from serving.tenancy.database.base import DatabaseAway, Row, StatementRefused
from serving.tenancy.database.schema import COLUMN_NAMES, LEDGER_COLUMNS

_VALUES = ", ".join(f"CAST(record->>{place} AS {kind})" for place, (_, kind) in enumerate(LEDGER_COLUMNS))
_ONE_AT_A_TIME = 0x5E12_71A6
"""Names the lock of whoever changes tables or keys."""
_REFUSED = (psycopg.DataError, psycopg.IntegrityError)


class PostgresDatabase:
    """One connection."""

    day_of = "to_char(to_timestamp(ended_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
    row_locks = " FOR UPDATE SKIP LOCKED"
    tables_named = "SELECT relname FROM pg_class WHERE oid = to_regclass(?)"
    insert_records = (
        f"INSERT INTO serving_ledger ({COLUMN_NAMES}) SELECT {_VALUES} FROM json_array_elements(CAST(? AS json)) AS record "
        "ON CONFLICT (id) DO NOTHING"
    )

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        """Raises: DatabaseAway."""
        self._timeout_seconds = timeout_seconds
        with self._translated():
            self._connection = psycopg.connect(
                url,
                autocommit=True,
                # Behind a pooler of connections a statement may come to another server process than the one that prepared it.
                prepare_threshold=None,
                connect_timeout=max(2, round(timeout_seconds)),  # libpq takes less than 2 for 2
                application_name="serving",
            )

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._deadline():
            return self._execute(sql, parameters)

    def _execute(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with self._translated():
            cursor = self._connection.execute(sql.replace("?", "%s"), parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._deadline():
            self._execute("BEGIN", ())
            try:
                self._execute("SELECT pg_advisory_xact_lock(?)", (_ONE_AT_A_TIME,))
                yield
                self._execute("COMMIT", ())
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        """End the connection when the time is over: a server that hangs still holds its end, so that nothing else would."""
        timer = threading.Timer(self._timeout_seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            copy = socket.socket(fileno=os.dup(self._connection.fileno()))
            with copy:
                copy.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _REFUSED as error:
            raise StatementRefused(_words(error)) from None
        except psycopg.Error as error:
            raise DatabaseAway(f"database.url: {_words(error)}") from None


def _words(error: psycopg.Error) -> str:
    """The first line of the error; libpq's words for a connection name host and user, never the password."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
