"""The commands; each is a thin door to the module that does the work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from serving import __version__
from serving.core.errors import ConfigurationError

app = typer.Typer(
    name="serving",
    help="Serve open-weight models on vLLM behind one OpenAI-compatible address.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def gateway(
    config: Annotated[Path | None, typer.Option(help="YAML file with the settings; SERVING_… variables go over it.")] = None,
) -> None:
    """Run the gateway in the foreground."""
    from serving.app import run_gateway
    from serving.settings import load_settings

    sys.exit(run_gateway(load_settings(config)))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point: an error that names what is wrong ends in one message and status 2, never in a traceback."""
    try:
        app()
    except ConfigurationError as error:
        print(f"serving: {error}", file=sys.stderr)
        sys.exit(2)
