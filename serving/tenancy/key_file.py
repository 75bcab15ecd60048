"""A file of keys that may change while the gateway runs, as a mounted Secret does."""

from __future__ import annotations

import logging
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.tenancy.keys import KeyRecord, read_key_file

log = logging.getLogger("serving.bookkeeper")


class WatchedKeyFile:
    """Reads the file again and again; a wrong or missing one leaves the last good keys as they are."""

    def __init__(self, path: Path, *, poll_seconds: float) -> None:
        """Raises: ConfigurationError when the file cannot be read at the start."""
        self._path = path
        self._poll_seconds = poll_seconds
        self._known: list[KeyRecord] | None = None
        self._trouble = ""
        self._next_look = 0.0
        read_key_file(path)

    def changed(self, now: float) -> list[KeyRecord] | None:
        """The keys, if it is time to look (`now` in monotonic seconds) and they are others than before; else None."""
        if now < self._next_look:
            return None
        self._next_look = now + self._poll_seconds
        try:
            records = read_key_file(self._path)
        except ConfigurationError as error:
            if str(error) != self._trouble:
                log.error("the last good keys stay valid: %s", error)
            self._trouble = str(error)
            return None
        self._trouble = ""
        if records == self._known:
            return None
        self._known = records
        return records
