"""The commands `serving keys …` and `serving usage`."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.core.clock import wall_seconds
from serving.core.errors import ConfigurationError

if TYPE_CHECKING:
    from serving.settings import Settings
    from serving.tenancy.database.base import Database
    from serving.tenancy.keys import KeyHashes, KeyRecord
    from serving.tenancy.usage import UsageRow

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="YAML file with the gateway's settings; SERVING_… variables go over it.")
]
FileOption = Annotated[bool, typer.Option("--file", help="Keys of auth.key_file, also where there is a database.")]
KeyId = Annotated[str, typer.Argument(help="Id of the key; `serving keys list` shows it.")]
NoteOption = Annotated[str, typer.Option(help="What the key is for, in your words.")]
MOST_KEPT_HOURS = 24.0 * 365
MOST_NOTE_CHARACTERS = 256

keys = typer.Typer(no_args_is_help=True, help="Make, list, revoke and rotate API keys.")


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Dimension(StrEnum):
    TENANT = "tenant"
    MODEL = "model"
    KEY = "key"
    DAY = "day"
    POOL = "pool"
    TARGET = "target"
    OUTCOME = "outcome"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(keys, name="keys")
    app.command()(usage)


@keys.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose the key is.")],
    note: NoteOption = "",
    config: ConfigOption = None,
    file: FileOption = False,
) -> None:
    """Make a key and show it, this once."""
    from serving.tenancy.keys import KeyTable, new_key

    settings = _settings(config)
    in_file = _is_file(settings, file)
    _check_tenant(tenant, settings)
    _check_note(note)
    record, text = new_key(tenant, _hashes(settings), note=note, now=wall_seconds())
    if in_file:
        _show_line(record, text, settings)
        return
    with _database(settings) as database:
        KeyTable(database).add(record)
    _show_key(record, text)


@keys.command("list")
def list_keys(
    config: ConfigOption = None,
    file: FileOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the keys, without what opens anything."""
    from serving.tenancy.keys import KeyTable, read_key_file

    settings = _settings(config)
    if _is_file(settings, file):
        assert settings.auth.key_file is not None
        records = read_key_file(settings.auth.key_file)
    else:
        with _database(settings) as database:
            records = KeyTable(database).all()
    hashes = _hashes(settings)
    rows = [
        {
            "id": record.id,
            "tenant": record.tenant,
            "state": _state(record, hashes, settings),
            "created": _stamp(record.created_at),
            "ends": _stamp(record.revoked_at),
            "note": record.note,
        }
        for record in records
    ]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_table(["id", "tenant", "state", "created", "ends", "note"], [[row[name] or "" for name in row] for row in rows])


@keys.command()
def revoke(key_id: KeyId, config: ConfigOption = None, file: FileOption = False) -> None:
    """Refuse a key from now on: within 5 s at every gateway of the database."""
    from serving.tenancy.keys import KeyTable

    settings = _settings(config)
    if _is_file(settings, file):
        raise ConfigurationError(_take_line_out(settings, key_id))
    with _database(settings) as database:
        if not KeyTable(database).revoke(key_id, wall_seconds()):
            raise _unknown(key_id)
    print(f"The key {key_id} is revoked. Gateways refuse it within 5 s.")


