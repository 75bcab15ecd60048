"""The commands that judge and plan: lint, plan, snapshot. Each imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.core.errors import ConfigurationError

if TYPE_CHECKING:
    from serving.catalog.model import Catalog
    from serving.catalog.plan import Wishes

CatalogOption = Annotated[
    Path | None, typer.Option("--catalog", help="Directory of the catalog; without it SERVING_CATALOG_DIR or the one that ships.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(lint)
    app.command()(plan)
    app.command()(snapshot)


def lint(
    catalog: CatalogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the whole catalog: names against each vLLM, formats against targets, figures against the roofline.

    Ends with status 1 when there is an error. What could not be checked is said and is no error.
    """
    from serving.catalog.lint import lint as look
    from serving.settings import catalog_dir

    found, read = look(catalog or catalog_dir())
    if as_json:
        print(_json([{name: getattr(entry, name) for name in ("level", "file", "field", "wrong", "right")} for entry in found]))
    else:
        for entry in found:
            print(entry)
        counts = {level: sum(entry.level == level for entry in found) for level in ("error", "unchecked", "note")}
        size = f"{len(read.profiles)} profiles, {len(read.models)} models, {len(read.targets)} targets: " if read else ""
        print(f"{size}{counts['error']} errors, {counts['unchecked']} unchecked, {counts['note']} notes")
    sys.exit(1 if any(entry.level == "error" for entry in found) else 0)


def plan(
    name: Annotated[str, typer.Argument(help="A profile, a model, or the path of a model's config.json or folder.")],
    targets: Annotated[
        str | None, typer.Option(help="Compare the model on these targets: all, or names with commas between them.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0001, max=1e6, help="Dollars of one accelerator and hour, in place of the catalog's.")
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(min=0.0001, max=1e9, help="Output tokens per second of one engine, as you measured it.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Requests at once on one engine.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Of a request.")] = 20_000,
    output_tokens: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Of a request.")] = 1_000,
    cached: Annotated[float, typer.Option(min=0, max=0.999, help="Share of the prompt that is found in the cache.")] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="With --targets: write a page with a plot to this file.")] = None,
    catalog: CatalogOption = None,
) -> None:
    """Say whether a model fits, how to run it, what limits it and what a token costs, without any hardware."""
    from serving.catalog.evidence import Workload
    from serving.catalog.load import load_catalog
    from serving.catalog.plan import Wishes, plan_profile
    from serving.settings import catalog_dir

    read = load_catalog(catalog or catalog_dir())
    workload = Workload(prompt_tokens=prompt_tokens, output_tokens=output_tokens, cached_share=cached)
    wishes = Wishes(workload, concurrency, price, throughput)
    profile = read.profiles.get(name)
    if profile is None or targets is not None:
        _compare(read, name, "all" if targets is None else targets, wishes, as_json, html)
        return
    if html is not None:
        raise ConfigurationError("--html: is a comparison and needs --targets")
    from serving.catalog.compare import comparisons_of

    found, others = plan_profile(read, profile, wishes), comparisons_of(read, profile, wishes)
    if as_json:
        from serving.catalog.plan_json import plan_json

        print(_json(plan_json(found, others)))
    else:
        from serving.catalog.plan_text import plan_lines

        print("\n".join(plan_lines(found, others)))
    sys.exit(0 if found.runs else 1)


def _compare(read: Catalog, name: str, targets: str, wishes: Wishes, as_json: bool, html: Path | None) -> None:
    from serving.catalog.find_model import find_model
    from serving.catalog.side_by_side import chosen_targets, side_by_side

    if wishes.output_tokens_per_second is not None:
        raise ConfigurationError("--throughput: is that of one profile; leave --targets out, or leave it out")
    model = find_model(read, name)
    rows = side_by_side(read, model, chosen_targets(read, targets), wishes)
    if html is not None:
        from serving.catalog.page import page

        _write("--html", html, page(model, wishes, rows))
        print(f"wrote {html}", file=sys.stderr)
    if as_json:
        from serving.catalog.plan_json import rows_json

        print(_json(rows_json(rows)))
    elif html is None:
        from serving.catalog.table_text import table_lines

        print("\n".join(table_lines(model, wishes, rows)))
    if not any(row.plan.runs for row in rows):
        sys.exit(1)


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "give a file in a folder that is there"
        raise ConfigurationError(f"{option}: {path} cannot be written: {error.strerror}; {hint}") from None


def snapshot(
    to_output: Annotated[bool, typer.Option("--print", help="Print it and write no file.")] = False,
    families: Annotated[bool, typer.Option("--families", help="That of the metric families, for the simulator.")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Write down the names that the vLLM of this Python environment understands, for `serving lint`."""
    import contextlib

    from serving.settings import catalog_dir

    shelf = (catalog or catalog_dir()) / "engines"
    if not (to_output or families or shelf.is_dir()):
        raise ConfigurationError(f"--catalog: {shelf} is not a folder; give one that is, or --print")

    with contextlib.redirect_stdout(sys.stderr):  # vLLM logs to standard output
        if families:
            from serving.engines import snapshot_families as kind

            data, folder, suffix = kind.snapshot(), Path(__file__).parent / "sim" / "data", "-metrics"
            text = kind.render(data)
        else:
            from serving.engines import snapshot as names

            data, folder, suffix = names.snapshot(), shelf, ""
            text = names.render(data)
    if to_output:
        print(text, end="")
        return
    path = folder / f"vllm-{data['version']}{suffix}.json"
    _write("--catalog", path, text)
    print(f"wrote {path}")


def _json(data: Any) -> str:
    import json

    return json.dumps(data, indent=2, ensure_ascii=False)
