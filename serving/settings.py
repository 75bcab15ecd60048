"""The process's settings: environment variables `SERVING_…` over one YAML file, frozen, unknown keys refused.

A nested field is spelt with two underscores: `SERVING_SERVER__PORT=8080`. This module is the only reader of `os.environ`.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from serving.core.errors import ConfigurationError
from serving.core.routes import Task
from serving.fleet_settings import SERVICE_ACCOUNT, KubernetesPoolSettings, KubernetesSettings, LoadSettings
from serving.health_settings import HealthSettings
from serving.ledger_settings import DatabaseSettings, KeySourceSettings, LedgerSettings, PricesSettings, check_prices
from serving.limit_settings import LimitStoreSettings, QueueSettings
from serving.machine_settings import TargetSettings
from serving.model_settings import ModelName, ModelSettings, ProviderListingSettings, adapters_of, check_models, served_name
from serving.peer_settings import PeerSettings
from serving.quality_settings import QualitySettings
from serving.routing_settings import PoolRoutingSettings, RoutingSettings
from serving.setting_types import Count, DnsName, Name, Seconds, Section
from serving.strict_yaml import read_yaml
from serving.tenant_settings import ParameterLimits as ParameterLimits
from serving.tenant_settings import TenantName, TenantSettings, check_tenants

PREFIX = "SERVING_"

Port = Annotated[int, Field(ge=0, le=65535)]
UNIX_PATH_BYTES = 107
"""The kernel's limit on a socket's path."""


def _host(host: str) -> str:
    """An address or a name to listen on; empty: all addresses."""
    if not _is_host(host):
        raise ValueError("must be an IP address or a valid host name")
    return host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable() and not any(map(str.isspace, host))


Host = Annotated[str, AfterValidator(_host)]


def _engine_url(url: str) -> str:
    from urllib.parse import urlsplit

    if not url.isprintable():  # urlsplit passes over some, and a request's head cannot hold them
        raise ValueError("must not hold control characters")
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        if len(parts.path.encode()) > UNIX_PATH_BYTES:
            raise ValueError(f"must have a path of at most {UNIX_PATH_BYTES} bytes")
        return url
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must be http://HOST:PORT, https://HOST:PORT or unix:/PATH")
    if not _is_host(parts.hostname):
        raise ValueError(f"must be {parts.scheme}://HOST:PORT with a valid host name")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"must be {parts.scheme}://HOST:PORT without a path, query or user")
    return url.rstrip("/")


def _traces_url(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not _is_host(parts.hostname):
        raise ValueError("must be http://HOST:PORT/v1/traces or https://HOST:PORT/v1/traces")
    if not url.isprintable() or " " in url or not url.isascii() or parts.query or parts.fragment or parts.username:
        raise ValueError("must be a plain URL without a query or user; give credentials as tracing.headers")
    return url if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/v1/traces"


def _header_fields(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError("holds a name that no HTTP header can have")
        text = value.get_secret_value()
        if not text.isascii() or not text.isprintable():
            raise ValueError(f"{name}: must be printable ASCII")
    return headers


def _secret_lines(text: bytes) -> list[str]:
    """One secret a line, as the engine's guard reads them. Raises: ValueError, without the secret in its words."""
    lines = [line for line in map(bytes.strip, text.splitlines()) if line]
    if not lines:
        raise ValueError("holds no secret; leave it out to send none")
    if not all(0x21 <= byte <= 0x7E for line in lines for byte in line):
        raise ValueError("a secret must be printable ASCII without spaces, since it travels in a header")
    return [line.decode("ascii") for line in lines]


def _one_secret(secret: SecretStr) -> SecretStr:
    lines = _secret_lines(secret.get_secret_value().encode(errors="surrogatepass"))
    if len(lines) > 1:
        raise ValueError("holds more than one secret; a gateway sends one")
    return SecretStr(lines[0])


def _secret_file(path: Path) -> Path:
    try:
        _secret_lines(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return path


def _origin(origin: str) -> str:
    from urllib.parse import urlsplit

    if origin == "*":
        return origin
    parts = urlsplit(origin)
    if not parts.scheme or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}" or parts.username:
        raise ValueError('must be an origin as browsers write it, SCHEME://HOST[:PORT] without a path, or "*"')
    return origin.lower()


