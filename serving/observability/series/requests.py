"""Requests: how they ended, how long they took, what was in them, and whether they met their objectives."""

from serving.observability.series.definition import (
    INTER_CHUNK_SECONDS,
    REQUEST_SECONDS,
    TTFT_SECONDS,
    counter,
    gauge,
    histogram,
)

REQUESTS = counter("serving_requests", "Requests that have ended, by outcome.", "model", "route", "outcome")
REJECTIONS = counter("serving_rejections", "Requests refused before any engine saw them, by the error's code.", "reason")
OTHER_MODELS = counter(
    "serving_other_model_answers",
    "Answers of another model than the one that was named: by an alias, or as a fallback.",
    "asked", "served", "reason",
)  # fmt: skip
TOKENS = counter(
    "serving_tokens", "Tokens as the engines counted them; `prompt` includes `cached`.", "model", "pool", "target", "kind"
)
TOKENS_ESTIMATED = counter(
    "serving_tokens_estimated",
    "The part of serving_tokens that is an estimate, since the answer ended before the engine said its usage.",
    "model", "pool", "target", "kind",
)  # fmt: skip
USAGE_UNKNOWN = counter("serving_usage_unknown", "Answers whose token counts the engine did not say.", "model", "pool")
AUDIO_SECONDS = counter(
    "serving_audio_seconds", "Seconds of sound in transcriptions whose engines tell no tokens.", "model", "pool"
)
TTFT = histogram("serving_time_to_first_token_seconds", "Arrival to the first chunk of a stream.", TTFT_SECONDS, "model", "pool")
INTER_CHUNK = histogram(
    "serving_inter_chunk_seconds",
    "Time between chunks of a stream as the gateway sees them.",
    INTER_CHUNK_SECONDS,
    "model", "pool",
)  # fmt: skip
TPOT = histogram(
    "serving_time_per_output_token_seconds",
    "(last chunk - first chunk) / (output tokens - 1) of a stream.",
    INTER_CHUNK_SECONDS,
    "model", "pool",
)  # fmt: skip
DURATION = histogram(
    "serving_request_duration_seconds", "Arrival to the last byte of whole answers.", REQUEST_SECONDS, "model", "pool"
)
QUEUE_SECONDS = histogram(
    "serving_queue_seconds", "How long requests that had to wait for a slot waited until they had one.", TTFT_SECONDS, "model"
)
QUEUED = gauge(
    "serving_queued_requests",
    "Requests that wait in this gateway for a slot; a model's are divided among its pools by their slots.",
    "model", "pool",
)  # fmt: skip
SLOTS = gauge("serving_slots", "Slots of a model's endpoints, for this gateway.", "model")
SLOTS_IN_USE = gauge("serving_slots_in_use", "Slots that have a request.", "model")
OBJECTIVE_SECONDS = gauge(
    "serving_objective_seconds",
    "What a class of requests is to keep, as it is set: `ttft` to the first token, `inter_chunk` between two chunks.",
    "objective", "class",
    over_gateways="max",
)  # fmt: skip
OBJECTIVE_REQUESTS = counter(
    "serving_objective_requests",
    "Streams, by whether they met the objective of their class: the time to the first token, and the mean time between chunks. "
    "One that ended without a first token and took longer than that has missed it; an earlier end says nothing.",
    "model", "pool", "class", "objective", "met",
)  # fmt: skip
