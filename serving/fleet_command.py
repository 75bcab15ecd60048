"""`serving fleet`: the pools and endpoints of a running gateway, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.core.errors import ConfigurationError
from serving.core.printable import printable

TIMEOUT_SECONDS = 10.0
"""For the whole answer, however slowly it comes."""
MOST_BYTES = 64 * 1024 * 1024
UNKNOWN = "?"
COLUMNS = (
    *("pool", "endpoint", "state", "in flight", "running", "waiting", "cache", "hits"),
    *("out tok/s", "prefill tok/s", "decode tok/s", "$/h", "used $/M out", "reason"),
)
PIPE_COLUMNS = 200
"""Width of a table that is not read on a terminal."""


def fleet(
    url: Annotated[
        str | None, typer.Option(help="The gateway's operator address, as http://127.0.0.1:9000; default: from the settings.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The gateway's YAML file, to find its address.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the pools and endpoints of a running gateway; what is not known is shown as "?".

    "used $/M out" is the machine time that output tokens took, without idle time and prompts; `serving plan` and `serving replay`
    divide the whole price by the output.
    """
    import json

    report = ask_gateway(place := url or operator_url(config))
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        return
    try:
        shown = rows(report)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigurationError(
            f"{place} answered with a fleet that this version cannot show ({printable(what)}); use the command of the gateway's "
            "own version, or --json"
        ) from None
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in shown:
        table.add_row(*map(printable, row))
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, markup=False, emoji=False).print(table, crop=False)


def operator_url(config: Path | None) -> str:
    """Where a gateway with these settings answers operators. Raises: ConfigurationError."""
    from serving.settings import load_settings

    server = load_settings(config, runs_gateway=False).server
    own = server.operator_port is not None
    host = server.operator_host if own else server.host
    port = server.operator_port if own else server.port
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if server.tls_certificate is not None and not own else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def ask_gateway(url: str) -> dict[str, Any]:
    """What `GET /fleet` answers. Raises: ConfigurationError, saying what is at the address instead."""
    from concurrent.futures import Future
    from threading import Thread

    _check_url(url)
    place = f"{url.rstrip('/')}/fleet"
    answer: Future[dict[str, Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(_ask(place))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            answer.set_exception(error)

    # A socket's timeout begins anew with each byte, and nothing waits for a daemon.
    Thread(target=ask, daemon=True).start()
    try:
        return answer.result(TIMEOUT_SECONDS)
    except TimeoutError:
        raise ConfigurationError(f"{place} did not answer within {TIMEOUT_SECONDS:g} seconds") from None


def _check_url(url: str) -> None:
    """Raises: ConfigurationError."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isprintable() or " " in url:
        raise ConfigurationError(f"--url: {url!r} must be http://HOST:PORT or https://HOST:PORT, with a port from 1 to 65535")


def _ask(place: str) -> dict[str, Any]:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(place, timeout=TIMEOUT_SECONDS) as answer:
            report = json.loads(answer.read(MOST_BYTES))
    except HTTPError as error:
        error.close()
        hint = "; a gateway with server.operator_port answers there only" if error.code == 404 else ""
        raise ConfigurationError(f"{place} answered {error.code}{hint}") from None
    except UnicodeError:
        raise ConfigurationError(f"{place} cannot be asked, or did not answer with text; is it a gateway?") from None
    except (OSError, HTTPException) as error:
        raise ConfigurationError(f"{place} cannot be asked: {getattr(error, 'reason', None) or error}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{place} did not answer with JSON; is it a gateway?") from None
    if not isinstance(report, dict) or not isinstance(report.get("pools"), list):
        raise ConfigurationError(f"{place} did not answer with a fleet; is it a gateway of this version?")
    return report


def rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each endpoint, and one for a pool that has none."""
    made: list[tuple[str, ...]] = []
    for pool in report["pools"]:
        for endpoint in pool["endpoints"]:
            load = endpoint["load"] or {}
            speed, dollars = endpoint["speed"], endpoint["dollars"]
            cells = (
                *(pool["name"], endpoint["name"], _state(endpoint), _number(endpoint["in_flight"])),
                *(_number(load.get("running")), _number(load.get("waiting"))),
                *(_share(load.get("kv_cache_usage")), _share(load.get("cache_hit_rate"))),
                *(_number(load.get("output_tokens_per_second")), _number(speed["prefill_tokens_per_second"])),
                *(_number(speed["decode_tokens_per_second"]), _dollars(dollars["per_hour"])),
                *(_dollars(dollars["per_million_output_tokens"]), endpoint["reason"]),
            )
            made.append(cells)
        if not pool["endpoints"]:
            made.append((pool["name"], "none", *([""] * (len(COLUMNS) - 3)), f"no engine of {pool['model']} is known"))
    return made


def _state(endpoint: Mapping[str, Any]) -> str:
    """What the engine says of itself and, where that differs, what requests say about it."""
    breaker, share = endpoint["breaker"], endpoint["share"]
    if breaker not in (None, "closed"):
        return f"{endpoint['state']}, {'left out' if breaker == 'open' else 'on trial'}"
    is_starting = endpoint["state"] == "ready" and share is not None and share < 1
    return f"{endpoint['state']}, starting" if is_starting else str(endpoint["state"])


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _dollars(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"