class ServerSettings(Section):
    """Where the gateway listens and how it stops."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    keep_alive_seconds: Annotated[int, Field(ge=1, le=86_400)] = 75
    drain_delay_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    """After SIGTERM `/readyz` says 503 at once; new requests are served for this long while load balancers notice."""
    shutdown_grace_seconds: Seconds = 30.0
    """How long running requests may finish after the drain delay; then streams end with an error event."""
    backlog: Annotated[int, Field(ge=1, lt=2**31)] = 2048
    operator_host: Host = "127.0.0.1"
    operator_port: Port | None = None
    """A second address, always plain HTTP and never for tenants: `/metrics` is served there only, probes on both."""
    cors_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()
    """Origins whose pages may call the gateway from a browser, as https://HOST, or "*" for all; none: CORS is off."""
    openapi: bool = True
    """Whether `GET /openapi.json` answers with the document of the published routes, to everybody."""
    tls_certificate: Path | None = None
    """Certificate chain and key as PEM files. New files are taken up while the gateway runs; wrong ones are not."""
    tls_key: Path | None = None
    tls_poll_seconds: Seconds = 5.0

    @model_validator(mode="after")
    def _whole_pair(self) -> ServerSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together; give both or none")
        if self.operator_port and (self.operator_host, self.operator_port) == (self.host, self.port):
            raise ValueError("operator_port and port are the same; operators need an address of their own")
        return self


class LimitSettings(Section):
    """What one gateway takes on. Every ceiling has a name here."""

    body_bytes: Count = 32 * 1024 * 1024
    """Of a request's body, as it comes and decompressed."""
    body_timeout_seconds: Seconds = 60.0
    connections: Count = 8192
    """Open client connections; one more gets 503 and is closed."""
    header_bytes: Count = 64 * 1024
    """Names and values of a request's header fields, trailers included; more is answered 431."""
    header_count: Count = 128
    url_bytes: Count = 8 * 1024
    header_timeout_seconds: Seconds = 10.0
    """From a connection's or request's first byte to the end of its header fields; a slower connection is closed."""
    in_flight: Count = 4096
    """Requests between admission and their last byte; one more is answered 429."""
    parameters: ParameterLimits = ParameterLimits()
    queue: QueueSettings = QueueSettings()
    store: LimitStoreSettings = LimitStoreSettings()


class RetryBudgetSettings(Section):
    """How many requests may be tried at another engine, all in all."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Retries within the window as a share of the requests within it."""
    least_per_second: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """As many are allowed in any case, averaged over the window: the share of little traffic is less than one retry."""
    window_seconds: Annotated[int, Field(ge=1, le=3600)] = 10


