"""`serving gate`: the command line of the gate. Status 0 pass, 1 fail, 2 not understood or not usable, 3 not decided."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.core.errors import ConfigurationError
from serving.gate.checkpoints.commands import dequantize

if TYPE_CHECKING:
    from serving.catalog.gate_rules import Floor, GateRules
    from serving.catalog.model import Catalog
    from serving.gate.collect import CollectOptions
    from serving.gate.collected import Collected
    from serving.gate.digest import Configuration

app = typer.Typer(
    name="gate",
    no_args_is_help=True,
    help="Prove that an engine computes what its checkpoint says, before it gets a user's request.",
)
app.command()(dequantize)

CatalogOption = Annotated[Path | None, typer.Option(help="Folder of the catalog; default: SERVING_CATALOG_DIR or ours.")]
SecretOption = Annotated[str | None, typer.Option(envvar="SERVING_ENGINE_SECRET", help="The engines' secret, if any.")]
ModelOption = Annotated[str | None, typer.Option(help="Name of the model; needed where several are served.")]
PartsOption = Annotated[str, typer.Option(help="What is asked for: passages, templates, decode, tasks; with commas.")]
AtOnceOption = Annotated[
    int, typer.Option(min=16, max=65536, help="Tokens that the engine scores at once; its extra memory grows with them.")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, max=256, help="Generated answers at a time.")]
ItemsOption = Annotated[int, typer.Option(min=1, max=24, help="Of each family of tasks.")]
ContextOption = Annotated[int, typer.Option(min=0, help="Length of the long contexts; 0 leaves them out.")]
PromptsOption = Annotated[Path | None, typer.Option(help="Your own prompts with checks, a JSONL file.")]
PrivateOption = Annotated[bool, typer.Option("--without-prompts", help="Leave texts out of what is written.")]
PidOption = Annotated[int | None, typer.Option(help="Process of the candidate's engine on this machine, for its peak memory.")]
TimeoutOption = Annotated[float, typer.Option(min=1, help="Of one request with its whole answer, in seconds.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
ConfigurationOption = Annotated[
    Path | None, typer.Option(help="JSON of image, checkpoint, argv, target and environment that the verdict is tied to.")
]
ProfileOption = Annotated[
    str | None, typer.Option(help="The catalog's profile that the candidate runs; it says format, target, rules and the rest.")
]

NOT_USABLE_STATUS = 2
"""Of `collect` from an engine in trouble: 1 is a verdict, and nothing was judged."""
DEFAULT_PARTS = "passages,templates,decode,tasks"


@app.command()
def run(
    candidate: Annotated[str, typer.Argument(help="Address of the engine, or a file of `serving gate collect`.")],
    matched: Annotated[
        str | None, typer.Option(help="The candidate's own weights dequantized: an address or a file. Is the engine right?")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The original model: an address or a file. Is the quantized model good enough?")
    ] = None,
    honest: Annotated[
        str | None,
        typer.Option(help="A stored run of a trusted engine with the same checkpoint, for formats with 4-bit activations."),
    ] = None,
    same_engine: Annotated[
        bool, typer.Option("--same-engine", help="The honest run's engine has this version, these flags and this hardware.")
    ] = False,
    plain: Annotated[str | None, typer.Option(help="The candidate without speculative decoding: an address or a file.")] = None,
    profile: ProfileOption = None,
    weights: Annotated[str | None, typer.Option("--format", help="Weight format that was asked for, as nvfp4a16.")] = None,
    target: Annotated[str | None, typer.Option(help="Hardware, by the catalog's name.")] = None,
    rules: Annotated[
        str | None, typer.Option(help="Limits of the catalog, by name; default: the profile's, else `default`.")
    ] = None,
    floor: Annotated[Path | None, typer.Option(help="A floor measured here, in place of the catalog's.")] = None,
    configuration: ConfigurationOption = None,
    checkpoint: Annotated[str | None, typer.Option(help="What the weights are, as repository@revision; for the digest.")] = None,
    image: Annotated[str | None, typer.Option(help="The engine's image; for the digest.")] = None,
    prompts: PromptsOption = None,
    require_share: Annotated[float, typer.Option(min=0, max=1, help="Of your checks, how many must hold.")] = 1.0,
    without_prompts: PrivateOption = False,
    parts: PartsOption = DEFAULT_PARTS,
    items: ItemsOption = 24,
    context_tokens: ContextOption = 0,
    tokens_at_once: AtOnceOption = 1024,
    concurrency: ConcurrencyOption = 4,
    engine_pid: PidOption = None,
    timeout: TimeoutOption = 600.0,
    model: ModelOption = None,
    secret: SecretOption = None,
    save: Annotated[Path | None, typer.Option(help="Where what was collected of the candidate goes.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the report goes, without its ending.")] = None,
    as_json: JsonOption = False,
    catalog: CatalogOption = None,
) -> None:
    """Judge an engine: status 0 pass, 1 fail, 3 not decided."""
    from serving.gate.collected import write_collected
    from serving.gate.page import write_page
    from serving.gate.report import write_report
    from serving.gate.run import Order, judge_address
    from serving.gate.text import print_verdict
    from serving.gate.verdict import to_json

    read = _catalog(catalog)
    found_rules, found_format, found_target, expected = _by_profile(read, profile, rules, weights, target)
    tied = _configuration(read, profile, configuration, image, checkpoint, found_target)
    order = Order(
        candidate=candidate,
        rules=found_rules,
        format=found_format,
        target=found_target,
        floor=_floor(floor, found_rules, found_target),
        matched=matched,
        reference=reference,
        honest=honest,
        is_same_engine=same_engine,
        plain=plain,
        expected_acceptance=expected,
        customer_share=require_share,
        model=model,
        secret=secret,
        timeout_seconds=timeout,
        collecting=_options(
            parts, tokens_at_once, concurrency, items, context_tokens, prompts, without_prompts, engine_pid, tied
        ),
        without_prompts=without_prompts,
    )
    _require_writable(output, save)
    outcome = judge_address(order, _progress)
    if save is not None:
        write_collected(outcome.candidate, save)
    written = []
    if output is not None:
        written = [output.with_name(output.name + ending) for ending in (".json", ".html")]
        write_report(outcome.report, written[0])
        write_page(outcome.report, written[1])
    if as_json:
        print(to_json(outcome.report.verdict))  # whose texts are left out on request
    else:
        print_verdict(outcome.report, _console())
        for path in written:
            print(path)
    sys.exit(outcome.verdict.exit_status)


@app.command()
def collect(
    url: Annotated[str, typer.Argument(help="Address of the engine.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the file goes; it serves as a reference.")],
    configuration: ConfigurationOption = None,
    prompts: PromptsOption = None,
    without_prompts: PrivateOption = False,
    parts: PartsOption = DEFAULT_PARTS,
    items: ItemsOption = 24,
    context_tokens: ContextOption = 0,
    tokens_at_once: AtOnceOption = 1024,
    concurrency: ConcurrencyOption = 4,
    engine_pid: PidOption = None,
    timeout: TimeoutOption = 600.0,
    model: ModelOption = None,
    secret: SecretOption = None,
) -> None:
    """Ask an engine once and keep everything, so that it can be compared later without it."""
    from serving.gate.address import Address
    from serving.gate.collect import collect as collect_from
    from serving.gate.collected import write_collected
    from serving.gate.run import read_configuration

    tied = read_configuration(configuration) if configuration else None
    options = _options(parts, tokens_at_once, concurrency, items, context_tokens, prompts, without_prompts, engine_pid, tied)
    _require_writable(output, None)
    collected = collect_from(Address(url, model=model, secret=secret, timeout_seconds=timeout), options, _progress)
    write_collected(collected, output)
    cost = collected.cost
    tokens = sum(passage.scored for passage in collected.passages)
    print(
        f"{output}: {tokens} tokens scored, {len(collected.answers)} tasks; {cost.requests} requests, "
        f"{cost.prompt_tokens} + {cost.output_tokens} tokens, {cost.seconds:.0f} s"
    )
    for line in collected.not_seen:
        print(f"not seen: {line}")
    for trouble in collected.troubles:
        print(f"{trouble.kind}: {trouble.where}: {trouble.said}", file=sys.stderr)
    if collected.troubles:
        sys.exit(NOT_USABLE_STATUS)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="REFERENCE.json", help="A file of `serving gate collect`.")],
    second: Annotated[Path, typer.Argument(metavar="CANDIDATE.json", help="The other one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The figures of one collection against another, without a judgement."""
    from serving.gate.collected import read_collected
    from serving.gate.compare import mismatch, require_comparable, shared_kinds
    from serving.gate.report import compared
    from serving.gate.text import print_compared

    reference, candidate = read_collected(first), read_collected(second)
    require_comparable(reference, candidate)
    found = compared("reference", reference, candidate)
    if not (found.tokens or found.tasks_by_family or shared_kinds(reference, candidate)):
        wrong = _troubled(first, reference) or _troubled(second, candidate)
        raise ConfigurationError(f"{second}: has no text, rendering or task in common with {first}{wrong}")
    for path, collected in ((first, reference), (second, candidate)):
        if collected.troubles:
            print(f"in trouble{_troubled(path, collected)}", file=sys.stderr)
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    print_compared(found, _console())
    differing = mismatch(reference, candidate)
    if differing is not None:
        print(f"tokens differ: {differing.said}")


