"""Keys, tenants and the ledger of one gateway, put together as the settings say."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from serving.core.clock import monotonic
from serving.observability.metrics import AccountMetrics, Metrics
from serving.settings import Settings
from serving.tenancy.bookkeeper import DATABASE, FILE, Bookkeeper
from serving.tenancy.database.base import DatabaseError
from serving.tenancy.database.open import open_database
from serving.tenancy.identities import Identities
from serving.tenancy.key_file import WatchedKeyFile
from serving.tenancy.keys import KeyHashes, key_secret
from serving.tenancy.ledger import Ledger
from serving.tenancy.prices import Prices
from serving.tenancy.spill import Spill

log = logging.getLogger("serving.accounts")

FIRST_LOOK_SECONDS = 5.0
"""How long a start waits for the first pass, so that keys are known before the first request."""


class Accounts:
    """What the gateway needs of its tenants; opened and closed with it."""

    def __init__(self, settings: Settings, gateway: Metrics) -> None:
        """Raises: ConfigurationError."""
        database, auth = settings.database, settings.auth
        sources = [DATABASE] * (database.url is not None) + [FILE] * (auth.key_file is not None)
        shared = settings.peers.signing_secret() if settings.peers.on else None
        identities = partial(Identities, auth, settings.tenants, settings.limits.parameters, shared_secret=shared)
        self.ledger: Ledger | None = None
        self._bookkeeper: Bookkeeper | None = None
        if not sources:
            self.identities = identities()
            return
        metrics = AccountMetrics(gateway.registry, has_database=database.url is not None)
        self.identities = identities(
            hashes=KeyHashes(key_secret(settings)),
            sources=sources,
            ignored=lambda reason, count: metrics.keys_ignored.labels(reason).set(count),
        )
        spill: Spill | None = None
        if database.url is not None and settings.ledger.enabled:
            self.ledger = Ledger(settings.ledger, Prices(settings.prices), dropped=lambda: metrics.records.add(("dropped",)))
            if settings.ledger.spill_dir is not None:
                spill = Spill(settings.ledger.spill_dir, most_bytes=settings.ledger.spill_bytes)
        keeper = self._bookkeeper = Bookkeeper(
            database=database,
            ledger_settings=settings.ledger,
            open_database=lambda: open_database(database),
            keys=self.identities,
            key_file=None if auth.key_file is None else WatchedKeyFile(auth.key_file, poll_seconds=auth.key_file_poll_seconds),
            ledger=self.ledger,
            spill=spill,
            metrics=metrics,
        )
        metrics.keys_age.set_function(lambda: monotonic() - keeper.keys_checked)
        metrics.records_waiting.set_function(lambda: keeper.waiting_records)

    async def start(self) -> None:
        """Begin to look after keys and ledger; come back when the keys are known, or cannot be for now."""
        if self._bookkeeper is not None:
            self._bookkeeper.start()
            if not await asyncio.to_thread(self._bookkeeper.looked.wait, FIRST_LOOK_SECONDS):
                log.warning("the database does not answer; the gateway starts without its keys")

    async def close(self) -> None:
        """Bring what waits to a safe place."""
        if self._bookkeeper is not None:
            await asyncio.to_thread(self._bookkeeper.close)


def check_accounts(settings: Settings) -> None:
    """What has to be right before a gateway starts. A database that cannot be reached is no error: it may be back later.

    Raises: ConfigurationError.
    """
    settings.check_reach(settings.server.host)
    if settings.database.url is not None:
        try:
            open_database(settings.database).close()
        except DatabaseError as error:
            log.warning("the database cannot be reached yet: %s", error)