class RelaySettings(Section):
    """The way to the engines."""

    connect_timeout_seconds: Seconds = 2.0
    first_byte_timeout_seconds: Seconds = 600.0
    """From the request's last byte to the first byte of an answer; covers queueing and prefill in the engine. After it another
    engine is asked, and three in a row put the engine out (`health`)."""
    idle_timeout_seconds: Seconds = 300.0
    """The longest gap between two pieces of one answer, as between two chunks of a stream."""
    request_timeout_seconds: Seconds = 3600.0
    """From a request's arrival to the last byte of its answer, retries included; then the engine's connection is closed and the
    client gets 504, or an error in its stream. A request may give itself less by the header `x-request-timeout`, in seconds."""
    keep_alive_comment_seconds: Seconds | None = None
    """Send a comment into a stream that was silent for this long, also before its first event, so that idle timers on the way
    do not cut it. Once the first has gone out the status is 200 for good and a later failure is said in the stream, so this
    should be 10 s or more. None: never."""
    client_write_timeout_seconds: Seconds = 120.0
    """A client that takes no byte for this long is dropped."""
    max_attempts: Annotated[int, Field(ge=1, le=3)] = 2
    """Engines that one request may be sent to, one after another, before the first byte of an answer."""
    retry_budget: RetryBudgetSettings = RetryBudgetSettings()
    idle_connection_seconds: Seconds = 3.0
    """Kept connections are dropped after this; below the 5 s after which vLLM closes them itself."""
    buffer_bytes: Count = 256 * 1024
    """Reading from an engine pauses while a client has this much outstanding."""
    form_buffer_bytes: Count = 1024 * 1024
    """How much of an uploaded form is kept in memory. A larger one goes to its engine as it comes, once its `model` is known,
    and cannot be tried again at another; a `model` behind the file makes that up to `limits.body_bytes`."""
    error_body_bytes: Count = 64 * 1024
    """How much of an engine's error answer is read to translate it."""
    engine_secret: Annotated[SecretStr, AfterValidator(_one_secret)] | None = None
    """What engines with our guard want to see; sent to every engine. Give it by environment, not in a file."""
    engine_secret_file: Annotated[Path, AfterValidator(_secret_file)] | None = None
    """A file with the secret in its first line, in place of `engine_secret`; read at the start."""

    engine_ca: Path | None = None
    """PEM file of the authorities that engines behind https:// are verified with; None: those of the machine. There is no way to
    do without: an engine's self-signed certificate can stand in this file itself. New files are taken up by new connections."""
    engine_client_certificate: Path | None = None
    """Certificate chain and key as PEM files, shown to engines that ask for a client's certificate."""
    engine_client_key: Path | None = None

    @model_validator(mode="after")
    def _whole_client_pair(self) -> RelaySettings:
        if (self.engine_client_certificate is None) != (self.engine_client_key is None):
            raise ValueError("engine_client_certificate and engine_client_key belong together; give both or none")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> RelaySettings:
        if self.engine_secret is not None and self.engine_secret_file is not None:
            raise ValueError("engine_secret and engine_secret_file are both given; give one of them")
        return self

    def sent_secret(self) -> str | None:
        """The secret that goes to the engines, from wherever it comes. Raises: ConfigurationError."""
        if self.engine_secret_file is None:
            return None if self.engine_secret is None else self.engine_secret.get_secret_value()
        try:
            return _secret_lines(self.engine_secret_file.read_bytes())[0]
        except (OSError, ValueError) as error:  # it was right when the settings were read
            raise ConfigurationError(f"relay.engine_secret_file: {self.engine_secret_file} is gone: {error}") from None


class ProbeSettings(Section):
    """How endpoints are watched."""

    period_seconds: Seconds = 1.0
    timeout_seconds: Seconds = 2.0


class KeySettings(Section):
    """One API key, by the hex SHA-256 of its text."""

    tenant: TenantName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class AuthSettings(KeySourceSettings):
    """Who may ask. Without keys everybody may, as the tenant `default`."""

    api_key: SecretStr | None = None
    """One key in plain text, for the tenant `default`; give it by environment, not in a file."""
    keys: tuple[KeySettings, ...] = ()
    isolate_caches: bool = True
    """Several tenants do not share an engine's prefix cache: whether a prompt is cached would tell what others asked."""
    cache_secret: SecretStr | None = None
    """What the tenants' cache salts are made with; give all replicas the same. None: made from `key_secret` where there is
    one, else from `peers.secret`, else each process makes its own."""

    @model_validator(mode="after")
    def _distinct(self) -> AuthSettings:
        seen = [key.sha256 for key in self.keys]
        for sha256 in seen:
            if seen.count(sha256) > 1:
                raise ValueError(f"keys: the key {sha256[:8]}… is listed twice")
        return self

    @field_validator("api_key", "cache_secret", "key_secret", mode="after")
    @classmethod
    def _filled(cls, secret: SecretStr | None) -> SecretStr | None:
        """Secrets that come from files end in a newline that nobody means."""
        if secret is None:
            return None
        text = secret.get_secret_value().strip()
        if not text:
            raise ValueError("is empty; leave it out to do without")
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes of the environment that are no text; its own words would show some
            raise ValueError("is not UTF-8 text") from None
        return SecretStr(text)