@app.command()
def floor(
    url: Annotated[str, typer.Argument(help="Address of an engine that is known to be right.")],
    matched: Annotated[str | None, typer.Option(help="The engine's matched reference: an address or a file.")] = None,
    runs: Annotated[int, typer.Option(min=2, max=100, help="How often the engine is asked, in several shapes of batches.")] = 5,
    source: Annotated[
        str, typer.Option(help="Which machine and engine this was, for the catalog.")
    ] = "measured with serving gate floor",
    tokens_at_once: AtOnceOption = 2048,
    timeout: TimeoutOption = 600.0,
    model: ModelOption = None,
    secret: SecretOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the floor goes as JSON, for `run --floor`.")
    ] = None,
) -> None:
    """Measure how far an honest engine is from itself, and from its matched reference; prints it for the catalog."""
    import yaml

    from serving.gate.address import Address
    from serving.gate.collect import CollectOptions
    from serving.gate.collect import collect as collect_from
    from serving.gate.collected import read_collected
    from serving.gate.floor import measure_floor, repeats
    from serving.gate.run import is_address

    def open_address() -> Address:
        return Address(url, model=model, secret=secret, timeout_seconds=timeout)

    _require_writable(output, None)
    options = CollectOptions(tokens_at_once=tokens_at_once, parts=("passages", "decode"))
    found_runs = repeats(open_address, options, runs, _progress)
    base = None
    if matched is not None:
        base = (
            collect_from(Address(matched, secret=secret, timeout_seconds=timeout), options, _progress)
            if is_address(matched)
            else read_collected(Path(matched))
        )
    found = measure_floor(found_runs, base, source)
    if output is not None:
        output.write_text(found.model_dump_json(indent=2), encoding="utf-8")
    print(yaml.safe_dump({"floors": {"TARGET": found.model_dump()}}, sort_keys=False, allow_unicode=True), end="")


