"""The one thread that talks to the database and reads the key file, so that no request ever waits for either.

    each pass:  key file → connection → keys → ledger → what was spilled → old records

While the database is away the last known keys stay valid for as long as the process lives, and records wait: in memory, or in the
spill folder where there is one. A pass is bounded by the database's time-out, and the next one tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import orjson

from serving.core.clock import Clock, monotonic, wall_seconds
from serving.core.errors import ConfigurationError
from serving.ledger_settings import DatabaseSettings, LedgerSettings
from serving.observability.metrics import AccountMetrics
from serving.tenancy.database.base import Database, DatabaseError, StatementRefused
from serving.tenancy.key_file import WatchedKeyFile
from serving.tenancy.keys import KeyRecord, KeyTable
from serving.tenancy.ledger import BATCH_RECORDS, Ledger, Record
from serving.tenancy.spill import Spill

log = logging.getLogger("serving.bookkeeper")

BATCHES_A_PASS = 10
"""Then keys are looked at again, however much waits to be written."""
CLOCK_SKEW_SECONDS = 60.0
"""A key is refused this long before its time: whoever revoked it may have a clock that is ahead."""
RETIRE_SECONDS = 60.0
"""Between two looks for records that are too old."""
RETIRED_AT_ONCE = 1000
LAST_TRY_SECONDS = 0.1
"""Between two tries to write what waits at the end."""
DATABASE = "database"
FILE = "file"


class KeyHolder(Protocol):
    """Who identifies requests by the keys; called from the bookkeeper's thread."""

    def take_keys(self, source: str, records: Sequence[KeyRecord]) -> None: ...


