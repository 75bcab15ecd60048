"""Routing: what was decided and predicted, what came of it, and what was tried again."""

from serving.observability.series.definition import TTFT_SECONDS, counter, gauge, histogram

RETRIES = counter("serving_retries", "Attempts that followed a failed one of the same request.")
RETRIES_DENIED = counter(
    "serving_retries_denied", "Failed attempts that another engine might have mended and that were final.", "reason"
)
DECISIONS = counter("serving_routing_decisions", "Endpoints chosen by cost.", "reason")
PREDICTED_TTFT = histogram(
    "serving_predicted_time_to_first_token_seconds",
    "What routing expected of streams that it had a choice for.",
    TTFT_SECONDS,
    "model", "pool",
)  # fmt: skip
TTFT_ERROR = histogram(
    "serving_time_to_first_token_error_seconds",
    "By how much that was wrong, up or down, from when the engine was asked.",
    TTFT_SECONDS,
    "model", "pool",
)  # fmt: skip
CACHED_PREDICTED = counter(
    "serving_predicted_cached_tokens", "Prompt tokens that routing expected to be cached.", "model", "pool"
)
CACHED_OBSERVED = counter("serving_predicted_cached_tokens_observed", "Those that were, of the same requests.", "model", "pool")
PREFIX_INDEX_BYTES = gauge("serving_prefix_index_bytes", "Memory of what is known about cached prompts.", over_gateways="each")
