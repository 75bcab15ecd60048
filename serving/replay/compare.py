"""Two runs held against each other, when they can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serving.catalog.model import Record
from serving.core.errors import ConfigurationError
from serving.replay.measure import estimate, in_window
from serving.replay.report import Estimate, Report, Stage
from serving.replay.statistics import SLICE_BLOCK, Statistic, at_share, block_of, mean, replicates
from serving.replay.table import figure, seconds

Verdict = Literal["equal", "higher", "lower", "not told apart", "too few", "unknown"]
_SEEDS = (101, 202)
"""Of the two runs' resamples: equal ones would move together."""
LEAST_BEYOND = 5
"""A percentile with fewer values beyond it is not judged: resamples hold only those few, so that its interval is too narrow."""


class Ratio(Record):
    """One figure of both, and B to A."""

    name: str
    first: Estimate
    second: Estimate
    ratio: Estimate
    verdict: Verdict


class ComparedStage(Record):
    label: str
    ratios: tuple[Ratio, ...]
    roofline: tuple[str, str]


class Comparison(Record):
    """What `serving replay compare` prints."""

    titles: tuple[str, str]
    simulated: tuple[str | None, str | None]
    reservations: tuple[str, ...]
    """Why they should not be compared; empty unless it was done all the same."""
    margin: float
    stages: tuple[ComparedStage, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """No figure of any stage is higher or lower by more than the margin."""
        return all(ratio.verdict not in ("higher", "lower") for stage in self.stages for ratio in stage.ratios)


def reservations(first: Report, second: Report) -> list[str]:
    """Each reason why the two are not comparable."""
    found = []
    for name, report in (("A", first), ("B", second)):
        if not report.is_valid:
            found.append(f"{name} is not valid: {'; '.join(report.faults)}")
    if (first.simulated is None) != (second.simulated is None):
        simulated, measured = ("A", "B") if first.simulated is not None else ("B", "A")
        found.append(f"{simulated} is simulated and {measured} was measured")
    pairs = (
        ("profile", first.profile.name, second.profile.name),
        ("profile's content", first.profile_sha256[:12], second.profile_sha256[:12]),
        ("scale", f"{first.options.scale:g}", f"{second.options.scale:g}"),
        ("model", first.engine.model, second.engine.model),
        ("seed", str(first.options.seed), str(second.options.seed)),
        ("forced lengths", ", ".join(first.engine.forced), ", ".join(second.engine.forced)),
        ("fields of requests", str(first.options.extra), str(second.options.extra)),
        ("objectives", str(first.objectives), str(second.objectives)),
    )
    found += [f"they differ in {name}: {a} and {b}" for name, a, b in pairs if a != b]
    if not _pairs(first, second):
        labels = [", ".join(stage.label for stage in report.stages) for report in (first, second)]
        found.append(f"they have no load in common: {labels[0]} and {labels[1]}")
    return found


def compare(first: Report, second: Report, *, margin: float, anyway: bool) -> Comparison:
    """Raises: ConfigurationError when they are not comparable and `anyway` is not said."""
    wrong = reservations(first, second)
    if wrong and not anyway:
        raise ConfigurationError("these runs are not comparable (--anyway compares them all the same):\n" + "\n".join(wrong))
    pairs = _pairs(first, second) or [(_best(first), _best(second))]
    stages = tuple(
        ComparedStage(
            label=a.label if a.label == b.label else f"{a.label} and {b.label}",
            ratios=tuple(_ratios(a, b, margin)),
            roofline=(_roofline(a), _roofline(b)),
        )
        for a, b in pairs
    )
    notes = [f"{name}: {stage.money.source}" for name, stage in (("A", pairs[0][0]), ("B", pairs[0][1]))]
    return Comparison(
        titles=(_title(first), _title(second)),
        simulated=(first.simulated, second.simulated),
        reservations=tuple(wrong),
        margin=margin,
        stages=stages,
        notes=tuple(notes),
    )


def _title(report: Report) -> str:
    target = report.options.engine_profile or report.options.target or report.options.url
    return f"{report.title}, {report.engine.model}, {target}, {report.created}"


def _pairs(first: Report, second: Report) -> list[tuple[Stage, Stage]]:
    """The loads that both had. A search ends at a rate of its own, so that of two searches the best rates are compared."""
    if first.found is not None and second.found is not None:
        return [(_best(first), _best(second))]
    others = {(stage.kind, stage.label): stage for stage in second.stages}
    return [(stage, others[stage.kind, stage.label]) for stage in first.stages if (stage.kind, stage.label) in others]


def _best(report: Report) -> Stage:
    if report.found is not None:
        for stage in report.stages:
            if stage.offered == report.found.requests_per_second:
                return stage
    return max(report.stages, key=lambda stage: stage.output_tokens_per_second.value or 0.0)


def _roofline(stage: Stage) -> str:
    return "unknown" if stage.roofline.share is None else f"{stage.roofline.share:.1%}"


# Ratios

Values = Callable[[Stage], Sequence[float | None]]


def _ratios(first: Stage, second: Stage, margin: float) -> list[Ratio]:
    found = [
        _ratio_of("requests/s", first, second, _finished, mean, margin, per_slice=True),
        _ratio_of("output tokens/s", first, second, _output, mean, margin, per_slice=True),
        _ratio_of("prompt tokens/s", first, second, _prompt, mean, margin, per_slice=True),
    ]
    latencies: tuple[tuple[str, Values], ...] = (
        ("TTFT", lambda stage: stage.columns.ttft),
        ("time per output token", lambda stage: stage.columns.tpot),
        ("end to end", lambda stage: stage.columns.e2e),
    )
    for name, values in latencies:
        found.append(_ratio_of(f"{name} mean", first, second, values, mean, margin))
        found.append(_percentile(name, first, second, values, 0.5, margin))
        found.append(_percentile(name, first, second, values, 0.99, margin))
    found.append(_dollars("$/M output tokens", first, second, _output, margin))
    found.append(_dollars("$/M tokens", first, second, _all, margin))
    return found


def _output(stage: Stage) -> Sequence[float]:
    return in_window(stage.timeline, stage.timeline.output_tokens)


def _prompt(stage: Stage) -> Sequence[float]:
    return in_window(stage.timeline, stage.timeline.prompt_tokens)


def _all(stage: Stage) -> Sequence[float]:
    return [output + prompt for output, prompt in zip(_output(stage), _prompt(stage), strict=True)]


def _finished(stage: Stage) -> Sequence[float]:
    return [float(count) for count in in_window(stage.timeline, [float(count) for count in stage.timeline.finished])]


def _ratio_of(
    name: str, first: Stage, second: Stage, values: Values, statistic: Statistic, margin: float, *, per_slice: bool = False
) -> Ratio:
    points, drawn = [], []
    for stage, seed in zip((first, second), _SEEDS, strict=True):
        there = [value for value in values(stage) if value is not None]
        per = stage.timeline.slice_seconds if per_slice else 1.0
        block = SLICE_BLOCK if per_slice else block_of(len(there))
        points.append(statistic(list(there)) / per)
        drawn.append([value / per for value in replicates(there, [statistic], block=block, seed=seed)[0]])
    return _ratio(name, points, drawn, margin)


def _percentile(name: str, first: Stage, second: Stage, values: Values, share: float, margin: float) -> Ratio:
    ratio = _ratio_of(f"{name} p{100 * share:.0f}", first, second, values, at_share(share), margin)
    fewest = min(sum(value is not None for value in values(stage)) for stage in (first, second))
    if ratio.verdict == "unknown" or fewest * (1.0 - share) >= LEAST_BEYOND:
        return ratio
    return ratio.model_copy(update={"verdict": "too few"})


def _dollars(name: str, first: Stage, second: Stage, values: Values, margin: float) -> Ratio:
    points, drawn = [], []
    for stage, seed in zip((first, second), _SEEDS, strict=True):
        price = stage.money.dollars_per_hour
        if price is None:
            return Ratio(
                name=name, first=Estimate(value=None), second=Estimate(value=None), ratio=Estimate(value=None), verdict="unknown"
            )
        there = [value for value in values(stage) if value is not None]
        factor = price / 3600 * 1e6 * stage.timeline.slice_seconds
        found = replicates(there, [mean], block=SLICE_BLOCK, seed=seed)[0]
        points.append(factor / mean(there) if any(there) else float("nan"))
        drawn.append([factor / value for value in found if value > 0])
    return _ratio(name, points, drawn, margin)


def _ratio(name: str, points: list[float], drawn: list[list[float]], margin: float) -> Ratio:
    first, second = (estimate(point, found) for point, found in zip(points, drawn, strict=True))
    if not first.value or second.value is None:
        return Ratio(name=name, first=first, second=second, ratio=Estimate(value=None), verdict="unknown")
    # Both runs are independent, so that each resample of one goes with one of the other.
    count = min(map(len, drawn))
    ratios = [b / a for a, b in zip(drawn[0][:count], drawn[1][:count], strict=True) if a > 0]
    found = estimate(points[1] / points[0], ratios)
    return Ratio(name=name, first=first, second=second, ratio=found, verdict=_verdict(found, margin))


def _verdict(ratio: Estimate, margin: float) -> Verdict:
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return "unknown"
    low, high = 1 / (1 + margin), 1 + margin
    if ratio.low > high:
        return "higher"
    if ratio.high < low:
        return "lower"
    return "equal" if low <= ratio.low and ratio.high <= high else "not told apart"


def print_comparison(found: Comparison, console: Console) -> None:
    """What was compared, what speaks against it, and the ratios."""
    for name, title, simulated in zip("AB", found.titles, found.simulated, strict=True):
        mark = " [SIMULATED]" if simulated is not None else ""
        console.print(Text(f"{name}{mark}  {title}"))
    for name, simulated in zip("AB", found.simulated, strict=True):
        if simulated is not None:
            console.print(
                Text(f"SIMULATED: {name} is simulated ({simulated}); nothing of it is a measurement", style="bold yellow")
            )
    for line in found.reservations:
        console.print(Text(f"NOT COMPARABLE: {line}", style="bold red"))
    for stage in found.stages:
        table = Table(box=None, pad_edge=False)
        for title in (stage.label, "A", "B", "B / A", ""):
            table.add_column(title, justify="left" if title in (stage.label, "") else "right")
        for ratio in stage.ratios:
            show = seconds if _is_time(ratio.name) else figure
            table.add_row(ratio.name, show(ratio.first), show(ratio.second), figure(ratio.ratio), ratio.verdict)
        table.add_row("of the roofline", *stage.roofline, "", "")
        console.print(table)
    word = "no figure differs" if found.is_equal else "some figures differ"
    console.print(Text(f"{word} by more than {found.margin:.0%} beyond its 95 % interval", style="bold"))
    for note in found.notes:
        console.print(Text(f"· {note}"))


def _is_time(name: str) -> bool:
    return name.startswith(("TTFT", "time", "end"))
