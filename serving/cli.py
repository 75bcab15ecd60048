"""The commands; each is a thin door to the module that does the work."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving import __version__, accounts_cli
from serving.catalog_commands import register as register_catalog_commands
from serving.core.errors import ConfigurationError
from serving.explain_cli import explain
from serving.fleet_command import fleet
from serving.gate.checkpoints.commands import quantize
from serving.gate.commands import app as gate_app
from serving.gatekeeper.commands import register as register_gatekeeper_commands
from serving.replay.commands import app as replay_app

if TYPE_CHECKING:
    from serving.catalog.model import Catalog, Record

CatalogOption = Annotated[
    Path | None, typer.Option("--catalog", help="Directory of the catalog; without it SERVING_CATALOG_DIR or the one that ships.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PIPE_COLUMNS = 160
"""Width of a table that is not read on a terminal."""

app = typer.Typer(
    name="serving",
    help="Serve open-weight models on vLLM behind one OpenAI-compatible address.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
accounts_cli.register(app)


app.command()(explain)
app.command()(quantize)


register_catalog_commands(app)
app.add_typer(replay_app)
app.add_typer(gate_app)
register_gatekeeper_commands(gate_app)


@app.command()
def gateway(
    config: Annotated[Path | None, typer.Option(help="YAML file with the settings; SERVING_… variables go over it.")] = None,
) -> None:
    """Run the gateway in the foreground."""
    from serving.app import run_gateway
    from serving.settings import load_settings

    sys.exit(run_gateway(load_settings(config)))


@app.command()
def engine(
    profile: Annotated[str, typer.Argument(help="Name of a profile; `serving profiles` lists them.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8001,
    uds: Annotated[Path | None, typer.Option(help="Unix socket to listen on in place of host and port.")] = None,
    model_path: Annotated[Path | None, typer.Option(help="Folder of the model, in place of the catalog's sources.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print environment and command; start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    in_image: Annotated[bool, typer.Option("--in-image", help="With --dry-run: as the chart runs it in vLLM's image.")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Check a profile and this machine, fetch the model, and become its vLLM engine."""
    from serving.engines.launch import become_engine, plan_engine, prepare_engine
    from serving.settings import cache_dir, catalog_dir

    if as_json and not dry_run:
        raise ConfigurationError("--json prints the command and needs --dry-run")
    root = catalog or catalog_dir()
    if in_image:
        from serving.catalog.load import load_catalog
        from serving.catalog.render import engine_in_image

        if not dry_run:
            raise ConfigurationError("--in-image prints the command of another place and needs --dry-run")
        inside = engine_in_image(load_catalog(root), profile)
        print(_json({"environment": inside.environment, "argv": inside.argv}) if as_json else inside.shell())
        return

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if dry_run:
        command = plan_engine(
            profile, catalog_root=root, cache_dir=cache_dir(), host=host, port=port, uds=uds, model_path=model_path, report=report
        )
        print(_json({"environment": command.environment, "argv": command.argv}) if as_json else command.shell())
        return
    command = prepare_engine(
        profile,
        catalog_root=root,
        cache_dir=cache_dir(),
        host=host,
        port=port,
        uds=uds,
        model_path=model_path,
        report=report,
    )
    become_engine(command)


