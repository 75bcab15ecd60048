"""Known-answer probes: whether endpoints answer rightly, and what asking them costs."""

from serving.observability.series.definition import counter, gauge

STATE = gauge(
    "serving_quality_state",
    "1 while an endpoint's answers to known-answer probes are inside its band, 0 while they are outside; absent while unknown.",
    "model", "pool", "target", "endpoint",
    over_gateways="each",
)  # fmt: skip
PROBES = counter(
    "serving_quality_probes",
    "Known-answer probes: `inside` or `outside` the band, `learned` for what later ones are compared with, `failed` without an "
    "answer, `not_askable` where the engine gives no log-probabilities.",
    "pool", "result",
)  # fmt: skip
TOKENS = counter(
    "serving_quality_tokens",
    "Tokens of known-answer probes, under the tenant `serving-quality`; they are in no other series.",
    "tenant", "model", "pool", "kind",
)  # fmt: skip
DOLLARS = counter(
    "serving_quality_dollars",
    "What known-answer probes cost by the prices of the settings, where there are any.",
    "tenant", "model", "pool", "kind",
)  # fmt: skip
