"""Real certificates for tests, made by openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def write_pair(folder: Path, name: str, *, alternative: str | None = None) -> None:
    """A self-signed certificate for `name` and its key, `cert` and `key` in the folder, both put in place whole.

    `alternative` is its subjectAltName, as `IP:127.0.0.1`; without it the name is a DNS name.
    """
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative or f'DNS:{name}'}"]
    new = folder / f"{name}.new"
    new.mkdir(parents=True)
    making = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*making, *subject, "-days", "1", "-keyout", new / "key", "-out", new / "cert"], check=True, capture_output=True
    )
    for file in ("key", "cert"):
        (new / file).replace(folder / file)


def server_context(folder: Path, *, client_authority: Path | None = None) -> ssl.SSLContext:
    """A server's side of the pair in a folder; with an authority it wants a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context
