"""The settings of gateways that tell each other what they have under way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

SECRET_BYTES = 16
"""The least length of what messages are signed with."""


def _address(address: str) -> str:
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536 or not address.isprintable():
        raise ValueError("must be HOST:PORT, an IPv6 address in brackets")
    return address


class PeerSettings(BaseModel):
    """Other gateways of the same release. Without `host` and `addresses` a gateway is alone and listens to nobody."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """A DNS name with the addresses of all gateways, this one among them: a headless Service of Kubernetes."""
    addresses: tuple[Annotated[str, AfterValidator(_address)], ...] = ()
    """The other gateways as HOST:PORT, in place of `host`."""
    bind_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8002
    """Of the datagrams (UDP), for listening and, with `host`, that of the others."""
    period_seconds: Annotated[float, Field(ge=0.1, le=60)] = 0.1
    """How often news are sent, where there are any."""
    silence_seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """A gateway that was not heard for this long is unknown: nothing that it said counts any more."""
    lookup_seconds: Annotated[float, Field(gt=0, le=3600)] = 2.0
    datagrams_per_period: Annotated[int, Field(ge=1, le=10_000)] = 64
    """The most that is sent to each gateway in one period; what does not fit is dropped and counted."""
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
