"""The settings of what is kept in a database: keys, the ledger of requests, and the prices that it is reckoned with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from serving.model_settings import ModelName, ModelSettings
from serving.setting_types import Name, Section

DollarsPerMillion = Annotated[float, Field(ge=0, le=10_000)]
"""US dollars for a million tokens. 0 is a price, too; what has none is left out."""
PoolName = Name


def _database_url(secret: SecretStr) -> SecretStr:
    url = secret.get_secret_value().strip()
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        if not rest.startswith("/") or not rest.strip("/") or rest.endswith("/") or not rest.isprintable():
            raise ValueError("must be sqlite:/PATH with the whole path of a file")
    elif scheme in ("postgresql", "postgres"):
        try:
            parts = urlsplit(url)
            fits = rest.startswith("//") and parts.port != 0
        except ValueError:
            fits = False
        if not fits or not url.isprintable():
            raise ValueError("must be postgresql://USER:PASSWORD@HOST:PORT/NAME")
    else:
        raise ValueError("must be sqlite:/PATH for one gateway, or postgresql://USER:PASSWORD@HOST:PORT/NAME for several")
    return SecretStr(url)


class DatabaseSettings(Section):
    """Where keys and the ledger are kept. It is never asked while a request waits."""

    url: Annotated[SecretStr, AfterValidator(_database_url)] | None = None
    """sqlite:/PATH for one gateway, postgresql://USER:PASSWORD@HOST:PORT/NAME for several. None: there is none, and so no
    ledger. Give it by environment where it holds a password."""
    timeout_seconds: Annotated[float, Field(ge=0.1, le=2)] = 2.0
    """For connecting and for each transaction; then the connection is given up and another one is tried."""
    refresh_seconds: Annotated[float, Field(ge=0.05, le=2)] = 1.0
    """How often it is asked whether keys have changed. With `timeout_seconds`, a revoked key is refused within 5 s."""

    @property
    def kind(self) -> Literal["sqlite", "postgresql"] | None:
        if self.url is None:
            return None
        return "sqlite" if self.url.get_secret_value().startswith("sqlite:") else "postgresql"

    @property
    def path(self) -> Path:
        """Of SQLite's file."""
        assert self.url is not None and self.kind == "sqlite"
        return Path("/" + self.url.get_secret_value().partition(":")[2].lstrip("/"))


class LedgerSettings(Section):
    """One record for each request of a known tenant, where there is a database."""

    enabled: bool = True
    flush_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    """How long the record of an ended request may wait to be written. What was not is lost when the process is killed."""
    memory_records: Annotated[int, Field(ge=1000, le=10_000_000)] = 50_000
    """How many may wait in memory while the database is away, at about 1 kB each. When they are too many, new ones are dropped
    and counted; those of requests that no engine saw already when half of it is full."""
    spill_dir: Path | None = None
    """A folder for records that the database does not take: they are written there instead, and brought in when it is back, also
    by another process. None: they wait in memory, and are lost with the process."""
    spill_bytes: Annotated[int, Field(ge=1_000_000, le=2**53)] = 1 << 30
    """The most that is kept there; then they wait in memory again."""
    retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = 400
    """Older records are deleted, a few at a time. None: never."""


class TokenPrices(Section):
    """Dollars for a million tokens by kind; a kind without a price makes the dollars of that kind unknown."""

    prompt: DollarsPerMillion | None = None
    """Of the prompt tokens that were not cached, and of all of them where the engine does not tell."""
    cached: DollarsPerMillion | None = None
    """Of those that were; None: the same as `prompt`."""
    output: DollarsPerMillion | None = None


class PricesSettings(Section):
    """What tokens cost in the ledger. Where neither the pool nor the model has prices, the dollars are unknown, never 0."""

    models: dict[ModelName, TokenPrices] = Field(default_factory=dict)
    """By the name that engines serve, so that an alias costs what its model costs."""
    pools: dict[PoolName, TokenPrices] = Field(default_factory=dict)
    """These take the place of the model's, whole, for what the pool answered."""


def check_prices(
    prices: PricesSettings, models: Mapping[str, ModelSettings], served: Collection[str], pools: Collection[str]
) -> None:
    """`served` are the models of endpoints and pools, `pools` the names of all pools.

    Raises:
        ValueError: naming the path of a name that leads nowhere
    """
    for name in prices.models:
        if name in models and models[name].alias_of is not None:
            raise ValueError(f"prices.models.{name}: is an alias; give the price to the model that it stands for")
        if name not in served and name not in models:
            raise ValueError(f"prices.models.{name}: is neither under models nor served by an endpoint")
    for name in prices.pools:
        if name not in pools:
            raise ValueError(f"prices.pools.{name}: is the pool of no endpoint and none of `pools`")


class KeySourceSettings(Section):
    """Base of `auth`: keys that are not in the settings."""

    key_secret: SecretStr | None = None
    """What the keys of the database and of `key_file` are hashed with, 16 characters or more; the same for all gateways. Without
    it, a gateway with SQLite makes one, in a file beside the database's. Give it by environment, not in a file."""
    key_file: Path | None = None
    """A file with one key a line, as `serving keys create` prints it; read again when it changes, as when a Secret is updated."""
    key_file_poll_seconds: Annotated[float, Field(ge=0.05, le=30)] = 5.0
    """How often it is looked at. Kubernetes brings a changed Secret to the file within about 90 s, so that a revoked key is
    refused within 2 minutes."""
    allow_anonymous: bool = False
    """Requests without any key are served, as the tenant `default`. Without this and without any key the gateway listens on
    the loopback only, where it serves everybody."""

    @model_validator(mode="after")
    def _long_enough(self) -> KeySourceSettings:
        if self.key_secret is not None and len(self.key_secret.get_secret_value()) < LEAST_SECRET_CHARACTERS:
            raise ValueError(
                f"key_secret is shorter than {LEAST_SECRET_CHARACTERS} characters; make one with `openssl rand -hex 32`"
            )
        return self


LEAST_SECRET_CHARACTERS = 16
