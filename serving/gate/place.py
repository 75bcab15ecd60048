"""Takes an engine's address apart, and refuses what cannot be asked."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from serving.core.errors import ConfigurationError


def split_address(url: str) -> SplitResult:
    """Raises: ConfigurationError, which repeats no user and no password."""
    if "@" in url:
        raise ConfigurationError("address: must have no user and no password; an engine's secret goes into SERVING_ENGINE_SECRET")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(f"address: must be of printable ASCII characters without spaces, not {url!r}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"address: {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"address: must be like http://127.0.0.1:8001, not {url!r}")
    if port == 0:
        raise ConfigurationError(f"address: {url!r}: Port out of range 1-65535")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"address: must end with its path, not {url!r}")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ConfigurationError(f"address: {parts.hostname!r} is no name of a machine") from None
    return parts
