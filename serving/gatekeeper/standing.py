"""What is known about a configuration, and what its pods' condition says for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.gate.verdict import Verdict
from serving.gatekeeper.pods import Condition
from serving.gatekeeper.records import NAME_DIGITS, Approval, Kept

MESSAGE_CHARACTERS = 1000
"""Of a condition: what decided, for people; the verdict holds the rest."""


@dataclass(slots=True)
class Standing:
    """Of one digest. Both None: it was never judged."""

    verdict: Verdict | None = None
    approval: Approval | None = None
    pool: str = ""


@dataclass(slots=True)
class Standings:
    """By digest, from all records."""

    by_digest: dict[str, Standing] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Kept]) -> Standings:
        found = cls()
        for each in records:
            standing = found.by_digest.setdefault(each.record.digest, Standing())
            standing.pool = standing.pool or each.pool
            if not isinstance(each.record, Verdict):
                standing.approval = each.record
            elif standing.verdict is None or standing.verdict.created < each.record.created:
                standing.verdict = each.record
        return found


def condition_of(standing: Standing | None, digest: str) -> Condition | None:
    """None: nothing is decided yet."""
    if standing is None:
        return None
    short, verdict, approval = digest[:NAME_DIGITS], standing.verdict, standing.approval
    if verdict is not None and verdict.outcome == "pass":
        return Condition("True", "Passed", _cut(f"{short}: {verdict.reason}"))
    if approval is not None:
        return Condition("True", "Approved", _cut(f"{short}: approved by {approval.by}: {approval.reason}"))
    if verdict is None:
        return None
    if verdict.outcome == "fail":
        return Condition("False", "Failed", _cut(f"{short}: {verdict.reason}"))
    wants = f"; to let it serve: serving gate approve {short} --reason …"
    reason = "NeedsApproval" if verdict.needs_approval else "NotDecided"
    return Condition("False", reason, _cut(f"{short}: {verdict.reason}", wants))


def _cut(text: str, end: str = "") -> str:
    return text[: MESSAGE_CHARACTERS - len(end)] + end