@keys.command()
def rotate(
    key_id: KeyId,
    keep_hours: Annotated[
        float, typer.Option(min=0, max=MOST_KEPT_HOURS, help="How long the old key goes on working beside the new one.")
    ] = 24.0,
    config: ConfigOption = None,
    file: FileOption = False,
) -> None:
    """Make a new key for the same tenant and show it, this once; the old one ends later."""
    from serving.tenancy.keys import KeyTable, new_key

    settings = _settings(config)
    if _is_file(settings, file):
        old = _find(_file_records(settings), key_id)
        _check_tenant(old.tenant, settings)
        record, text = new_key(old.tenant, _hashes(settings), note="", now=wall_seconds())
        _show_line(record, text, settings)
        print(f"Then: {_take_line_out(settings, key_id)}", file=sys.stderr)
        return
    hashes = _hashes(settings)
    with _database(settings) as database:
        table = KeyTable(database)
        old = _find(table.all(), key_id)
        _check_tenant(old.tenant, settings)
        now = wall_seconds()
        if old.revoked_at is not None and old.revoked_at <= now:
            raise ConfigurationError(f"KEY_ID: the key {key_id!r} is revoked; make a new one with `serving keys create`")
        record, text = new_key(old.tenant, hashes, note=old.note, now=now)
        ends = now + keep_hours * 3600
        table.replace(key_id, record, ends)
    _show_key(record, text)
    words = f"in {keep_hours:g} h" if keep_hours else "now"
    if old.revoked_at is not None and old.revoked_at < ends:
        words = f"at {_stamp(old.revoked_at)}, as was said before"
    print(f"The key {key_id} ends {words}.", file=sys.stderr)