class EndpointSettings(Section):
    """One engine address. `model` is the name clients use; the engine must serve that name."""

    name: Name
    url: Annotated[str, AfterValidator(_engine_url)]
    model: Annotated[str, Field(min_length=1, max_length=256)]
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)] = ("generate",)
    """What the engine does with the model, any of generate, embed, score and transcription. Routes of other tasks answer 404
    for it. The same for all endpoints of a model."""
    pool: Name = "default"
    slots: Count | None = None
    """Requests that the engine gets at a time; more wait in the model's queue (`limits.queue`), which there is when all endpoints
    of the model have slots. What the engine says to have for other gateways is left to these. None: no queue."""
    target: Name = "unknown"


class PoolSettings(Section):
    """A pool whose engines come and go: the addresses of a DNS name, or what Kubernetes says. One of the two."""

    name: Name
    model: Annotated[str, Field(min_length=1, max_length=256)]
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)] = ("generate",)
    target: Name = "unknown"
    host: DnsName | None = None
    """A DNS name; each of its addresses is an engine, at `port`."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    kubernetes: KubernetesPoolSettings | None = None
    may_be_empty: bool = False
    """Something scales it to nothing and back. While it is known to be empty the gateway is ready, since the requests that it
    refuses are what wakes an engine."""

    slots: Count | None = None
    """Requests that each of its engines gets at a time; more wait in the model's queue (`limits.queue`) as with `endpoints`.
    None: no queue."""

    @model_validator(mode="after")
    def _one_source(self) -> PoolSettings:
        if (self.host is None) == (self.kubernetes is None):
            raise ValueError("give exactly one source of engines: host with port, or kubernetes")
        if self.host is not None and self.port is None:
            raise ValueError("port: is missing; it is where the engines behind the host listen")
        if self.kubernetes is not None and self.port is not None:
            raise ValueError("port: belongs to host; with kubernetes it is kubernetes.port")
        return self


class DiscoverySettings(Section):
    """How the addresses of `pools` with a host are looked up."""

    period_seconds: Seconds = 2.0
    timeout_seconds: Seconds = 5.0


class TracingSettings(Section):
    """Spans for requests and their attempts, over OTLP. The variables of OpenTelemetry (`OTEL_…`) are not read."""

    endpoint: Annotated[str, AfterValidator(_traces_url)] | None = None
    """A receiver of traces over HTTP, as http://collector:4318/v1/traces. None: no spans are made, and a client's `traceparent`
    goes to the engine as it is."""
    headers: Annotated[dict[str, SecretStr], AfterValidator(_header_fields)] = Field(default_factory=dict)
    """Sent to the receiver, as its key; give them by environment, not in a file."""
    ca: Path | None = None
    """PEM file of the authorities that a receiver behind https:// is verified with; None: those of the machine."""
    service_name: Annotated[str, Field(min_length=1, max_length=128)] = "serving-gateway"
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the requests without a valid `traceparent`; where there is one, its caller has decided."""
    queue_requests: Count = 4096
    """Ended requests that wait to be sent; more are dropped and counted."""
    interval_seconds: Seconds = 1.0
    """How long an ended request may wait for others to be sent with it; also the pause before a failed send is tried again."""
    timeout_seconds: Seconds = 10.0
    """For connecting to the receiver and for each of its answers."""


class LoggingSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: bool = True
    """One line for each request when it has ended."""


class Settings(BaseSettings):
    """All settings of a gateway process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    relay: RelaySettings = RelaySettings()
    probe: ProbeSettings = ProbeSettings()
    health: HealthSettings = HealthSettings()
    auth: AuthSettings = AuthSettings()
    tenants: dict[TenantName, TenantSettings] = Field(default_factory=dict)
    """By the name that keys carry. Without any, every tenant that has a key may do what the gateway's own limits allow."""
    database: DatabaseSettings = DatabaseSettings()
    ledger: LedgerSettings = LedgerSettings()
    prices: PricesSettings = PricesSettings()
    logging: LoggingSettings = LoggingSettings()
    tracing: TracingSettings = TracingSettings()
    endpoints: tuple[EndpointSettings, ...] = ()
    models: dict[ModelName, ModelSettings] = Field(default_factory=dict)
    """By the name that clients use. What an endpoint serves needs no entry."""
    provider_listing: ProviderListingSettings = ProviderListingSettings()
    pools: tuple[PoolSettings, ...] = ()
    discovery: DiscoverySettings = DiscoverySettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    engine_load: LoadSettings = LoadSettings()
    quality: QualitySettings = QualitySettings()
    routing: RoutingSettings = RoutingSettings()
    peers: PeerSettings = PeerSettings()
    targets: dict[Name, TargetSettings] = Field(default_factory=dict)
    """What accelerators cost and draw, by the target that endpoints and pools name, where that is not as in the catalog.
    It may hold more than are in use."""

    _has_all_endpoints: ClassVar[bool] = True
    """What speaks of models and pools can be checked against them."""

    @model_validator(mode="after")
    def _distinct_endpoints(self) -> Settings:
        names = [endpoint.name for endpoint in self.endpoints]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"endpoints: the name {name!r} is given twice")
        sources: tuple[EndpointSettings | PoolSettings, ...] = (*self.endpoints, *self.pools)
        first_of = {source.model: source for source in reversed(sources)}
        for source in sources:
            first = first_of[source.model]
            if set(source.tasks) != set(first.tasks):
                place = "endpoints" if source in self.endpoints else "pools"
                raise ValueError(
                    f"{place}: {first.name!r} and {source.name!r} serve the model {source.model!r} with different tasks; "
                    "give both the same tasks, or two models"
                )
        return self

    @model_validator(mode="after")
    def _slots_for_all(self) -> Settings:
        sources: tuple[EndpointSettings | PoolSettings, ...] = (*self.endpoints, *self.pools)
        with_slots = {source.model: source.name for source in sources if source.slots is not None}
        for source in sources:
            other = with_slots.get(source.model)
            if source.slots is None and other is not None:
                place = "endpoints" if source in self.endpoints else "pools"
                raise ValueError(
                    f"{place}: {other!r} has slots and {source.name!r}, which serves the same model {source.model!r}, has none; "
                    "give slots to all endpoints of a model or to none"
                )
        return self

    @model_validator(mode="after")
    def _priced_where_dollars_are_limited(self) -> Settings:
        if not self._has_all_endpoints:
            return self
        pools: dict[str, dict[str, bool]] = {}
        for endpoint in self.endpoints:
            pools.setdefault(endpoint.model, {})[endpoint.pool] = "generate" in endpoint.tasks
        for pool in self.pools:
            pools.setdefault(pool.model, {})[pool.name] = "generate" in pool.tasks
        pools |= {adapter: pools.get(model, {}) for adapter, model in adapters_of(self.models).items()}
        for name, tenant in self.tenants.items():
            if tenant.limits.dollars_per_day is None:
                continue
            asked = [served_name(model, self.models) for model in tenant.models or pools]
            behind = [
                served_name(each, self.models) for model in asked if model in self.models for each in self.models[model].fallbacks
            ]
            for model in dict.fromkeys((*asked, *behind)):
                self._check_priced(name, model, pools.get(model, {}))
        return self

    def _check_priced(self, tenant: str, model: str, pools: Mapping[str, bool]) -> None:
        """`pools` of the model, and whether they make output."""
        for pool, generates in pools.items():
            prices = self.prices.pools.get(pool) or self.prices.models.get(model)
            if prices is None or prices.prompt is None or (generates and prices.output is None):
                raise ValueError(
                    f"tenants.{tenant}.limits.dollars_per_day: needs the prices of prompt and output of each model that the "
                    f"tenant may use, and {model!r} in the pool {pool!r} has not both; give them as prices.models.{model}"
                )

    @model_validator(mode="after")
    def _known_models(self) -> Settings:
        if not self._has_all_endpoints:
            return self
        served = {pool.model: pool.name for pool in self.pools} | {endpoint.model: endpoint.name for endpoint in self.endpoints}
        check_models(self.models, served)
        if self.provider_listing.enabled and not any(model.listing for model in self.models.values()):
            raise ValueError("provider_listing.enabled: there is nothing to list; give a model a listing, as models.NAME.listing")
        return self

    @model_validator(mode="after")
    def _known_tenants(self) -> Settings:
        if not self._has_all_endpoints:
            return self
        served = {*(pool.model for pool in self.pools), *(endpoint.model for endpoint in self.endpoints)}
        pools = {*(pool.name for pool in self.pools), *(endpoint.pool for endpoint in self.endpoints)}
        check_tenants(self.tenants, [key.tenant for key in self.auth.keys], {*self.models, *served})
        check_prices(self.prices, self.models, served, pools)
        return self

    @model_validator(mode="after")
    def _secret_for_keys(self) -> Settings:
        if self.auth.key_secret is None and (self.auth.key_file is not None or self.database.kind == "postgresql"):
            source = "auth.key_file" if self.auth.key_file is not None else "a PostgreSQL database"
            raise ValueError(f"auth.key_secret: is missing: the keys of {source} are hashed with it; give all gateways the same")
        return self

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key because there is no place for any."""
        auth = self.auth
        return auth.api_key is None and not auth.keys and auth.key_file is None and self.database.kind is None

    def check_reach(self, host: str) -> None:
        """Whether a gateway with these settings may listen at `host`.

        Raises: ConfigurationError when others than this machine can reach it and nobody is asked for a key.
        """
        if self.is_open and not self.auth.allow_anonymous and not _is_loopback(host):
            raise ConfigurationError(
                f"server.host: {host or 'every address'} can be reached from other machines, and nobody is asked for a key: "
                "set auth.api_key, auth.keys, auth.key_file or database.url, or auth.allow_anonymous: true"
            )

    @model_validator(mode="after")
    def _known_names_of_routing(self) -> Settings:
        if not self._has_all_endpoints:
            return self
        pools = {pool.name for pool in self.pools} | {endpoint.pool for endpoint in self.endpoints}
        for name in self.routing.pools:
            if name not in pools:
                raise ValueError(f"routing.pools: there is no pool {name!r}{_nearest(name, pools)}")
        return self

    @model_validator(mode="after")
    def _one_weight_a_revision(self) -> Settings:
        """Which of several would count depended on the order in which engines are found."""
        if not self._has_all_endpoints:
            return self
        weights: dict[tuple[str, str], tuple[str, float]] = {}
        fixed = {(endpoint.model, endpoint.pool) for endpoint in self.endpoints}
        for model, name in sorted(fixed | {(pool.model, pool.name) for pool in self.pools}):
            said = self.routing.pools.get(name, PoolRoutingSettings())
            other, weight = weights.setdefault((model, said.revision), (name, said.weight))
            if weight != said.weight:
                which = f"the revision {said.revision!r}" if said.revision else "no revision"
                raise ValueError(
                    f"routing.pools: {other!r} and {name!r} have {which} of {model!r} and the weights {weight:g} and "
                    f"{said.weight:g}; a weight is a revision's: give each its own revision, or both the same weight"
                )
        return self

    @model_validator(mode="after")
    def _distinct_pools(self) -> Settings:
        names = [pool.name for pool in self.pools]
        fixed = {endpoint.pool for endpoint in self.endpoints}
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pools: the name {name!r} is given twice")
            if name in fixed:
                raise ValueError(f"pools: {name!r} is the pool of an entry of `endpoints`, whose addresses are fixed")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (env_settings, init_settings)


ENGINE_SECRET = "SERVING_ENGINE_SECRET"
ENGINE_SECRET_FILE = "SERVING_ENGINE_SECRET_FILE"
"""Where an engine's guard finds the secret that it asks for: a value, or a file with one secret a line."""
PROCESS_VARIABLES = frozenset({"SERVING_CACHE_DIR", "SERVING_CATALOG_DIR", ENGINE_SECRET, ENGINE_SECRET_FILE})
"""Variables of the command line and the engine (where models and the catalog lie, what guards the engine) that are not fields
of `Settings`."""


