"""The campaign's verdicts, by the catalog's rules for SmolLM2; `python -m tests.gate.judged FOLDER` prints them as a table."""

from __future__ import annotations

import sys
from pathlib import Path

from serving.catalog.load import load_catalog
from serving.gate.collected import Collected
from serving.gate.compare import distance
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.verdict import Verdict
from serving.settings import catalog_dir
from tests.gate.campaign import BROKEN, BROKEN_W4A4, MATCHED, Campaign, original_model, say

RULES, TARGET = "smollm2-135m", "cpu-epyc"
HONEST_REPEATS = {"bf16": 4, "nvfp4a16": 4, "mxfp4a16": 4, "int4": 4, "int8": 4, "nvfp4": 4}
NOT_MATCHED = ("int8", "nvfp4", "mxfp4")
"""Formats that round activations: judged beside a stored honest run, each measured from the original."""
STORED = {name: f"{name}-float32" for name in NOT_MATCHED}
"""The honest run of another implementation: one engine's own numbers, which repeat to the bit, would prove nothing."""


def format_of(name: str) -> str:
    """What the candidate claims to be."""
    if name in BROKEN:
        return "nvfp4a16"
    return "nvfp4" if name in BROKEN_W4A4 else name.removesuffix("-float32").removesuffix("-again")


def judged(campaign: Campaign, name: str, repeat: int = 0, *, same_engine: bool = False) -> Verdict:
    """Of one engine of the campaign, from what was collected of it and its references.

    With `same_engine` the honest run is the first one of the honest checkpoint on the very same engine.
    """
    rules = load_catalog(catalog_dir()).gates[RULES]
    reference = campaign.collected("bf16")
    weights = format_of(name)
    matched: Collected | None = None
    honest: Collected | None = None
    if weights in MATCHED and name != "silent-no-op":
        matched = campaign.collected(f"expanded-{weights}")
    if weights in NOT_MATCHED:
        honest = campaign.collected(weights if same_engine else STORED[weights])
    return judge(
        Evidence(
            candidate=campaign.collected(name, repeat),
            format=weights,
            rules=rules,
            target=TARGET,
            floor=rules.floors[TARGET],
            matched=matched,
            reference=reference,
            honest=honest,
            is_same_engine=same_engine,
        )
    )


def said_by(verdict: Verdict) -> str:
    return "; ".join(f"{f.name}: {f.said}" for f in verdict.findings if f.outcome != "pass")


def row(campaign: Campaign, name: str, repeat: int, verdict: Verdict) -> str:
    """One line of a Markdown table."""
    candidate = campaign.collected(name, repeat)
    original = distance(campaign.collected("bf16"), candidate)
    by_name = {finding.name: finding for finding in verdict.findings}
    near = next((by_name[key] for key in ("matched.kl", "repeat.kl", "stored_run.kl_ratio") if key in by_name), None)
    worst = by_name.get("matched.worst_passage") or by_name.get("repeat.worst_passage")
    decided = next((f.name for f in verdict.findings if f.outcome == verdict.outcome != "pass"), "")
    cells = (
        name,
        str(repeat),
        verdict.outcome.replace("_", " "),
        "" if near is None or near.low is None else f"{near.name} {near.value:.4f} ({near.low:.4f} to {near.high:.4f})",
        "" if worst is None else f"{worst.value:.4f}",
        "other tokens" if original is None else f"{original.kl.value:.4f}",
        "" if original is None else f"{original.perplexity_ratio:.4f}",
        decided,
    )
    return f"| {' | '.join(cells)} |"


def main(folder: Path) -> None:
    campaign = Campaign(folder, original_model(say), say)
    print("| Engine | Run | Verdict | Judged by | Worst passage | KL to the original | Perplexity ratio to it | What decided |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted((folder / "collected").glob("*.json")):
        name, _, number = path.stem.rpartition("-")
        if name.startswith("expanded-") or name in STORED.values():
            continue  # a reference
        ways = (False, True) if name in BROKEN_W4A4 else (False,)
        for same_engine in ways:
            verdict = judged(campaign, name, int(number), same_engine=same_engine)
            print(row(campaign, name, int(number), verdict))
            if verdict.outcome != "pass":
                say(f"{name} {number}: {verdict.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