def usage(
    by: Annotated[list[Dimension] | None, typer.Option(help="What to sum by; may be repeated.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Day or time in UTC, included; default: the first of this month.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Day or time in UTC, not included; default: now.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TABLE,
    config: ConfigOption = None,
) -> None:
    """Print what was used: requests, tokens, seconds and dollars, from the ledger."""
    from serving.tenancy.usage import read_usage

    dimensions = list(dict.fromkeys(dimension.value for dimension in by or [Dimension.TENANT]))
    now = datetime.now(UTC)
    first = _moment("--from", since) or now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    last = _moment("--to", until) or now
    if first >= last:
        raise ConfigurationError(f"--from: {first.isoformat()} is not before --to, {last.isoformat()}")
    with _database(_settings(config)) as database:
        rows = read_usage(database, by=dimensions, since=first, until=last, tenant=tenant)
    records = [row.as_dict(dimensions) for row in rows]
    if output is Format.JSON:
        print(json.dumps(records, indent=2, ensure_ascii=False))
    elif output is Format.CSV:
        print(_csv(dimensions, records), end="")
    else:
        _print_usage(dimensions, records)
        for line in _why_unknown(rows):
            print(line, file=sys.stderr)


def _settings(config: Path | None) -> Settings:
    from serving.settings import load_settings

    return load_settings(config, runs_gateway=False)


def _is_file(settings: Settings, file: bool) -> bool:
    """Whether a command is about the key file. Raises: ConfigurationError when there is no place for keys."""
    if file and settings.auth.key_file is None:
        raise ConfigurationError("auth.key_file: is missing, and --file is about the keys of that file")
    if settings.auth.key_file is None and settings.database.url is None:
        raise ConfigurationError(
            "database.url: is missing, so that keys have no place: set it to sqlite:/PATH or postgresql://…, "
            "or set auth.key_file and auth.key_secret"
        )
    return file or settings.database.url is None


def _hashes(settings: Settings) -> KeyHashes:
    from serving.tenancy.keys import KeyHashes, key_secret

    return KeyHashes(key_secret(settings))


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    from serving.tenancy.database.base import DatabaseError
    from serving.tenancy.database.open import open_database

    try:
        database = open_database(settings.database)
        try:
            yield database
        finally:
            database.close()
    except DatabaseError as error:
        raise ConfigurationError(str(error)) from None


def _check_tenant(tenant: str, settings: Settings) -> None:
    from serving.tenancy.keys import TENANT, TENANT_WORDS

    if not TENANT.fullmatch(tenant):
        raise ConfigurationError(f"TENANT: {tenant!r} {TENANT_WORDS}")
    if not _is_listed(tenant, settings):
        raise ConfigurationError(f"TENANT: {tenant!r} is not under tenants in the settings, so that its key would open nothing")


def _is_listed(tenant: str, settings: Settings) -> bool:
    """Whether gateways know the tenant."""
    from serving.tenant_settings import DEFAULT_TENANT

    return not settings.tenants or tenant in settings.tenants or tenant == DEFAULT_TENANT


def _check_note(note: str) -> None:
    if len(note) > MOST_NOTE_CHARACTERS or not note.isprintable():
        raise ConfigurationError(f"--note: must be one line of at most {MOST_NOTE_CHARACTERS} printable characters")


def _file_records(settings: Settings) -> list[KeyRecord]:
    from serving.tenancy.keys import read_key_file

    assert settings.auth.key_file is not None
    return read_key_file(settings.auth.key_file)


def _find(records: Sequence[KeyRecord], key_id: str) -> KeyRecord:
    for record in records:
        if record.id == key_id:
            return record
    raise _unknown(key_id)


def _unknown(key_id: str) -> ConfigurationError:
    return ConfigurationError(f"KEY_ID: there is no key {key_id!r}; `serving keys list` shows those that there are")


def _take_line_out(settings: Settings, key_id: str) -> str:
    return (
        f"take the line that begins with {key_id} out of the Secret behind {settings.auth.key_file}; "
        "gateways refuse the key within 2 minutes"
    )


def _show_key(record: KeyRecord, text: str) -> None:
    """The key itself is all of the standard output, so that it can be piped to where it belongs."""
    print(text)
    print(f"Key {record.id} of {record.tenant}. It is shown this once and kept as a hash only.", file=sys.stderr)


def _show_line(record: KeyRecord, text: str, settings: Settings) -> None:
    from serving.tenancy.keys import key_line

    _show_key(record, text)
    print(f"Add this line to the Secret behind {settings.auth.key_file}:\n{key_line(record)}", file=sys.stderr)


def _state(record: KeyRecord, hashes: KeyHashes, settings: Settings) -> str:
    if record.revoked_at is not None and record.revoked_at <= wall_seconds():
        return "revoked"
    if hashes.digest_of(record) is None:
        return "other secret"
    if not _is_listed(record.tenant, settings):
        return "unknown tenant"
    return "valid" if record.revoked_at is None else "ending"


def _stamp(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else None


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{option}: {text!r} must be a day as 2026-11-30, or a time as 2026-11-30T15:00") from None


def _csv(dimensions: Sequence[str], records: Sequence[dict[str, Any]]) -> str:
    """With a header, also where there are no rows; what is unknown is empty."""
    from serving.tenancy.usage import UsageRow

    names = [*dimensions, *(name for name in UsageRow.__dataclass_fields__ if name != "group"), "dollars", "machine_dollars"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


_SHOWN = {
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "of it cached",
    "output_tokens": "output tokens",
    "seconds": "seconds",
    "dollars": "dollars",
    "machine_dollars": "machine dollars",
    "estimated": "estimated",
    "tokens_unknown": "tokens unknown",
    "dollars_unknown": "dollars unknown",
}


def _print_usage(dimensions: Sequence[str], records: Sequence[dict[str, Any]]) -> None:
    rows = [
        [str(record[name]) or "(none)" for name in dimensions] + [_cell(name, record[name]) for name in _SHOWN]
        for record in records
    ]
    _print_table([*dimensions, *_SHOWN.values()], rows, numbers=len(_SHOWN))


def _why_unknown(rows: Sequence[UsageRow]) -> Iterator[str]:
    """What to set where there are no dollars; records keep the prices of their time."""
    if any(row.answered and row.dollars is None for row in rows):
        yield (
            "dollars, what tenants are charged, are unknown where no price holds: set prices.models.MODEL.prompt and .output, "
            "dollars for a million tokens (or prices.pools.POOL); it holds for requests from then on."
        )
    if any(row.answered and row.machine_dollars is None for row in rows):
        yield (
            "machine dollars are unknown where a machine has no price: set targets.TARGET.dollars_per_accelerator_hour or "
            "routing.pools.POOL.dollars_per_hour; it holds for requests from then on."
        )


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name in ("dollars", "machine_dollars"):
        return f"{value:,.6f}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place >= len(titles) - numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Never cut: names and figures are read by people and by programs.
    Console(width=max(80, sum(max(map(len, cells)) + 2 for cells in zip(titles, *rows, strict=True))), markup=False).print(table)
