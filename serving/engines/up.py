"""`serving up`: one engine and one gateway from a profile and the user's settings."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from serving.catalog.hardware import Target
from serving.catalog.load import find_profile, load_catalog
from serving.catalog.model import Profile
from serving.catalog.parallel import accelerators
from serving.core.errors import ConfigurationError
from serving.engines.kept import Program, answers_ok, rotate_log
from serving.engines.launch import prepare_engine, require_free_port
from serving.engines.supervise import Screen, StopSignals, Supervisor
from serving.settings import (
    EndpointSettings,
    Settings,
    cache_dir,
    child_environment,
    engine_environment,
    engine_secrets,
    load_settings,
)

ENGINE_HOST = "127.0.0.1"
ENDPOINT_NAME = "local"
ENGINE_STOP_SECONDS = 40.0
"""Above the time that the catalog gives vLLM for its running requests; without any it stops in a second or two."""
STOP_MARGIN_SECONDS = 3.0
"""Beyond the gateway's own time to drain, for the end of its process."""
ENGINE_FIRST_DELAY_SECONDS = 1.0
GATEWAY_FIRST_DELAY_SECONDS = 0.0
SECRET_BYTES = 32
QUESTION = "What is the capital of France?"


@dataclass(frozen=True)
class UpOptions:
    """What the command line gives; None is the setting's or the place's default."""

    profile: str
    catalog_root: Path
    host: str | None = None
    port: int | None = None
    engine_port: int = 8001
    config: Path | None = None
    log_dir: Path | None = None
    model_path: Path | None = None
    """Folder of the model, in place of the catalog's sources."""


def run_up(options: UpOptions, screen: Screen) -> int:
    """Prepare, then supervise until somebody says stop; the exit status.

    Raises:
        ConfigurationError: something that the operator gave, or this machine, cannot work; nothing was started.
    """
    if sys.platform != "linux":
        raise ConfigurationError("serving up needs Linux; elsewhere run `serving engine` and `serving gateway` by themselves")
    with StopSignals().caught() as signals:
        try:
            signals.interrupting = True
            supervisor = _prepare(options, screen, signals)
            signals.interrupting = False
        except KeyboardInterrupt:
            return 0
        return supervisor.run()


def _prepare(options: UpOptions, screen: Screen, signals: StopSignals) -> Supervisor:
    """All that can fail for a reason the operator can mend, the cheap before the expensive."""
    catalog = load_catalog(options.catalog_root)
    profile = find_profile(catalog, options.profile)
    settings = load_settings(options.config, own=_own_endpoint(options.engine_port, profile))
    host = options.host if options.host is not None else settings.server.host
    port = options.port if options.port is not None else settings.server.port
    if port == 0:
        raise ConfigurationError("port: 0 lets the system choose, but up must know the address; give --port")
    if port == options.engine_port:
        raise ConfigurationError(f"--port and --engine-port are both {port}; give two different ones")
    settings.check_reach(host)
    require_free_port(host, port, "--port")
    require_free_port(ENGINE_HOST, options.engine_port, "--engine-port")
    endpoints = json.dumps([endpoint.model_dump(mode="json", exclude_none=True) for endpoint in settings.endpoints])
    secret = _shared_secret(settings)
    command = prepare_engine(
        options.profile,
        catalog_root=options.catalog_root,
        cache_dir=cache_dir(),
        host=ENGINE_HOST,
        port=options.engine_port,
        model_path=options.model_path,
        report=screen.say,
        guard=True,
    )
    log_dir = options.log_dir if options.log_dir is not None else cache_dir() / "logs"
    engine = Program(
        name="engine",
        argv=command.argv,
        environment=engine_environment(command.environment, secret=secret.of_engine),
        log_path=_fresh_log(log_dir / f"engine-{options.engine_port}.log"),
        host=ENGINE_HOST,
        port=options.engine_port,
        ready_path="/health",
        stop_seconds=ENGINE_STOP_SECONDS,
        first_delay_seconds=ENGINE_FIRST_DELAY_SECONDS,
    )
    gateway = Program(
        name="gateway",
        argv=_gateway_argv(options.config),
        environment=child_environment(
            {"SERVING_ENDPOINTS": endpoints, "SERVING_SERVER__HOST": host, "SERVING_SERVER__PORT": str(port)}
            | {"SERVING_CATALOG_DIR": str(options.catalog_root)}
            | _machine(settings, profile, catalog.targets[profile.target], screen)
            | ({} if secret.of_gateway is None else {"SERVING_RELAY__ENGINE_SECRET": secret.of_gateway})
        ),
        log_path=_fresh_log(log_dir / f"gateway-{port}.log"),
        host=_reachable(host),
        port=port,
        ready_path="/livez",
        stop_seconds=settings.server.drain_delay_seconds + settings.server.shutdown_grace_seconds + STOP_MARGIN_SECONDS,
        first_delay_seconds=GATEWAY_FIRST_DELAY_SECONDS,
    )
    screen.say(f"Starting the engine for {profile.model}. Its log: {engine.log_path}")
    return Supervisor(
        engine,
        gateway,
        screen=screen,
        signals=signals,
        serves=lambda: answers_ok(gateway.host, gateway.port, "/readyz"),
        announcement=announcement(engine, gateway, profile.model, key=_shown_key(settings), page=_page_of(settings, gateway)),
    )


