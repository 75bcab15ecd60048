"""TLS whose certificate can change while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from serving.core.errors import ConfigurationError

log = logging.getLogger("serving.api")

_Signature = tuple[tuple[int, int, int], ...]


class ReloadedCertificate:
    """A context that takes up the certificate in its files whenever they change.

    Handshakes that begin afterwards use the new one, open connections keep theirs. Files that do not fit together change
    nothing, so that a half-written pair is only an error in the log until its second half is there.
    """

    def __init__(self, certificate: Path, key: Path, poll_seconds: float) -> None:
        self._certificate = certificate
        self._key = key
        self._poll_seconds = poll_seconds
        self._seen = self._signature()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"server.tls_certificate, server.tls_key: {certificate}, {key}: {_reason(error)}") from None
        self.context = self._load()
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Called in every handshake, also without a server name."""
        connection.context = self._current

    async def watch(self) -> None:
        """Look at the files every few seconds, for as long as the application runs."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            await asyncio.to_thread(self._refresh)

    def _refresh(self) -> None:
        try:
            signature = self._signature()
            if signature == self._seen:
                return
            self._seen = signature
            self._current = self._load()
        except (OSError, ValueError) as error:
            log.error("the new TLS certificate cannot be used; the old one stays: %s", _reason(error))
        else:
            log.info("a new TLS certificate is in use")

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # A key that wants a password must fail, not ask the terminal.
        context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        return context

    def _signature(self) -> _Signature:
        """What tells one version of the files from another; secrets of Kubernetes change by a link, hence the inode."""
        found = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


def _reason(error: OSError | ValueError) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error)