def child_environment(additions: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `additions` over it, for a process that it starts."""
    return {**os.environ, **additions}


def engine_environment(additions: Mapping[str, str], *, secret: str | None = None) -> dict[str, str]:
    """The same for an engine: without the gateway's settings, for which it has no use and among which are keys.

    The guard's variables are handed on as they are, or replaced by `secret`.
    """
    kept = (ENGINE_SECRET, ENGINE_SECRET_FILE) if secret is None else ()
    inherited = {n: v for n, v in os.environ.items() if n in kept or not n.upper().startswith(PREFIX)}
    return {**inherited, **additions, **({} if secret is None else {ENGINE_SECRET: secret})}


def engine_secret_is_given() -> bool:
    """Whether this process's environment holds a secret for an engine's guard. Raises: as `engine_secrets`."""
    return bool(engine_secrets())


def engine_secrets() -> tuple[str, ...]:
    """The secrets that this process's environment holds for an engine's guard, any of which it will take.

    Raises:
        ConfigurationError: they cannot be used, or a variable is misspelt: the engine would be open without anybody knowing.
    """
    _refuse_unknown_variables(os.environ)
    for name in os.environ:
        if name not in (ENGINE_SECRET, ENGINE_SECRET_FILE) and name.upper() in (ENGINE_SECRET, ENGINE_SECRET_FILE):
            raise ConfigurationError(f"environment: {name} must be written in capitals: so the guard reads it")
    value, path = os.environ.get(ENGINE_SECRET), os.environ.get(ENGINE_SECRET_FILE)
    if value is not None and path is not None:
        raise ConfigurationError(f"environment: {ENGINE_SECRET} and {ENGINE_SECRET_FILE} are both set; set one of them")
    name = ENGINE_SECRET if path is None else ENGINE_SECRET_FILE
    try:
        if path is not None:
            return tuple(_secret_lines(_secret_file(Path(path)).read_bytes()))
        return () if value is None else tuple(_secret_lines(os.fsencode(value)))
    except ValueError as error:
        raise ConfigurationError(f"environment: {name}: {error}") from None


def kubernetes_access(settings: KubernetesSettings) -> KubernetesSettings:
    """The same settings with the server, token and authority of the cluster in which this process runs, where they name none.

    Raises:
        ConfigurationError: there is no such cluster
    """
    if settings.api_url is not None:
        return settings
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigurationError(
            "kubernetes.api_url: is not set, and this process is in no cluster (KUBERNETES_SERVICE_HOST and _PORT are not there)"
        )
    shown = f"[{host}]" if ":" in host else host
    found = {
        "api_url": f"https://{shown}:{port}",
        "token_file": settings.token_file or SERVICE_ACCOUNT / "token",
        "ca": settings.ca or SERVICE_ACCOUNT / "ca.crt",
    }
    return settings.model_copy(update=found)


def own_namespace(pool: PoolSettings) -> str:
    """The namespace of this process's pod, for a pool that names none. Raises: ConfigurationError."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise ConfigurationError(
            f"pools: {pool.name}: kubernetes.namespace: is not set, and {SERVICE_ACCOUNT}/namespace cannot be read"
        ) from None


