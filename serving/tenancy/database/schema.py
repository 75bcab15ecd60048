"""The tables, and how older ones become these. A change is a new entry of `MIGRATIONS`; none is ever changed."""

from __future__ import annotations

from serving.core.errors import ConfigurationError
from serving.tenancy.database.base import Database

LEDGER_COLUMNS: tuple[tuple[str, str], ...] = (
    ("id", "TEXT"),
    ("ended_at", "DOUBLE PRECISION"),
    ("request_id", "TEXT"),
    ("tenant", "TEXT"),
    ("key_id", "TEXT"),
    ("route", "TEXT"),
    ("model", "TEXT"),
    ("target", "TEXT"),
    ("pool", "TEXT"),
    ("outcome", "TEXT"),
    ("attempts", "INTEGER"),
    ("prompt_tokens", "BIGINT"),
    ("cached_tokens", "BIGINT"),
    ("output_tokens", "BIGINT"),
    ("audio_seconds", "BIGINT"),
    ("estimated", "INTEGER"),
    ("seconds", "DOUBLE PRECISION"),
    ("first_token_seconds", "DOUBLE PRECISION"),
    ("prompt_nanodollars", "BIGINT"),
    ("cached_nanodollars", "BIGINT"),
    ("output_nanodollars", "BIGINT"),
    ("machine_prompt_nanodollars", "BIGINT"),
    ("machine_cached_nanodollars", "BIGINT"),
    ("machine_output_nanodollars", "BIGINT"),
    ("machine_failed_nanodollars", "BIGINT"),
    ("machine_failed_pool", "TEXT"),
    ("machine_failed_target", "TEXT"),
)
"""Of the ledger: names and types. NULL is unknown, which is not 0; `prompt_tokens` includes `cached_tokens`. Dollars are what the
tenant is charged, but for those of the machine, which are what the request cost there. Attempts without an answer were at
`machine_failed_pool` and `machine_failed_target`, which need not be where the answer came from. New columns come last: records
that an older version spilled do not have them."""
COLUMN_NAMES = ", ".join(name for name, _ in LEDGER_COLUMNS)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE serving_keys (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, note TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL, revoked_at DOUBLE PRECISION)""",
        "CREATE TABLE serving_changes (name TEXT PRIMARY KEY, number BIGINT NOT NULL)",
        "INSERT INTO serving_changes (name, number) VALUES ('keys', 0)",
        """CREATE TABLE serving_ledger (
            id TEXT PRIMARY KEY, ended_at DOUBLE PRECISION NOT NULL, request_id TEXT NOT NULL, tenant TEXT NOT NULL,
            key_id TEXT NOT NULL, route TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL, pool TEXT NOT NULL,
            outcome TEXT NOT NULL, attempts INTEGER NOT NULL, prompt_tokens BIGINT, cached_tokens BIGINT, output_tokens BIGINT,
            audio_seconds BIGINT, estimated INTEGER NOT NULL, seconds DOUBLE PRECISION NOT NULL,
            first_token_seconds DOUBLE PRECISION, prompt_nanodollars BIGINT, cached_nanodollars BIGINT,
            output_nanodollars BIGINT)""",
        "CREATE INDEX serving_ledger_ended ON serving_ledger (ended_at)",
        "CREATE INDEX serving_ledger_tenant ON serving_ledger (tenant, ended_at)",
    ),
    tuple(
        f"ALTER TABLE serving_ledger ADD COLUMN machine_{kind}_nanodollars BIGINT"
        for kind in ("prompt", "cached", "output", "failed")
    ),
    tuple(f"ALTER TABLE serving_ledger ADD COLUMN machine_failed_{place} TEXT" for place in ("pool", "target")),
)
VERSION = len(MIGRATIONS)


class SchemaTooNew(ConfigurationError):
    """The database was made by a newer version, whose tables mean what this one does not know."""


def migrate(database: Database) -> None:
    """Bring the tables up to this version. Raises: SchemaTooNew, DatabaseError."""
    if _version(database) == VERSION:
        return
    with database.transaction():
        database.execute("CREATE TABLE IF NOT EXISTS serving_schema (version INTEGER NOT NULL)")
        rows = database.execute("SELECT version FROM serving_schema")
        found = int(rows[0][0]) if rows else 0
        if found > VERSION:
            raise SchemaTooNew(
                f"database.url: the database has schema {found}, and this version knows schema {VERSION} at most; "
                "run the newer version of serving, or give this one a database of its own"
            )
        for steps in MIGRATIONS[found:]:
            for step in steps:
                database.execute(step)
        if rows:
            database.execute("UPDATE serving_schema SET version = ?", (VERSION,))
        else:
            database.execute("INSERT INTO serving_schema (version) VALUES (?)", (VERSION,))


def _version(database: Database) -> int | None:
    """None where there may be no table yet: asking one that is not there would be an error."""
    tables = database.execute(database.tables_named, ("serving_schema",))
    if not tables:
        return None
    rows = database.execute("SELECT version FROM serving_schema")
    return int(rows[0][0]) if rows else None
