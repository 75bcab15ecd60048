"""`serving replay`: the command line of the benchmark."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from serving.core.errors import ConfigurationError

if TYPE_CHECKING:
    from serving.replay.profile import Objectives, ReplayProfile
    from serving.replay.report import Options

INVALID_STATUS = 1
"""Of the process, when a run or a comparison cannot be trusted."""
STOPPED_STATUS = 130
"""When it was stopped before anything was measured."""


class _RunByDefault(TyperGroup):
    """`serving replay production …` is `serving replay run production …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="replay",
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Measure an OpenAI-compatible address under known traffic, and prove that the figures mean something.",
)


_ENDINGS = (".json", ".html")
_WITH_REPEAT = frozenset({"repeat", "url", "output", "nonce", "api_key", "catalog"})
"""What may be said beside a report that says all the rest."""


@app.command()
def run(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Argument(help="A replay profile (`serving replay profiles`), a .yaml file, or a .jsonl trace.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address to measure, as http://127.0.0.1:8000; a trailing /v1 is fine.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model; needed where several are served.")] = None,
    scale: Annotated[float, typer.Option(min=0.0001, max=100, help="Times all lengths; for small models.")] = 1.0,
    rate: Annotated[str | None, typer.Option(help="Requests a second; several with commas are a sweep.")] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Requests or sessions at a time; several with commas are a sweep.")
    ] = None,
    as_recorded: Annotated[bool, typer.Option("--as-recorded", help="At the moments of the trace.")] = False,
    time_factor: Annotated[float, typer.Option(min=0.001, help="With --as-recorded: how many times as fast.")] = 1.0,
    search: Annotated[bool, typer.Option("--search", help="Look for the highest rate that meets the objectives.")] = False,
    search_from: Annotated[float, typer.Option(min=0.001, help="With --search: the first rate.")] = 1.0,
    search_precision: Annotated[float, typer.Option(min=0.005, max=1, help="With --search: as a share of the rate.")] = 0.03,
    pace: Annotated[str, typer.Option(help="Of rates: poisson, or paced (all alike far apart).")] = "poisson",
    ttft: Annotated[float | None, typer.Option(min=0.0001, help="Objective: seconds to the first token.")] = None,
    tpot: Annotated[float | None, typer.Option(min=0.000001, help="Objective: seconds per output token.")] = None,
    e2e: Annotated[float | None, typer.Option(min=0.0001, help="Objective: seconds to the end.")] = None,
    good: Annotated[float, typer.Option(min=0.01, max=1, help="With objectives: share of requests that must meet them.")] = 0.95,
    settle: Annotated[float | None, typer.Option(min=0, help="Seconds of load before the measured window.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Seconds that are measured.")] = None,
    drain: Annotated[float, typer.Option(min=0, help="Longest time for the measured requests to end.")] = 120.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Of one request, in seconds.")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths, groups and arrivals.")] = 0,
    nonce: Annotated[
        str | None, typer.Option(help="Of the words; default: new each time, so that no run finds another's cache.")
    ] = None,
    prime_rounds: Annotated[int, typer.Option(min=1, help="How often shared beginnings are sent first.")] = 1,
    metrics_url: Annotated[
        list[str] | None, typer.Option(help="Address of an engine behind --url, for its counters; repeatable.")
    ] = None,
    block_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of the cache's blocks, where the engine does not tell.")
    ] = None,
    body: Annotated[str | None, typer.Option(help="JSON of fields that each request gets over ours.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Dollars for one node.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes behind the address.")] = 1,
    target: Annotated[str | None, typer.Option(help="Hardware target of the catalog, for its price.")] = None,
    engine_profile: Annotated[str | None, typer.Option(help="The catalog's profile that the engine runs.")] = None,
    repeat: Annotated[Path | None, typer.Option(help="Run again what this report says; --url may point elsewhere.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the report goes, without its ending; default: a name with the time.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Better by the variable; it is not written down.")
    ] = None,
    catalog: Annotated[Path | None, typer.Option(help="Folder of the catalog; default: SERVING_CATALOG_DIR or ours.")] = None,
) -> None:
    """Replay a profile against an address; exit status 1 when the figures cannot be trusted."""
    from serving.replay.report import Options, read_report
    from serving.replay.shelf import find_replay_profile
    from serving.settings import catalog_dir

    root = catalog or catalog_dir()
    _refuse_infinite(ctx)
    if repeat is not None:
        _refuse_beside_repeat(ctx)
        before = read_report(repeat)
        found, options = before.profile, before.options if url is None else before.options.model_copy(update={"url": url})
    else:
        if profile is None or url is None:
            raise ConfigurationError(
                f"{'PROFILE' if profile is None else '--url'}: is missing; `serving replay run --help` shows both"
            )
        found = find_replay_profile(profile, root)
        if pace not in ("poisson", "paced"):
            raise ConfigurationError(f"--pace: must be poisson or paced, not {pace!r}")
        options = Options(
            url=url,
            model=model,
            metrics_urls=tuple(metrics_url or ()),
            scale=scale,
            rates=_numbers("--rate", rate),
            concurrencies=tuple(_whole("--concurrency", number) for number in _numbers("--concurrency", concurrency)),
            as_recorded=as_recorded,
            time_factor=time_factor,
            search=search,
            search_from=search_from,
            search_precision=search_precision,
            pace="paced" if pace == "paced" else "poisson",
            settle_seconds=settle,
            measure_seconds=seconds,
            drain_seconds=drain,
            timeout_seconds=timeout,
            seed=seed,
            prime_rounds=prime_rounds,
            objectives=_objectives(ttft, tpot, e2e, good),
            block_tokens=block_tokens,
            extra=_fields(body),
            price_dollars_per_hour=price_per_hour,
            nodes=nodes,
            target=target,
            engine_profile=engine_profile,
        )
        if search and (options.rates or options.concurrencies or as_recorded):
            raise ConfigurationError("--search: finds the rate by itself; leave --rate, --concurrency and --as-recorded out")
    sys.exit(_run(options, found, nonce or secrets.token_hex(8), root, api_key, output))


def _refuse_infinite(ctx: typer.Context) -> None:
    for name, value in ctx.params.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"--{name.replace('_', '-')}: must be a finite number, not {value:g}")


def _refuse_beside_repeat(ctx: typer.Context) -> None:
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if name not in _WITH_REPEAT and source is not None and source.name == "COMMANDLINE":
            shown = "PROFILE" if name == "profile" else f"--{name.replace('_', '-')}"
            raise ConfigurationError(f"{shown}: stands in the report that --repeat names; leave it out")


def _run(options: Options, profile: ReplayProfile, nonce: str, root: Path, api_key: str | None, output: Path | None) -> int:
    import uvloop
    from rich.console import Console

    from serving.replay.page import write_page
    from serving.replay.progress import LiveProgress, stamp
    from serving.replay.report import write_report
    from serving.replay.run import Order, replay
    from serving.replay.table import print_report

    base = output or Path(f"replay-{profile.name}-{stamp().replace(':', '')}")
    if not base.parent.is_dir():
        raise ConfigurationError(f"--output: {base.parent} is not a folder")
    if base.suffix in _ENDINGS:
        raise ConfigurationError(f"--output: is without its ending; give {base.with_suffix('')}, not {base}")
    order = Order(options, profile, nonce, root, api_key, argv=_shown_argv())
    try:
        with LiveProgress(Console(stderr=True)) as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(replay(order, progress))
    except KeyboardInterrupt:
        print("serving: stopped before a load was measured; there is no report", file=sys.stderr)
        return STOPPED_STATUS
    json_path, page_path = (base.with_name(base.name + ending) for ending in _ENDINGS)
    write_report(report, json_path)
    write_page(report, page_path)
    print_report(report, _console())
    print(f"{json_path}\n{page_path}")
    return 0 if report.is_valid else INVALID_STATUS


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="The report that the other one is held against.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="The other one; ratios are B to A.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare what is not comparable; the output then says so.")] = False,
    margin: Annotated[float, typer.Option(min=0, max=1, help="A difference within this share counts as none.")] = 0.02,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ratios of two runs with their intervals, dollars per million tokens, and the share of the roofline."""
    from serving.replay.compare import compare as held_against
    from serving.replay.compare import print_comparison
    from serving.replay.report import read_report

    found = held_against(read_report(first), read_report(second), margin=margin, anyway=anyway)
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        print_comparison(found, _console())


@app.command()
def profiles(
    catalog: Annotated[Path | None, typer.Option(help="Folder of the catalog; default: SERVING_CATALOG_DIR or ours.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the replay profiles."""
    from serving.replay.shelf import load_profiles
    from serving.settings import catalog_dir

    found = load_profiles(catalog or catalog_dir())
    if as_json:
        print(json.dumps([profile.model_dump(mode="json") for profile in found.values()], indent=2))
        return
    for profile in found.values():
        print(f"{profile.name:12} {profile.description}")


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)


def _shown_argv() -> tuple[str, ...]:
    """The command line without a key in it."""
    words, hides = [], False
    for word in sys.argv[1:]:
        words.append("…" if hides else "--api-key=…" if word.startswith("--api-key=") else word)
        hides = word == "--api-key"
    return tuple(words)


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    """`1,2.5,4` as numbers. Raises: ConfigurationError."""
    if text is None:
        return ()
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"{option}: must be numbers like 1,2,4, not {text!r}") from None
    if not all(0 < number < float("inf") for number in numbers):
        raise ConfigurationError(f"{option}: must be above zero, not {text!r}")
    return numbers


def _whole(option: str, number: float) -> int:
    if number != int(number):
        raise ConfigurationError(f"{option}: must be whole numbers, not {number:g}")
    return int(number)


def _objectives(ttft: float | None, tpot: float | None, e2e: float | None, good: float) -> Objectives | None:
    from serving.replay.profile import Objectives

    if ttft is None and tpot is None and e2e is None:
        return None
    return Objectives(ttft_seconds=ttft, tpot_seconds=tpot, e2e_seconds=e2e, share=good)


def _fields(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ConfigurationError('--body: must be a JSON object like {"temperature": 0}')
    return fields