@app.command()
def rules(
    name: Annotated[str | None, typer.Argument(help="Of the catalog; without it all are listed.")] = None,
    catalog: CatalogOption = None,
) -> None:
    """Show the limits, their reasons, and the floors that are known."""
    import yaml

    from serving.gate.run import rules_by_name

    read = _catalog(catalog)
    if name is not None:
        print(yaml.safe_dump(rules_by_name(read, name).model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")
        return
    for entry in read.gates.values():
        print(f"{entry.name:24} floors: {', '.join(entry.floors) or 'none'}; {entry.description}")


def _troubled(path: Path, collected: Collected) -> str:
    """What stands behind a sentence about a file with troubles; empty without one."""
    return f"; {path}: {collected.troubles[0].where}: {collected.troubles[0].said}" if collected.troubles else ""


def _catalog(root: Path | None) -> Catalog:
    from serving.catalog.load import load_catalog
    from serving.settings import catalog_dir

    return load_catalog(root or catalog_dir())


def _by_profile(
    catalog: Catalog, profile: str | None, rules_name: str | None, weights: str | None, target: str | None
) -> tuple[GateRules, str, str, float | None]:
    """Rules, format, target and expected acceptance: what is given goes over what the profile says."""
    from serving.catalog.gate_rules import DEFAULT_RULES
    from serving.catalog.load import find_profile, nearest
    from serving.gate.run import expected_acceptance, format_of, rules_by_name, rules_for

    if target is not None and target not in catalog.targets:
        known = ", ".join(sorted(catalog.targets))
        raise ConfigurationError(
            f"--target: {target!r} is not in the catalog{nearest(target, catalog.targets)}; there are: {known}"
        )
    if profile is None:
        if weights is None or target is None:
            missing = "--format" if weights is None else "--target"
            raise ConfigurationError(f"{missing}: is missing; give it, or --profile, which says it")
        return rules_by_name(catalog, rules_name or DEFAULT_RULES), weights, target, None
    found = find_profile(catalog, profile)
    by_name = rules_by_name(catalog, rules_name) if rules_name else rules_for(catalog, profile)
    return by_name, weights or format_of(catalog, found), target or found.target, expected_acceptance(found)


def _configuration(
    catalog: Catalog, profile: str | None, file: Path | None, image: str | None, checkpoint: str | None, target: str
) -> Configuration | None:
    from serving.gate.digest import Configuration
    from serving.gate.run import configuration_of, read_configuration

    if file is not None:
        return read_configuration(file)
    if profile is not None:
        base = configuration_of(catalog, profile)
    elif image is not None or checkpoint is not None:
        base = Configuration(image="unknown", checkpoint="unknown", argv=(), target=target)
    else:
        return None
    given = {"image": image, "checkpoint": checkpoint, "target": target}
    return base.model_copy(update={name: value for name, value in given.items() if value is not None})


def _floor(file: Path | None, found: GateRules, target: str) -> Floor | None:
    from serving.gate.floor import read_floor

    return read_floor(file) if file is not None else found.floors.get(target)


def _options(
    parts: str,
    tokens_at_once: int,
    concurrency: int,
    items: int,
    context_tokens: int,
    prompts: Path | None,
    without_prompts: bool,
    engine_pid: int | None,
    configuration: Configuration | None,
) -> CollectOptions:
    from serving.gate.collect import CollectOptions
    from serving.gate.prompts import read_prompts

    return CollectOptions(
        parts=tuple(part.strip() for part in parts.split(",") if part.strip()),
        tokens_at_once=tokens_at_once,
        concurrency=concurrency,
        items=items,
        context_tokens=context_tokens,
        prompts=read_prompts(prompts) if prompts else (),
        keeps_prompts=not without_prompts,
        engine_pid=engine_pid,
        configuration=configuration,
    )


def _require_writable(*paths: Path | None) -> None:
    """Before an hour of collecting, not behind it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigurationError(f"{path}: {path.parent} is not a folder")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
