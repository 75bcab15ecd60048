"""Words that queries share: the variables of the dashboards as label matchers, and the sums and quantiles of them."""

from __future__ import annotations

from serving.core import outcomes

MODEL = 'namespace=~"$namespace", model=~"$model"'
POOL = f'{MODEL}, pool=~"$pool"'
TARGET = f'{POOL}, target=~"$target"'
ENGINE = 'namespace=~"$namespace", model_name=~"$model", pool=~"$pool", target=~"$target"'
"""Of vLLM's own series: its model is `model_name`, and the scrape's configuration adds pool and target."""
TENANT = 'namespace=~"$namespace", tenant=~"$tenant"'
POOL_LABELS = "namespace, model, pool, target"
"""What money, tokens and power are kept by."""
OURS = "|".join(outcomes.OURS)
"""Outcomes that are the fault of this side, not of who asked."""
POOL_INFO = "serving:pool:info"
"""Recorded: 1 for the target of each pool, `mixed` where a pool has several."""


def rate(series: str, matchers: str = "", window: str = "$__rate_interval") -> str:
    return f"rate({series}{{{matchers}}}[{window}])"


def summed(labels: str, expression: str) -> str:
    return f"sum by ({labels}) ({expression})"


def with_target(labels: str, expression: str) -> str:
    """A pool's figure with the target that it runs on. `labels` are further ones that the figure keeps, as `le`."""
    kept = ", ".join(filter(None, ("namespace, model, pool", labels)))
    info = f'{POOL_INFO}{{target=~"$target"}}'
    return f"{summed(kept, expression)} * on (namespace, model, pool) group_left (target) {info}"


def quantile(share: float, series: str, by: str) -> str:
    """Of one of the gateway's histograms, by labels of a pool and its target."""
    buckets = with_target("le", rate(f"{series}_bucket", POOL))
    return f"histogram_quantile({share}, {summed(f'le, {by}', buckets)})"


def engine_quantile(share: float, series: str, by: str) -> str:
    """Of one of vLLM's histograms."""
    return f"histogram_quantile({share}, {summed(f'le, {by}', rate(f'{series}_bucket', ENGINE))})"


def mean(series: str, matchers: str, by: str) -> str:
    """Of any histogram."""
    return f"{summed(by, rate(f'{series}_sum', matchers))} / {summed(by, rate(f'{series}_count', matchers))}"


def mean_of_all(series: str, matchers: str) -> str:
    return f"sum({rate(f'{series}_sum', matchers)}) / (sum({rate(f'{series}_count', matchers)}) > 0)"
