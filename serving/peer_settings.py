"""The settings of gateways that tell each other what they have under way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, model_validator

from serving.setting_types import DnsName, Seconds, Section

SECRET_BYTES = 16
"""The least length of what messages are signed with."""
LEAST_PERIODS = 5
"""Of silence, before a gateway counts as gone: some of its datagrams may be lost."""


def _address(address: str) -> str:
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT, an IPv6 address in brackets")
    if not host.isprintable() or any(map(str.isspace, host)):
        raise ValueError("must be HOST:PORT with a valid host name")
    return address


class PeerSettings(Section):
    """Other gateways of the same release. Without `host` and `addresses` a gateway is alone and listens to nobody."""

    host: DnsName | None = None
    """A DNS name with the addresses of all gateways, this one among them: a headless Service of Kubernetes."""
    addresses: tuple[Annotated[str, AfterValidator(_address)], ...] = ()
    """The other gateways as HOST:PORT, in place of `host`."""
    bind_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Where datagrams are listened for; an IPv6 address speaks with the IPv6 addresses of the others only, and IPv4 likewise."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8002
    """Of the datagrams (UDP), for listening and, with `host`, that of the others."""
    period_seconds: Annotated[float, Field(ge=0.1, le=60)] = 0.1
    """How often news are sent."""
    silence_seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """A gateway that was not heard for this long is unknown. What it has under way counts less and less from a third of it on."""
    lookup_seconds: Seconds = 2.0
    """How often the others are looked up."""
    datagrams_per_period: Annotated[int, Field(ge=1, le=10_000)] = 64
    """The most that is sent to each gateway in one period, of 1,200 bytes each; what does not fit is dropped and counted."""
    secret: SecretStr | None = None
    """What messages are signed with, the same for all gateways; give it by environment, not in a file."""
    secret_file: Path | None = None
    """A file with the secret, in place of `secret`; read at the start."""

    @property
    def on(self) -> bool:
        return self.host is not None or bool(self.addresses)

    @model_validator(mode="after")
    def _whole(self) -> PeerSettings:
        if self.host is not None and self.addresses:
            raise ValueError("host and addresses are both given; give one of them")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("secret and secret_file are both given; give one of them")
        if self.host is not None and not self.port:
            raise ValueError("port: is 0, but with host the other gateways listen on the same; give a number")
        if self.silence_seconds < LEAST_PERIODS * self.period_seconds:
            raise ValueError(f"silence_seconds: must be at least {LEAST_PERIODS} times period_seconds, since datagrams get lost")
        if self.on:
            self.signing_secret()
        return self

    def signing_secret(self) -> bytes:
        """Raises: ValueError, without the secret in its words."""
        if self.secret_file is not None:
            try:
                secret = self.secret_file.read_bytes()
            except OSError as error:
                raise ValueError(f"secret_file: {self.secret_file} cannot be read: {error.strerror}") from None
        elif self.secret is not None:
            secret = self.secret.get_secret_value().encode("utf-8", "surrogatepass")
        else:
            raise ValueError("secret: is missing; gateways believe only what is signed, so give all of them the same")
        secret = secret.strip()
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"secret: must have at least {SECRET_BYTES} bytes")
        return secret
