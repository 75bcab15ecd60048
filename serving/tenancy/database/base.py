"""What is asked of a database, in the SQL that SQLite and PostgreSQL share.

Blocking: it belongs to one thread, and never to the event loop's. Parameters are `?` in both.

    DatabaseError
    ├── DatabaseAway       it cannot be reached, or did not answer in time; the connection is no good any more
    └── StatementRefused   it is there and does not take these values
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from serving.core.errors import ServingError

Row = tuple[Any, ...]


class DatabaseError(ServingError):
    """Something could not be done. The message holds no password."""


class DatabaseAway(DatabaseError):
    pass


class StatementRefused(DatabaseError):
    pass


class Database(Protocol):
    """One open connection."""

    day_of: str
    """An expression for the day, as 2026-11-30 in UTC, of a column `ended_at`."""
    tables_named: str
    """A statement that returns a row where there is a table of the name that it takes."""
    row_locks: str
    """What a SELECT of rows to be deleted ends with, so that two gateways do not wait for each other."""
    insert_records: str
    """Takes records of the ledger as one JSON text, a list of lists in the order of `LEDGER_COLUMNS`. Known ids are left as
    they are."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows of one statement, none where it returns none. Raises: DatabaseError."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All statements within it, or none, in at most the time of the settings. It is the only writer meanwhile, or waits.

        Raises: DatabaseError.
        """
        ...

    def close(self) -> None: ...
