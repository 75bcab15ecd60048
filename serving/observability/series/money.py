"""Money and energy, as docs/cost.md defines them. What has no price has no dollars, which is not 0."""

from serving.observability.series.definition import counter, gauge

ACCELERATORS = gauge(
    "serving_accelerators",
    "Accelerators of a pool's known endpoints, ready or not.",
    "model", "pool", "target",
    over_gateways="max",
)  # fmt: skip
ACCELERATORS_PER_NODE = gauge(
    "serving_accelerators_per_node",
    "Accelerators of a whole node of the pool's target; absent where neither the settings nor the catalog know the target.",
    "model", "pool", "target",
    over_gateways="max",
)  # fmt: skip
ACCELERATOR_PRICE = gauge(
    "serving_accelerator_price_dollars_per_hour",
    "What one of them costs: the pool's own price, else its target's.",
    "model", "pool", "target",
    over_gateways="max",
)  # fmt: skip
BILL_DOLLARS = counter(
    "serving_bill_dollars",
    "Price x accelerators x time, of the whole pool, while this gateway was there to see it.",
    "model", "pool", "target",
    over_gateways="max",
)  # fmt: skip
USED_DOLLARS = counter(
    "serving_used_dollars",
    "The share of the bill that this gateway's answered requests used, by kind of token: `prompt` that was computed, "
    "`cached`, `output`.",
    "model", "pool", "target", "kind",
)  # fmt: skip
FAILED_DOLLARS = counter(
    "serving_failed_dollars",
    "The share of the bill that went into attempts which gave no answer. What is left of the bill was idle.",
    "model", "pool", "target",
)  # fmt: skip
TENANT_DOLLARS = counter(
    "serving_tenant_dollars",
    "A tenant's share of serving_used_dollars: what its answers cost on the machines, not what it is charged.",
    "tenant", "kind",
)  # fmt: skip
TENANT_CHARGED = counter(
    "serving_tenant_charged_dollars",
    "What a tenant is charged by the prices of `prices`; there only where some are set.",
    "tenant",
)
POWER = gauge(
    "serving_power_watts",
    "What the accelerators of a pool's known endpoints draw: `estimated` is their highest rated power.",
    "model", "pool", "target", "source",
    over_gateways="max",
)  # fmt: skip