@dataclass(frozen=True)
class _SharedSecret:
    """What engine and gateway are told on top of what they find by themselves; None: they find it."""

    of_engine: str | None
    of_gateway: str | None


def _shared_secret(settings: Settings) -> _SharedSecret:
    """A gateway sends one secret to all engines: what the user gave, for the gateway or for engines, is the local one's too."""
    of_gateway, of_engine = settings.relay.sent_secret(), engine_secrets()
    if not of_engine:
        secret = of_gateway or secrets.token_urlsafe(SECRET_BYTES)
        return _SharedSecret(secret, None if of_gateway else secret)
    if of_gateway is not None and of_gateway not in of_engine:
        raise ConfigurationError(
            "relay.engine_secret is not among the secrets of SERVING_ENGINE_SECRET (or its file), so that the engine would refuse"
            " its own gateway; give both the same, or one of them"
        )
    return _SharedSecret(None, None if of_gateway else of_engine[0])


def _shown_key(settings: Settings) -> str | None:
    """What stands for the key in a command to paste: a variable of the shell, or a blank to fill; never the key."""
    if settings.auth.api_key is not None:
        return "$SERVING_AUTH__API_KEY"
    return None if settings.is_open else "YOUR_KEY"


def _page_of(settings: Settings, gateway: Program) -> str | None:
    """Where the gateway's page is; None where the system chooses the operators' port."""
    server = settings.server
    if server.operator_port is None:
        return f"http://{_authority(gateway.host, gateway.port)}/ui"
    return f"http://{_authority(_reachable(server.operator_host), server.operator_port)}/ui" if server.operator_port else None


def announcement(engine: Program, gateway: Program, model: str, *, key: str | None, page: str | None) -> str:
    """Addresses, logs and a command to paste."""
    base = f"http://{_authority(gateway.host, gateway.port)}"
    question = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    header = f' -H "Authorization: Bearer {key}"' if key is not None else ""
    ask = f"{shlex.quote(base + '/v1/chat/completions')} -H 'Content-Type: application/json'{header}"
    return "\n".join(
        (
            "",
            f"gateway  {base}/v1  (log: {gateway.log_path})",
            *([f"page     {page}  (what it does, and a playground)"] if page is not None else []),
            f"engine   http://{_authority(engine.host, engine.port)}/metrics  (log: {engine.log_path})",
            "         Only /metrics and /health of it are open; the rest answers the gateway alone.",
            "",
            "Ask it, at once or as a stream:",
            f"curl -sS {ask} -d {shlex.quote(json.dumps(question))}",
            f"curl -sS --no-buffer {ask} -d {shlex.quote(json.dumps(question | {'stream': True}))}",
            "",
            "Ctrl-C stops both.",
        )
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    """Where a server that listens on `host` can be asked from this machine."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _own_endpoint(engine_port: int, profile: Profile) -> EndpointSettings:
    try:
        return EndpointSettings(
            name=ENDPOINT_NAME,
            url=f"http://{ENGINE_HOST}:{engine_port}",
            model=profile.model,
            pool=profile.name,
            target=profile.target,
        )
    except ValidationError as error:
        raise ConfigurationError(f"profile {profile.name}: cannot be an endpoint: {error.errors()[0]['msg']}") from None


def _machine(settings: Settings, profile: Profile, target: Target, screen: Screen) -> dict[str, str]:
    """How many accelerators the local engine runs on, where it is more than one, and what this machine costs, where that is
    counted by its CPUs; beside what the user says of pools, which holds over both."""
    pools = {name: pool.model_dump(mode="json", exclude_unset=True) for name, pool in settings.routing.pools.items()}
    own = pools.get(profile.name, {})
    found: dict[str, float] = {}
    number = accelerators(profile, target)
    if number > 1:
        found["accelerators"] = number
    targets = settings.targets.get(profile.target)
    is_priced = "dollars_per_hour" in own or (targets is not None and targets.dollars_per_accelerator_hour is not None)
    if target.cpu_price is not None and not is_priced:
        cpus, each = len(os.sched_getaffinity(0)), target.cpu_price.dollars_per_cpu_hour
        found["dollars_per_hour"] = round(cpus * each, 4)
        screen.say(
            f"Dollars are counted at {found['dollars_per_hour']:g} an hour: {cpus} CPUs at {each:g} ({target.cpu_price.source}, "
            f"{target.cpu_price.date}). If this machine costs something else, set "
            f"targets.{profile.target}.dollars_per_accelerator_hour."
        )
    return {"SERVING_ROUTING__POOLS": json.dumps({**pools, profile.name: found | own})} if found else {}


def _gateway_argv(config: Path | None) -> tuple[str, ...]:
    argv = (sys.executable, "-m", "serving", "gateway")
    return argv if config is None else (*argv, "--config", str(config))


def _fresh_log(path: Path) -> Path:
    try:
        rotate_log(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: no log can be written there: {error.strerror}; give --log-dir") from None
    return path
