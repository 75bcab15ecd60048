"""The settings of what waits and of where several gateways count together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from serving.setting_types import Section

_SCHEMES = ("redis://", "rediss://", "unix://")


def _store_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value().strip()
    if not text.startswith(_SCHEMES):
        raise ValueError("must be redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH, with the password in it if there is one")
    return SecretStr(text)


class LimitStoreSettings(Section):
    """A Redis in which several gateways count the limits of tenants together. Without it each gateway counts for itself."""

    url: Annotated[SecretStr, AfterValidator(_store_url)] | None = None
    """As redis://:PASSWORD@HOST:6379/0; rediss:// is TLS. Give it by environment, not in a file."""
    key_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")] = "serving"
    """Before all keys, so that several releases can use one Redis."""
    when_down: Literal["local_share", "closed"] = "local_share"
    """While the store cannot be asked: `local_share` lets each gateway allow its part of what is left of every limit (divided by
    `replicas`; a minute later at least one), `closed` answers requests of limited tenants 503."""
    replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many gateways use the store; what `local_share` divides by."""
    timeout_seconds: Annotated[float, Field(gt=0, le=0.1)] = 0.1
    """The most that a request waits for the store. Then it is taken for down, and nobody waits until it answers again."""
    retry_seconds: Annotated[float, Field(gt=0, le=4)] = 1.0
    """How often a store that is down is asked whether it is back."""
    lease_seconds: Annotated[float, Field(ge=3, le=3600)] = 15.0
    """How long the running requests of a gateway that was killed still count for their tenants' concurrency."""

    @model_validator(mode="after")
    def _known_share(self) -> LimitStoreSettings:
        if self.url is not None and self.when_down == "local_share" and self.replicas is None:
            raise ValueError("replicas is missing: say how many gateways use the store, or make when_down closed")
        return self


class QueueSettings(Section):
    """Where requests wait for a slot; only for models whose endpoints all have `slots`. One for each model."""

    requests: Annotated[int, Field(ge=0, le=2**20)] = 512
    """That wait at most. When it is full, the tenant that has the most waiting gives way to those that have less."""
    body_bytes: Annotated[int, Field(ge=1, le=2**53)] = 256 * 1024 * 1024
    """Of all the bodies that wait. When there is no room for one more, it goes by these bytes in the same way."""
    wait_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """That one waits at most. A request that is not expected to get a slot within this, or within its own `x-request-timeout`,
    is refused at once."""
    turn: Annotated[int, Field(ge=1, le=2**20)] = 20
    """After so many slots that went to more urgent classes a class in which requests wait has one, so that none starves."""