def cache_dir() -> Path:
    """Where downloads and converted models are kept: `SERVING_CACHE_DIR`, else the user's cache folder."""
    given = _given_folder("SERVING_CACHE_DIR")
    if given is not None:
        return given
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "serving-stack"
    except RuntimeError:
        raise ConfigurationError("this user has no home folder for the cache; set SERVING_CACHE_DIR") from None


def _given_folder(variable: str) -> Path | None:
    given = os.environ.get(variable)
    try:
        return Path(given).expanduser() if given else None
    except RuntimeError:
        raise ConfigurationError(f"{variable}: {given} begins with ~ and no user of this machine has that name") from None


def catalog_dir() -> Path:
    """Where the catalog lies: `SERVING_CATALOG_DIR`, else `configs/` of the source tree or of the installed package."""
    given = _given_folder("SERVING_CATALOG_DIR")
    if given is not None:
        return given
    package = Path(__file__).resolve().parent
    source = package.parent / "configs"
    return source if source.is_dir() else package / "_configs"


def load_settings(path: Path | None = None, *, own: EndpointSettings | None = None, runs_gateway: bool = True) -> Settings:
    """Read the settings from a YAML file and, over it, the process's environment.

    `own` is an endpoint that `serving up` adds to those of the user, so that settings may speak of its model and its pool.
    Whoever does not run the gateway cannot know it: then what speaks of models and pools is not compared with the endpoints.

    Raises:
        ConfigurationError: naming the file or variable, the path of the field and what would be right; never a value.
    """
    data = _read_yaml(path) if path is not None else {}
    _refuse_unknown_variables(os.environ)
    kind = _settings_with(own) if own is not None else Settings if runs_gateway else _WithoutEndpoints
    try:
        return kind(**data)
    except ValidationError as error:
        lines = [_explain(problem, path) for problem in error.errors(include_url=False, include_input=False)]
        raise ConfigurationError("\n".join(lines)) from None
    except SettingsError as error:
        names = re.findall(r'field "(\w+)"', str(error))
        variable = PREFIX + names[0].upper() if names else "environment"
        raise ConfigurationError(
            f"{variable}: is not JSON; write JSON, or set fields one by one as {PREFIX}SECTION__FIELD"
        ) from None
    except RecursionError:
        # Files were read before; of the variables it is the one with the most brackets.
        ours = [name for name in os.environ if name.upper().startswith(PREFIX)]
        variable = max(ours, key=lambda name: len(re.findall(r"[\[{]", os.environ[name])), default="environment")
        raise ConfigurationError(f"{variable}: is nested too deeply") from None


