"""`serving gate controller`, `serving gate approve`, `serving gate verdicts` and `serving gate probes`."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from serving.core.errors import ConfigurationError

if TYPE_CHECKING:
    from serving.gatekeeper.approve import Place

T = TypeVar("T")
IN_THE_CHART = Path("/etc/serving/gate/gate.yaml")
ConfigOption = Annotated[
    Path, typer.Option("--config", help="YAML file with the controller's settings; the default is where the chart puts it.")
]
ApiOption = Annotated[
    str | None,
    typer.Option(help="Address of the API server, as http://127.0.0.1:8001 of `kubectl proxy`; default: that of the settings."),
]


def controller(config: ConfigOption = IN_THE_CHART) -> None:
    """Judge new engines of gated pools in Kubernetes, and make ready those that pass."""
    from serving.gatekeeper.run import run_controller
    from serving.gatekeeper.settings import load_gatekeeper_settings

    sys.exit(run_controller(load_gatekeeper_settings(config)))


def approve(
    digest: Annotated[str, typer.Argument(help="First digits of a configuration's digest, as `serving gate verdicts` shows it.")],
    reason: Annotated[str, typer.Option(help="Why it may serve; everybody can read it.")],
    by: Annotated[str | None, typer.Option(help="Who says so; default: this process's user.")] = None,
    config: ConfigOption = IN_THE_CHART,
    api: ApiOption = None,
) -> None:
    """Let a configuration serve whatever the gate said of it: for good, and for everybody to see."""
    from serving.gatekeeper.approve import approve as write

    if not reason.strip():
        raise ConfigurationError("--reason: is empty; say why this configuration may serve")
    approval = asyncio.run(_at(config, api, lambda place: write(place, digest, reason=reason.strip(), by=by or _user())))
    print(f"{approval.digest[:16]} may serve, by the word of {approval.by} ({approval.said})")


def verdicts(
    config: ConfigOption = IN_THE_CHART,
    api: ApiOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all findings.")] = False,
) -> None:
    """List the configurations that were judged: what the gate said of them, and who approved them."""
    from serving.gatekeeper.approve import read_standings

    found = asyncio.run(_at(config, api, read_standings)).by_digest
    if as_json:
        shown = {
            digest: {
                "pool": standing.pool,
                "verdict": standing.verdict and standing.verdict.model_dump(mode="json"),
                "approval": standing.approval and standing.approval.model_dump(mode="json"),
            }
            for digest, standing in found.items()
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("digest", "pool", "verdict", "target", "checkpoint", "why", box=None, pad_edge=False)
    for digest, standing in sorted(found.items(), key=lambda item: item[1].verdict.created if item[1].verdict else ""):
        verdict, approval = standing.verdict, standing.approval
        said = verdict.outcome if verdict else "gone"
        why = f"approved by {approval.by}: {approval.reason}" if approval else verdict.reason if verdict else ""
        about = verdict.configuration if verdict else None
        table.add_row(digest[:16], standing.pool, said, about.target if about else "", about.checkpoint if about else "", why)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def probes(
    url: Annotated[str, typer.Argument(help="Address of an engine that was found good, as http://127.0.0.1:8001.")],
    target: Annotated[str, typer.Option(help="Its hardware, by the catalog's name; the answers hold there only.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the known answers go, for quality.references.")],
    repeats: Annotated[int, typer.Option(min=2, max=1000, help="How often it is asked; the floor is the farthest of them.")] = 10,
    model: Annotated[str | None, typer.Option(help="Name of the model; needed where several are served.")] = None,
    secret: Annotated[str | None, typer.Option(envvar="SERVING_ENGINE_SECRET", help="The engine's secret, if any.")] = None,
) -> None:
    """Write down what a good engine answers to the probes by which gateways watch the others."""
    from serving.gate.address import Address
    from serving.gatekeeper.probes import make_reference

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    reference = make_reference(Address(url, model=model, secret=secret), target, repeats, report)
    try:
        output.write_text(reference.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output: {output} cannot be written: {error.strerror or error}") from None
    print(f"{output}: floor {reference.floor_nats:.4g} nats, band {reference.band_nats:.4g} nats")


async def _at(config: Path, api: str | None, work: Callable[[Place], Awaitable[T]]) -> T:
    """Do something where the records are."""
    from serving.engines.api_server import ApiServer
    from serving.gatekeeper.approve import Place
    from serving.gatekeeper.settings import load_gatekeeper_settings
    from serving.settings import kubernetes_access

    settings = load_gatekeeper_settings(config)
    access = settings.kubernetes
    if api is not None:
        access = type(access).model_validate({**access.model_dump(exclude={"token_file", "ca"}), "api_url": api})
    access = kubernetes_access(access)
    server = ApiServer(access)
    try:
        return await work(Place(server, settings.namespace, settings.name, access, settings.owner))
    finally:
        server.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a pod
        return f"user {os.getuid()}"


def register(app: typer.Typer) -> None:
    """Beside the other commands of the gate."""
    for command in (controller, approve, verdicts, probes):
        app.command()(command)
