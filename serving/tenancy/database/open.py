"""Opening the database of the settings."""

from __future__ import annotations

from serving.core.errors import ConfigurationError
from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.base import Database
from serving.tenancy.database.schema import migrate


def open_database(settings: DatabaseSettings) -> Database:
    """A new connection, its tables brought up to date.

    Raises:
        DatabaseError: it cannot be reached
        ConfigurationError: there is none, its driver is missing, or it is newer than this version
    """
    database = _connect(settings)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def _connect(settings: DatabaseSettings) -> Database:
    if settings.url is None:
        raise ConfigurationError("database.url: is missing: give sqlite:/PATH, or postgresql://USER:PASSWORD@HOST:PORT/NAME")
    if settings.kind == "sqlite":
        from serving.tenancy.database.sqlite import SqliteDatabase

        return SqliteDatabase(settings.path, timeout_seconds=settings.timeout_seconds)
    try:
        from serving.tenancy.database.postgres import PostgresDatabase
    except ImportError as error:
        raise ConfigurationError(f"database.url: PostgreSQL needs the package psycopg[binary]: {error}") from None
    return PostgresDatabase(settings.url.get_secret_value(), timeout_seconds=settings.timeout_seconds)