class _WithoutEndpoints(Settings):
    _has_all_endpoints = False


def _settings_with(own: EndpointSettings) -> type[Settings]:
    class WithOwn(Settings):
        endpoints: tuple[EndpointSettings, ...] = Field(default=(), validate_default=True)

        @field_validator("endpoints", mode="after")
        @classmethod
        def _add_own(cls, given: tuple[EndpointSettings, ...]) -> tuple[EndpointSettings, ...]:
            if any(endpoint.name == own.name for endpoint in given):
                raise ValueError(f"the name {own.name!r} belongs to up's own engine; give yours another one")
            return (*given, own)

    return WithOwn


def _read_yaml(path: Path) -> dict[str, Any]:
    loaded = read_yaml(path)
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path}: must be a mapping of sections, not a {type(loaded).__name__}")
    return loaded


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        section = _model_of(field.annotation)
        if section is not None and get_origin(field.annotation) not in (tuple, dict):
            yield from _paths(section, f"{prefix}{name}.")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names, by itself, as the item of a tuple, or as the value of a mapping."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """The names of the fields of the section in which a location lies."""
    model: type[BaseModel] | None = Settings
    is_key = False
    for part in location[:-1]:
        if is_key:
            # The key of a mapping, whose values are sections.
            is_key = False
        elif isinstance(part, str) and model is not None:
            field = model.model_fields.get(part)
            model = _model_of(field.annotation) if field is not None else None
            is_key = field is not None and get_origin(field.annotation) is dict
    return list(model.model_fields) if model is not None else []


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {PREFIX + path.replace(".", "__").upper() for path in _paths(Settings)} | PROCESS_VARIABLES
    for name in environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise ConfigurationError(f"environment: {name} is not a setting{_nearest(name.upper(), known)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {match[0]}?" if match else ""


def _explain(problem: Any, path: Path | None) -> str:
    location = problem["loc"]
    where = ".".join(str(part) for part in location)
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        section = "".join(f"{part}." for part in location[:-1])
        hint = _nearest(str(location[-1]), _fields_at(location)).replace("mean ", f"mean {section}", 1)
        message = f"is not a setting{hint}"
    source = _variable_at(location) or (str(path) if path else "settings")
    return f"{source}: {where}: {message}" if where else f"{source}: {message}"


def _variable_at(location: tuple[Any, ...]) -> str | None:
    """The variable of the environment that set the field at a location, as a whole or as part of its section."""
    for end in range(len(location), 0, -1):
        name = PREFIX + "__".join(str(part) for part in location[:end]).upper()
        if name in os.environ:
            return name
    return None