@app.command()
def targets(catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List the kinds of hardware in the catalog."""
    shelf = _catalog(catalog).targets
    rows = [(t.name, t.engine_build, ", ".join(t.real_formats()), t.description) for t in shelf.values()]
    _show(shelf, ("target", "vLLM build", "formats", "description"), rows, as_json)


@app.command()
def models(catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List the models in the catalog."""
    shelf = _catalog(catalog).models
    rows = [
        (m.name, f"{m.parameters / 1e9:.2f} B", f"{m.max_context_tokens:,}", m.licence, m.description) for m in shelf.values()
    ]
    _show(shelf, ("model", "parameters", "context tokens", "licence", "description"), rows, as_json)


@app.command()
def profiles(catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List the profiles in the catalog: what `serving engine` can run."""
    shelf = _catalog(catalog).profiles
    rows = [(p.name, p.model, p.target, p.engine_version, p.status, p.description) for p in shelf.values()]
    _show(shelf, ("profile", "model", "target", "vLLM", "status", "description"), rows, as_json)


def _catalog(root: Path | None) -> Catalog:
    from serving.catalog.load import load_catalog
    from serving.settings import catalog_dir

    return load_catalog(root or catalog_dir())


def _show(shelf: Mapping[str, Record], titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        print(_json([record.model_dump(mode="json") for record in shelf.values()]))
        return
    from rich.console import Console
    from rich.table import Column, Table

    # Names and figures keep their width, since they are typed again; the description takes what is left.
    columns = [Column(title, min_width=max(map(len, cells))) for title, *cells in zip(titles, titles, *rows, strict=True)]
    columns[-1].min_width = 24
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout and sys.stdout.isatty() else PIPE_COLUMNS).print(table, crop=False)


def _json(data: Any) -> str:
    import json

    return json.dumps(data, indent=2, ensure_ascii=False)


@app.command()
def up(
    profile: Annotated[str, typer.Argument(help="Profile of the catalog.")] = "smollm2-135m-cpu",
    host: Annotated[str | None, typer.Option(help="Where the gateway listens; default: the setting server.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the gateway; default: the setting server.port.")
    ] = None,
    engine_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the engine, on 127.0.0.1.")] = 8001,
    config: Annotated[Path | None, typer.Option(help="YAML file with the settings; SERVING_… variables go over it.")] = None,
    catalog: Annotated[Path | None, typer.Option(help="Folder of the catalog; default: SERVING_CATALOG_DIR or ours.")] = None,
    model_path: Annotated[Path | None, typer.Option(help="Folder of the model, in place of the catalog's sources.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Folder of the logs of both; default: logs/ in the cache folder.")] = None,
) -> None:
    """Run one engine and one gateway in the foreground; Ctrl-C stops both."""
    from rich.console import Console

    from serving.engines.screen import ConsoleScreen
    from serving.engines.up import UpOptions, run_up
    from serving.settings import catalog_dir

    options = UpOptions(
        profile=profile,
        catalog_root=catalog if catalog is not None else catalog_dir(),
        host=host,
        port=port,
        engine_port=engine_port,
        config=config,
        log_dir=log_dir,
        model_path=model_path,
    )
    sys.exit(run_up(options, ConsoleScreen(Console(), Console(stderr=True))))


@app.command()
def sim(
    profile: Annotated[str, typer.Option(help="Profile of the catalog; without the field `simulation` its speed is estimated.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the first engine; the others follow it.")] = 8001,
    count: Annotated[int, typer.Option(min=1, max=2000, help="How many engines.")] = 1,
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="Simulated seconds in one of the wall clock's.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of all chance in it.")] = 0,
    lora: Annotated[list[str] | None, typer.Option(help="Name of a LoRA adapter; may be repeated.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault, as hang or slow_factor=3; may be repeated.")] = None,
    faulty: Annotated[str | None, typer.Option(help="Numbers of the engines that have the faults, as 0,2,5-7.")] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(min=0, help="How long requests may go on after SIGTERM; default: the profile's; 0 aborts.")
    ] = None,
    control_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port at which the faults of all engines are read and set.")
    ] = None,
    every_metric: Annotated[
        bool, typer.Option("--every-metric", help="Export the metrics of all of vLLM's options, not only of the profile's.")
    ] = False,
    catalog: CatalogOption = None,
) -> None:
    """Run simulated engines that answer and behave like vLLM on the profile's hardware, without it."""
    from serving.settings import catalog_dir
    from serving.sim.faults import parse_faults
    from serving.sim.run import SimOptions, parse_numbers, run_sim

    options = SimOptions(
        profile=profile,
        catalog_root=catalog or catalog_dir(),
        host=host,
        port=port,
        count=count,
        speed=speed,
        seed=seed,
        adapters=tuple(lora or ()),
        faults=parse_faults(fault or []),
        faulty=parse_numbers(faulty) if faulty is not None else None,
        drain_seconds=drain_seconds,
        control_port=control_port,
        every_metric=every_metric,
    )
    sys.exit(run_sim(options))


@app.command()
def calibrate(
    url: Annotated[str, typer.Argument(help="Address of a running engine that serves nobody else, as http://127.0.0.1:8001.")],
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="The engine's own argument of that name.")] = 2048,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="How often each probe is made.")] = 7,
    secret: Annotated[str | None, typer.Option(envvar="SERVING_ENGINE_SECRET", help="The engine's secret, if any.")] = None,
) -> None:
    """Measure a running engine and print the field `simulation` for its profile."""
    import yaml

    from serving.sim.calibrate import Probes
    from serving.sim.calibrate import calibrate as measure
    from serving.sim.probe import look

    engine = look(url, max_num_batched_tokens=max_num_batched_tokens, secret=secret)
    found = measure(engine, Probes(rounds=rounds), report=lambda line: print(line, file=sys.stderr, flush=True))
    print(yaml.safe_dump({"simulation": found.model_dump(exclude_defaults=True)}, sort_keys=False), end="")


app.command()(fleet)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point: an error that names what is wrong ends in one message and status 2, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? for ×
    try:
        app()
    except ConfigurationError as error:
        print(f"serving: {error}", file=sys.stderr)
        sys.exit(2)
