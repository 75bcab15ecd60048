"""API keys: how they look, how they are kept, and where.

A key is shown once, when it is made. What is kept is a keyed hash of it, so that neither a copy of the database nor a file of
keys lets anybody in, nor can guesses be tried on it without the secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from serving.core.errors import ConfigurationError
from serving.settings import Settings
from serving.tenancy.database.base import Database

_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_SECRET_BYTES = 32
TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
TENANT_WORDS = "must be 1 to 63 of a-z, 0-9, dot, hyphen and underscore, beginning with a letter or digit"
_HASH = re.compile(r"[0-9a-f]{8}:[0-9a-f]{64}")


class KeyRecord(NamedTuple):
    """One key as it is kept. Times are seconds since the epoch."""

    id: str
    tenant: str
    hash: str
    note: str = ""
    created_at: float = 0.0
    revoked_at: float | None = None
    """It is refused from then on, which may lie ahead."""


class KeyHashes:
    """Makes and reads the hashes of keys, with one secret."""

    def __init__(self, secret: str) -> None:
        self._secret = hashlib.sha512(secret.encode()).digest()
        self.fingerprint = self.digest("which secret is this?")[:4].hex()
        """Tells one secret from another and nothing about it; each hash begins with it."""

    def digest(self, key: str) -> bytes:
        """BLAKE2b with a key: a keyed hash as HMAC is one, at a third of its time."""
        return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=32).digest()

    def kept(self, key: str) -> str:
        """What is kept of a key."""
        return f"{self.fingerprint}:{self.digest(key).hex()}"

    def digest_of(self, record: KeyRecord) -> bytes | None:
        """The digest that a record holds; None where it was made with another secret."""
        fingerprint, _, digest = record.hash.partition(":")
        return bytes.fromhex(digest) if fingerprint == self.fingerprint else None


def key_secret(settings: Settings) -> str:
    """The secret of the settings; for SQLite otherwise the one in a file beside the database, which is made if need be.

    Raises: ConfigurationError.
    """
    given = settings.auth.key_secret
    if given is not None:
        return given.get_secret_value()
    path = settings.database.path.with_name(settings.database.path.name + ".secret")
    try:
        if not path.exists():
            _make_secret(path)
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"auth.key_secret: is missing, and {path} cannot be used instead: {error.strerror}") from None
    if not secret:
        raise ConfigurationError(f"auth.key_secret: {path} is empty; restore it, or delete it and make new keys")
    return secret


def _make_secret(path: Path) -> None:
    """Whole at once, and only if no other process was faster."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(_SECRET_BYTES))
    with contextlib.suppress(FileExistsError):
        os.link(made, path)
    made.unlink()


def new_key(tenant: str, hashes: KeyHashes, *, note: str, now: float) -> tuple[KeyRecord, str]:
    """A new key and its text, which is nowhere else."""
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(10))
    text = f"sk-{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    return KeyRecord(key_id, tenant, hashes.kept(text), note, now), text


class KeyTable:
    """The keys of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def changes(self) -> int:
        """A number that is another one after every change. Raises: DatabaseError."""
        return int(self._database.execute("SELECT number FROM serving_changes WHERE name = 'keys'")[0][0])

    def all(self) -> list[KeyRecord]:
        """Raises: DatabaseError."""
        rows = self._database.execute(
            "SELECT id, tenant, hash, note, created_at, revoked_at FROM serving_keys ORDER BY created_at"
        )
        return [KeyRecord(*row) for row in rows]

    def add(self, record: KeyRecord) -> None:
        """Raises: DatabaseError."""
        with self._database.transaction():
            self._insert(record)
            self._changed()

    def revoke(self, key_id: str, at: float) -> bool:
        """Refuse a key from `at` on, unless it is refused earlier already. Returns whether there is such a key."""
        with self._database.transaction():
            return self._revoke(key_id, at)

    def replace(self, key_id: str, successor: KeyRecord, at: float) -> bool:
        """Add a successor and refuse the key from `at` on: both or none. Returns whether there is such a key."""
        with self._database.transaction():
            found = self._revoke(key_id, at)
            if found:
                self._insert(successor)
            return found

    def _insert(self, record: KeyRecord) -> None:
        self._database.execute(
            "INSERT INTO serving_keys (id, tenant, hash, note, created_at, revoked_at) VALUES (?, ?, ?, ?, ?, ?)", record
        )

    def _revoke(self, key_id: str, at: float) -> bool:
        rows = self._database.execute("SELECT revoked_at FROM serving_keys WHERE id = ?", (key_id,))
        if not rows:
            return False
        if rows[0][0] is None or rows[0][0] > at:
            self._database.execute("UPDATE serving_keys SET revoked_at = ? WHERE id = ?", (at, key_id))
            self._changed()
        return True

    def _changed(self) -> None:
        self._database.execute("UPDATE serving_changes SET number = number + 1 WHERE name = 'keys'")


def key_line(record: KeyRecord) -> str:
    """A key as a line of a key file."""
    return f"{record.id} {record.tenant} {record.hash}"


def read_key_file(path: Path) -> list[KeyRecord]:
    """The keys of a file: `ID TENANT HASH` in each line; empty lines and those that begin with # are passed over.

    Raises: ConfigurationError, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"auth.key_file: {path} cannot be read: {error}") from None
    return list(_records(path, enumerate(lines, 1)))


def _records(path: Path, lines: Iterable[tuple[int, str]]) -> Iterable[KeyRecord]:
    seen: set[str] = set()
    for number, line in lines:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or not _HASH.fullmatch(words[2]):
            raise ConfigurationError(
                f"auth.key_file: {path}, line {number}: must be ID TENANT HASH, as `serving keys create` prints it"
            )
        if not TENANT.fullmatch(words[1]):
            raise ConfigurationError(f"auth.key_file: {path}, line {number}: the tenant {words[1]!r} {TENANT_WORDS}")
        if words[0] in seen:
            raise ConfigurationError(f"auth.key_file: {path}, line {number}: the id {words[0]} stands there twice")
        seen.add(words[0])
        yield KeyRecord(id=words[0], tenant=words[1], hash=words[2])
