"""TLS to engines: always verified, by the machine's authorities or those in a file that may be renewed at any time."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.settings import RelaySettings

log = logging.getLogger("serving.engines")

_Signature = tuple[tuple[int, int, int], ...]


class ReloadedTls:
    """Makes the context of new connections; open ones keep theirs.

    The files are looked at whenever a connection is made. Files that cannot be used change nothing and are one error in the log,
    which calls the other side `peer`. Raises: ConfigurationError where they cannot be used at the start, naming the `fields`.
    """

    def __init__(
        self, authorities: Path | None, certificate: Path | None = None, key: Path | None = None, *, peer: str, fields: str
    ) -> None:
        self._authorities = authorities
        self._certificate = certificate
        self._key = key
        self._peer = peer
        self._files = [path for path in (self._authorities, self._certificate, self._key) if path is not None]
        self._seen = self._signature()
        self._current: ssl.SSLContext | None = None
        if self._files:
            try:
                self._current = self._load()
            except (OSError, ValueError) as error:
                files = ", ".join(map(str, self._files))
                raise ConfigurationError(f"{fields}: {files}: {why(error)}") from None

    def context(self) -> ssl.SSLContext:
        """The context of a connection that is made now."""
        if self._current is None:
            # Reading the machine's authorities takes a while, so only a gateway that has an engine behind TLS does it.
            self._current = self._load()
        elif self._files and (signature := self._signature()) != self._seen:
            self._seen = signature
            try:
                self._current = self._load()
            except (OSError, ValueError) as error:
                log.error("the new files of TLS to %s cannot be used; the old ones stay: %s", self._peer, why(error))
            else:
                log.info("new files of TLS to %s are in use", self._peer)
        return self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=None if self._authorities is None else str(self._authorities))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._certificate is not None:
            # A key that wants a password must fail, not ask the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        return context

    def _signature(self) -> _Signature:
        """What tells one version of the files from another; secrets of Kubernetes change by a link, hence the inode."""
        return tuple(map(_version, self._files))


class EngineTls(ReloadedTls):
    """For engines, from the relay's settings."""

    def __init__(self, settings: RelaySettings) -> None:
        super().__init__(
            settings.engine_ca,
            settings.engine_client_certificate,
            settings.engine_client_key,
            peer="engines",
            fields="relay.engine_ca, engine_client_certificate, engine_client_key",
        )


def _version(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


def why(error: OSError | ValueError) -> str:
    """What is wrong with a certificate or a handshake, in OpenSSL's words without its codes and source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
