"""The verdict for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving.gate.report import Compared, GateReport

WORDS = {"pass": "PASS", "fail": "FAIL", "not_decided": "NOT DECIDED"}
_COLOURS = {"pass": "green", "fail": "red", "not_decided": "yellow"}


def print_verdict(report: GateReport, console: Console) -> None:
    verdict = report.verdict
    console.print(f"[bold {_COLOURS[verdict.outcome]}]{WORDS[verdict.outcome]}[/] {escape(verdict.reason)}")
    console.print(
        escape(
            f"{report.candidate.model} at {report.candidate.url}, {report.weights_format} on {report.target}, "
            f"rules {verdict.rules}, configuration {verdict.digest[:16]}"
        )
    )
    table = Table("test", "", "what was found", box=None, pad_edge=False)
    for finding in verdict.findings:
        word = f"[{_COLOURS[finding.outcome]}]{WORDS[finding.outcome].lower()}[/]"
        table.add_row(finding.name, word, escape(finding.said))
    console.print(table)
    for line in verdict.sees:
        console.print(f"sees: {line}", markup=False)
    for line in verdict.blind:
        console.print(f"does not see: {line}", markup=False)
    cost = verdict.cost
    memory = f"{cost.peak_engine_bytes / 1e9:.2f} GB at most" if cost.peak_engine_bytes is not None else "memory not seen"
    console.print(
        f"cost: {cost.requests} requests, {cost.prompt_tokens} prompt and {cost.output_tokens} output tokens, "
        f"{cost.seconds:.0f} s, {memory}, {cost.most_tokens_at_once} tokens scored at once",
        markup=False,
    )
    if verdict.needs_approval:
        console.print(f"approve it with: serving gate approve {verdict.digest} --reason …", markup=False)


def print_compared(found: Compared, console: Console) -> None:
    console.print(f"{found.engine.model} at {found.engine.url}, collected {found.created}", markup=False)
    for name, value in figures(found):
        console.print(f"{name:34} {value}", markup=False)


def figures(found: Compared) -> list[tuple[str, str]]:
    """Names and values, for people."""
    rows: list[tuple[str, str]] = [("tokens compared", str(found.tokens))]
    if found.kl is not None and found.kl_low is not None and found.kl_high is not None:
        rows.append(("mean KL, nats", f"{found.kl:.5f} ({found.kl_low:.5f} to {found.kl_high:.5f})"))
    if found.perplexity_ratio is not None and found.perplexity_error is not None:
        rows.append(("perplexity ratio", f"{found.perplexity_ratio:.4f} ± {found.perplexity_error * found.perplexity_ratio:.4f}"))
    if found.top1 is not None and found.sure_top1 is not None:
        rows.append(("same first token", f"{found.top1:.2%}"))
        rows.append((f"same where sure ({found.sure_tokens} tokens)", f"{found.sure_top1:.2%}"))
    rows += [(f"mean KL of {kind}", f"{kl:.5f}") for kind, kl in found.kl_by_kind.items()]
    for family, (items, ours, theirs) in found.tasks_by_family.items():
        rows.append((f"solved of {family}", f"{theirs} of {items} (reference {ours})"))
    return rows