class Bookkeeper:
    """Opened and closed by the gateway; `step` is one pass, for whoever wants to know when it happens."""

    def __init__(
        self,
        *,
        database: DatabaseSettings,
        ledger_settings: LedgerSettings,
        open_database: Callable[[], Database],
        keys: KeyHolder,
        key_file: WatchedKeyFile | None,
        ledger: Ledger | None,
        spill: Spill | None,
        metrics: AccountMetrics,
        clock: Clock = monotonic,
        wall: Clock = wall_seconds,
    ) -> None:
        self._has_database = database.url is not None
        self._settings = database
        self._retention_days = ledger_settings.retention_days
        self._flush_seconds = ledger_settings.flush_seconds
        self._open_database = open_database
        self._keys = keys
        self._key_file = key_file
        self._ledger = ledger
        self._spill = spill
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._database: Database | None = None
        self._away_since: float | None = None
        self._next_try = self._next_keys = self._next_retire = 0.0
        self._known_changes: int | None = None
        self._next_end: float | None = None
        """When the next key ends, in wall seconds."""
        self.keys_checked = clock()
        """When the keys were last known to be those of the database, in monotonic seconds."""
        self._batch: list[Record] = []
        """Taken from the ledger and not yet safe."""
        self._wake = threading.Event()
        self._closing = False
        self.looked = threading.Event()
        """Set after the first pass: what could be known of keys is known."""
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)
        if ledger is not None:
            ledger.on_batch = self._wake.set

    @property
    def waiting_records(self) -> int:
        """Records that are not yet in a safe place."""
        return len(self._batch) + (0 if self._ledger is None else len(self._ledger))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Bring what waits to a safe place, within three of the database's time-outs, and end. What could not be is counted."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(3 * self._settings.timeout_seconds + 1)
        lost = self.waiting_records
        if lost:
            self._metrics.records.add(("lost_at_stop",), lost)
            log.error("%d records of the ledger could not be written before the end and are lost", lost)

    def _run(self) -> None:
        while not self._closing:
            try:
                more = self.step()
            except Exception:
                # The thread must not end by a fault, for then nothing would be written until the process does.
                log.exception("a pass failed")
                more = False
            self.looked.set()
            if not more:
                self._wake.wait(min(self._flush_seconds, self._settings.refresh_seconds))
            self._wake.clear()
        self._last_step()

    def _last_step(self) -> None:
        # A connection may be broken whose database is there again, so one failure does not end it.
        last_try = monotonic() + self._settings.timeout_seconds
        while self.waiting_records:
            self._next_try = 0.0
            if not self.step() and self.waiting_records:
                if monotonic() >= last_try:
                    break
                time.sleep(LAST_TRY_SECONDS)
        self._keep_apart()
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._spill is not None:
            self._spill.close()

    def step(self) -> bool:
        """One pass. Returns whether there is more to do at once."""
        if self._key_file is not None:
            records = self._key_file.changed(self._clock())
            if records is not None:
                self._keys.take_keys(FILE, records)
        if not self._has_database:
            return False
        if self._away_since is not None:
            self._keep_apart()
        try:
            database = self._connected()
            if database is None:
                return False
            self._refresh_keys(database)
            more = self._write(database)
            if not self._closing:
                more = self._bring_in(database) or more
                self._retire(database)
        except (DatabaseError, ConfigurationError) as error:
            self._lost(error)
            return False
        if self._away_since is not None:
            log.info("the database is back after %.1f s", self._clock() - self._away_since)
            self._away_since = None
        self._metrics.database_up.set(1)
        return more

    def _connected(self) -> Database | None:
        """The connection; None while it is not yet time to try again."""
        if self._database is None:
            now = self._clock()
            if now < self._next_try:
                return None
            self._next_try = now + self._settings.refresh_seconds
            self._database = self._open_database()
            self._next_keys, self._known_changes = 0.0, None
        return self._database

    def _lost(self, error: Exception) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._spill is not None:
            self._spill.again()
        if self._away_since is None:
            self._away_since = self._clock()
            log.warning("the database is away; the last known keys stay valid and records are kept until it is back: %s", error)
        self._metrics.database_up.set(0)
        self._keep_apart()

    def _refresh_keys(self, database: Database) -> None:
        now = self._clock()
        if now < self._next_keys:
            return
        self._next_keys = now + self._settings.refresh_seconds
        table = KeyTable(database)
        changes = table.changes()
        horizon = self._wall() + CLOCK_SKEW_SECONDS
        if changes != self._known_changes or (self._next_end is not None and horizon >= self._next_end):
            records = table.all()
            self._keys.take_keys(DATABASE, [r for r in records if r.revoked_at is None or r.revoked_at > horizon])
            ends = [record.revoked_at for record in records if record.revoked_at is not None]
            self._next_end = min((end for end in ends if end > horizon), default=None)
            self._known_changes = changes
        self.keys_checked = now

    def _write(self, database: Database) -> bool:
        """Write what waits. Returns whether some is left."""
        if self._ledger is None:
            return False
        for _ in range(BATCHES_A_PASS):
            self._batch = self._batch or self._ledger.take()
            if not self._batch:
                return False
            self._insert(database, self._batch)
            self._batch = []
        return len(self._ledger) > 0

    def _insert(self, database: Database, records: Sequence[Record]) -> None:
        try:
            database.execute(database.insert_records, (orjson.dumps(records).decode(),))
            self._metrics.records.add(("written",), len(records))
        except StatementRefused:
            if len(records) > 1:
                for record in records:
                    self._insert(database, [record])
                return
            self._metrics.records.add(("refused",))
            log.exception("the database does not take a record of the ledger, which is dropped", extra={"record": records[0][0]})

    def _keep_apart(self) -> None:
        """Move what waits to the spill folder, as far as there is one that takes it."""
        if self._spill is None or self._ledger is None:
            return
        while True:
            self._batch = self._batch or self._ledger.take()
            if not self._batch or not self._spill.write(self._batch):
                return
            self._metrics.records.add(("spilled",), len(self._batch))
            self._batch = []

    def _bring_in(self, database: Database) -> bool:
        """Write what was spilled, by this process or one before it. Returns whether some may be left."""
        if self._spill is None:
            return False
        for _ in range(BATCHES_A_PASS):
            records = self._spill.read(BATCH_RECORDS)
            if not records:
                return False
            self._insert(database, records)
            self._spill.done()
        return True

    def _retire(self, database: Database) -> None:
        """Delete records that are too old, a few in each pass until none is left."""
        now = self._clock()
        if self._retention_days is None or self._ledger is None or now < self._next_retire:
            return
        oldest = self._wall() - self._retention_days * 86_400
        rows = database.execute(
            "DELETE FROM serving_ledger WHERE id IN (SELECT id FROM serving_ledger WHERE ended_at < ? ORDER BY ended_at "
            f"LIMIT {RETIRED_AT_ONCE}{database.row_locks}) RETURNING 1",
            (oldest,),
        )
        if len(rows) < RETIRED_AT_ONCE:
            self._next_retire = now + RETIRE_SECONDS
