"""The sums of one window as each place tells them, under the same keys, and what they differ by.

Keys: ("used", pool, kind), ("failed", model), ("tenant", tenant, kind), ("charged", tenant) and ("tokens", pool, kind) are
everywhere; ("bill", pool), ("idle", pool) and ("failed of", pool) are of no request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.tenancy.usage import UsageRow
from tests.chart.dashboards import RECORDING, panels, substituted
from tests.chart.hour import POOLS, SCRAPE_SECONDS
from tests.doubles.prometheus import NoPoints, Prometheus
from tests.doubles.running_gateway import MetricValues

Key = tuple[str, ...]
Sums = dict[Key, float]
KINDS = ("prompt", "cached", "output")
SERIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "used": ("serving_used_dollars_total", ("pool", "kind")),
    "failed": ("serving_failed_dollars_total", ("model",)),
    "failed of": ("serving_failed_dollars_total", ("pool",)),
    "tenant": ("serving_tenant_dollars_total", ("tenant", "kind")),
    "charged": ("serving_tenant_charged_dollars_total", ("tenant",)),
    "tokens": ("serving_tokens_total", ("pool", "kind")),
    "bill": ("serving_bill_dollars_total", ("pool",)),
}
PER_HOUR = {"used": ("pool", "kind"), "failed": ("pool",), "idle": ("pool",), "bill": ("pool",)}
"""Recorded as serving:PART_dollars_per_hour:rate5m."""
TOLERANCE = 0.01


def ledger_sums(rows: Iterable[UsageRow]) -> Sums:
    """Rows by tenant, model, pool and outcome."""
    sums: defaultdict[Key, float] = defaultdict(float)
    for row in rows:
        tenant, model, pool, _ = row.group
        for kind in KINDS:
            dollars, tokens = getattr(row, f"machine_{kind}_dollars"), getattr(row, f"{kind}_tokens")
            sums["used", pool, kind] += dollars or 0.0
            sums["tenant", tenant, kind] += dollars or 0.0
            sums["tokens", pool, kind] += tokens or 0.0
        sums["failed", model] += row.machine_failed_dollars or 0.0
        sums["charged", tenant] += row.dollars or 0.0
    return dict(sums)


def metric_sums(values: MetricValues) -> Sums:
    sums: defaultdict[Key, float] = defaultdict(float)
    for what, (series, labels) in SERIES.items():
        for sample in values.select(series):
            sums[what, *(sample.labels[label] for label in labels)] += sample.value
    return dict(sums)


def increases(server: Prometheus, begin: float, end: float) -> Sums:
    """What Prometheus says of the same series over the same window."""
    return {
        key: value
        for what, (series, labels) in SERIES.items()
        for key, value in _asked(
            server, what, f"sum by ({', '.join(labels)}) (increase({series}[{end - begin:.0f}s]))", labels, end
        ).items()
    }


def in_rules(server: Prometheus, begin: float, end: float) -> Sums:
    """Dollars of the window by what the shipped rules recorded in it, each for a step of their evaluation."""
    found: Sums = {}
    for part, labels in PER_HOUR.items():
        query = f"sum by ({', '.join(labels)}) (sum_over_time(serving:{part}_dollars_per_hour:rate5m[{end - begin:.0f}s]))"
        sums = _asked(server, "failed of" if part == "failed" else part, f"{query} * {SCRAPE_SECONDS} / 3600", labels, end)
        found |= sums
    return found


def _asked(server: Prometheus, what: str, query: str, labels: Iterable[str], at: float) -> Sums:
    return {(what, *(point[label] for label in labels)): value for point, value in server.points(query, at)}


def over_window(folder: Path, seconds: float) -> Path:
    """The shipped rules of money with their five minutes replaced by the whole window, under names of their own."""
    text = RECORDING.read_text()
    money = text[text.index("groups:") : text.index("  - name: serving-energy")]
    path = folder / "window.yaml"
    path.write_text(_widened(money, seconds).replace("serving:pool:info", "serving:pool_window:info"))
    return path


def _widened(text: str, seconds: float) -> str:
    """`rate5m` is in the names of what is recorded over five minutes."""
    for name in ("queued_requests:now", "cache_hit_ratio:rate30m", "cache_hit_ratio:rate1d", "times_cheapest"):
        text = text.replace(name, f"{name}_window")
    return text.replace("rate5m", "rate_window").replace("[5m", f"[{seconds:.0f}s")


def panel_values(server: Prometheus, board: str, title: str, legend: str, *, at: float, seconds: float) -> Sums:
    """What a panel shows at `at` when its range is the window, by the label of its series."""
    (expression,) = [
        target["expr"]
        for panel in panels(board)
        if panel["title"] == title
        for target in panel["targets"]
        if target["legendFormat"] == legend
    ]
    query = _widened(substituted(expression, window=f"{seconds:.0f}s"), seconds)
    try:
        points = server.points(query, at)
    except NoPoints:
        return {}
    return {(labels.get("target", labels.get("tenant", "")),): value for labels, value in points}


def panels_by_ledger(sums: Sums, hours: float) -> dict[tuple[str, str, str], Sums]:
    """What the panels have to show, reckoned from the ledger, the prices and the time; each pool is a target of its own."""
    bills = {name: pool.dollars_per_hour for name, pool in POOLS.items()}
    targets = {name: pool.target for name, pool in POOLS.items()}
    tokens = {name: {kind: sums.get(("tokens", name, kind), 0.0) / 1e6 for kind in KINDS} for name in POOLS}
    used = {name: {kind: sums.get(("used", name, kind), 0.0) for kind in KINDS} for name in POOLS}
    total = {name: each["prompt"] + each["output"] for name, each in tokens.items()}
    output = {name: each["output"] for name, each in tokens.items()}

    def by_target(values: Mapping[str, float], divided: Mapping[str, float] | None = None) -> Sums:
        """Without those that divide by nothing."""
        return {
            (targets[name],): value / (divided[name] if divided else 1.0)
            for name, value in values.items()
            if divided is None or divided[name]
        }

    bill_of_window = {name: dollars * hours for name, dollars in bills.items()}
    dear = by_target(bill_of_window, total)
    tenants = {key[1] for key in sums if key[0] == "tenant"}
    spent = {(name,): sum(sums["tenant", name, kind] for kind in KINDS) for name in tenants}
    hourly = {key: value / hours for key, value in spent.items()}
    computed = {name: each["prompt"] - each["cached"] for name, each in tokens.items()}
    kinds = {"computed prompt": ("prompt", computed), "output": ("output", output)}
    kinds["cached prompt"] = ("cached", {name: each["cached"] for name, each in tokens.items()})
    return {
        ("overview", "Bill", "an hour"): {("",): sum(bills.values())},
        ("overview", "A million tokens", "a million"): {("",): sum(bill_of_window.values()) / sum(total.values())},
        ("overview", "Dollars of a million tokens", "{{target}}"): dear,
        ("targets", "Dollars of a million tokens", "{{target}}"): dear,
        ("targets", "Dollars of a million output tokens now", "{{target}}"): by_target(bill_of_window, output),
        ("targets", "Where an hour's dollars go", "used {{target}}"): by_target(
            {name: sum(each.values()) / hours for name, each in used.items()}
        ),
        ("targets", "Utilisation", "{{target}}"): by_target(
            {name: sum(each.values()) for name, each in used.items()}, bill_of_window
        ),
        **{
            ("targets", "Dollars of a million tokens by kind", f"{name} {{{{target}}}}"): by_target(
                {pool: used[pool][kind] for pool in POOLS}, divided
            )
            for name, (kind, divided) in kinds.items()
        },
        ("tenants", "Tenants", "machine dollars an hour"): hourly,
        ("tenants", "Dollars an hour", "{{tenant}}"): hourly,
        ("tenants", "Spent in the time shown", "{{tenant}}"): spent,
        ("tenants", "Charged for a dollar used", "{{tenant}}"): {
            (name,): sums["charged", name] / spent[name,] for name in tenants
        },
    }


class Compared:
    """Values that should be the same, by where they are from. Nothing and 0 are the same."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Key, float, float]] = []

    def add(self, place: str, wanted: Sums, found: Sums) -> None:
        for key in sorted(wanted.keys() | found.keys()):
            pair = wanted.get(key, 0.0), found.get(key, 0.0)
            if pair != (0.0, 0.0):
                self._found.append((place, key, *pair))

    @staticmethod
    def _off(wanted: float, found: float) -> float:
        return abs(found / wanted - 1) if wanted else float("inf")

    def wrong(self) -> list[str]:
        return [
            f"{place}, {' '.join(key)}: {found:.6f} where the truth is {wanted:.6f}"
            for place, key, wanted, found in self._found
            if self._off(wanted, found) > TOLERANCE
        ]

    def table(self) -> str:
        """All values, and the widest difference of each place."""
        lines = [
            f"{place:<70} {' '.join(key):<32} {wanted:14.6f} {found:14.6f} {100 * self._off(wanted, found):8.3f} %"
            for place, key, wanted, found in self._found
        ]
        worst: dict[str, float] = {}
        for place, _, wanted, found in self._found:
            worst[place] = max(worst.get(place, 0.0), self._off(wanted, found))
        return "\n".join(["", *lines, "", *(f"{place:<70} {100 * off:8.3f} % at most" for place, off in worst.items())])
