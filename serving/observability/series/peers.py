"""What gateways tell each other; there only where they are set to."""

from serving.observability.series.definition import counter, gauge

PEERS = gauge("serving_peers", "Other gateways that were heard lately.", over_gateways="each")
NEWS_BYTES = counter(
    "serving_peer_news_bytes",
    "Of news between gateways: `sent`, `received`, `dropped` for want of room in their period, or `refused`.",
    "result",
)  # fmt: skip
NEWS_REFUSED_BYTES = counter(
    "serving_peer_news_refused_bytes",
    "News that were not believed, by what was wrong with them.",
    "reason",
)  # fmt: skip
PREFIXES = counter(
    "serving_peer_prefixes",
    "News of cached prompts: `told`, `dropped`, `taken`, or of an `unknown_beginning` and so of no use.",
    "result",
)  # fmt: skip
