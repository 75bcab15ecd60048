"""Records that the database did not take, in files of a folder until it does.

One record a line, as JSON. Each process writes a file of its own and holds a lock on it, so that what another one left behind is
brought in by whoever comes next, once. Bringing a record in twice is harmless: its id is known then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable
from io import BufferedReader, BufferedWriter
from pathlib import Path

import orjson

from serving.core.errors import ConfigurationError
from serving.tenancy.ledger import Record

SUFFIX = ".ledger.jsonl"


class Spill:
    """The files of one folder, of which one is this process's own."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        """Raises: ConfigurationError."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._own: BufferedWriter | None = None
        self._reading: tuple[BufferedReader, Path] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".{secrets.token_hex(8)}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(f"ledger.spill_dir: {folder} cannot be written to: {error.strerror}") from None
        self._size_bytes = self._measured_bytes()

    def write(self, records: Iterable[Record]) -> bool:
        """Append records, on the disk when this returns. Returns False, with none written, when the folder takes no more."""
        text = b"".join(orjson.dumps(record) + b"\n" for record in records)
        if self._size_bytes + len(text) > self._most_bytes:
            self._size_bytes = self._measured_bytes()
            if self._size_bytes + len(text) > self._most_bytes:
                return False
        try:
            file = self._own = self._own or self._open()
            start = file.tell()
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(start)
                raise
        except OSError:
            return False
        self._size_bytes += len(text)
        return True

    def read(self, most: int) -> list[Record]:
        """Up to so many records of the next file that no other process holds; `done` once they are in the database."""
        while self._reading is None:
            self._let_own_go()
            if not self._next_file():
                return []
        file, _ = self._reading
        lines = [line for _, line in zip(range(most), file, strict=False)]
        if not lines:
            self._finish()
            return self.read(most)
        return [record for line in lines if (record := _parsed(line)) is not None]

    def done(self) -> None:
        """The records that were read are safe; a file that was read to its end goes."""
        if self._reading is not None and not self._reading[0].peek(1):
            self._finish()

    def again(self) -> None:
        """They are not: the same file will be read again from its start."""
        if self._reading is not None:
            self._reading[0].close()
            self._reading = None

    def close(self) -> None:
        self.again()
        self._let_own_go()

    def _measured_bytes(self) -> int:
        """Of all files, those of other processes included."""
        total = 0
        for path in self._folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _open(self) -> BufferedWriter:
        path = self._folder / f"{secrets.token_hex(8)}{SUFFIX}"
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def _let_own_go(self) -> None:
        """What this process wrote is read like any other file; what it writes next goes into a new one."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _next_file(self) -> bool:
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.ExitStack() as opened:
                try:
                    file = opened.enter_context(path.open("rb"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # another process's, or just gone
                if not path.exists():
                    continue
                opened.pop_all()
                self._reading = (file, path)
                return True
        return False

    def _finish(self) -> None:
        assert self._reading is not None
        file, path = self._reading
        path.unlink(missing_ok=True)
        self._size_bytes = max(0, self._size_bytes - file.tell())
        file.close()
        self._reading = None


def _parsed(line: bytes) -> Record | None:
    """None for a line that a killed process did not finish."""
    try:
        return tuple(orjson.loads(line))
    except orjson.JSONDecodeError:
        return None
