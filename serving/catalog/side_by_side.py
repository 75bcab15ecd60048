"""One model on many targets: a row for each profile that runs it, and a planned one where no profile does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serving.catalog.load import nearest
from serving.catalog.model import Catalog, Model, Target
from serving.catalog.plan import Plan, Wishes, plan_model, plan_profile
from serving.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared. Figures of a node are those of all engines that it runs."""

    target: str
    profile: str | None
    plan: Plan

    @property
    def name(self) -> str:
        return self.profile or f"{self.target} (planned)"

    @property
    def verdict(self) -> str:
        plan = self.plan
        if plan.problems:
            return plan.problems[0].partition(": ")[2]
        if not plan.used.fits:
            return f"lacks {plan.used.device.missing_bytes / 1e9:.1f} GB on each accelerator; would fit: {plan.remedies[0]}"
        return "runs"

    @property
    def bound_per_node(self) -> float | None:
        """Output tokens per second of a node that nothing but the hardware limits."""
        used = self.plan.used
        if not self.plan.runs or used.bound is None:
            return None
        return used.bound.output_tokens_per_second * used.engines_per_node / used.nodes_per_engine

    @property
    def throughput_per_node(self) -> float | None:
        used, throughput = self.plan.used, self.plan.throughput
        if not self.plan.runs or throughput is None:
            return None
        return throughput.output_tokens_per_second * used.engines_per_node / used.nodes_per_engine

    @property
    def dollars(self) -> float | None:
        return self.plan.dollars_per_million_output_tokens if self.plan.runs else None


def side_by_side(catalog: Catalog, model: Model, targets: Iterable[Target], wishes: Wishes | None = None) -> list[Row]:
    """Rows in the order of dollars for a million output tokens, then those without a price, then what does not run."""
    rows = []
    for target in targets:
        running = [p for p in catalog.profiles.values() if p.target == target.name and catalog.models[p.model] is model]
        rows += [Row(target.name, profile.name, plan_profile(catalog, profile, wishes)) for profile in running]
        if not running:
            rows.append(Row(target.name, None, plan_model(catalog, model, target, wishes)))
    return sorted(rows, key=lambda row: (not row.plan.runs, row.dollars is None, row.dollars or 0.0, row.name))


def chosen_targets(catalog: Catalog, names: str) -> list[Target]:
    """Those of a list with commas, or `all`. Raises: ConfigurationError: one is not in the catalog."""
    if not catalog.targets:
        raise ConfigurationError("--catalog: has no targets to compare; write targets/NAME.yaml")
    if names.strip() == "all":
        return list(catalog.targets.values())
    chosen: dict[str, Target] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in catalog.targets:
            known = ", ".join(sorted(catalog.targets))
            raise ConfigurationError(
                f"--targets: {name!r} is not in the catalog{nearest(name, catalog.targets)}; there are: {known}; or all, alone"
            )
        chosen[name] = catalog.targets[name]
    if not chosen:
        raise ConfigurationError("--targets: names none; give all, or names with commas between them")
    return list(chosen.values())
