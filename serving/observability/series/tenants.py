"""Tenants: their requests, tokens and limits. Their dollars are in `money`."""

from serving.observability.series.definition import counter, gauge

TENANT_REQUESTS = counter("serving_tenant_requests", "Requests that have ended, by outcome.", "tenant", "outcome")
TENANT_TOKENS = counter(
    "serving_tenant_tokens", "Tokens as the engines counted them; `prompt` includes `cached`.", "tenant", "kind"
)
LIMIT = gauge(
    "serving_tenant_limit",
    "A tenant's limit as it is set: requests and tokens a minute, concurrency, dollars a day.",
    "tenant", "limit",
    over_gateways="max",
)  # fmt: skip
LIMIT_LEFT = gauge(
    "serving_limit_left",
    "What a tenant has left of a limit, as far as this gateway knows: it counts what itself let through.",
    "tenant", "limit",
    over_gateways="each",
)  # fmt: skip
LIMIT_REFUSALS = counter(
    "serving_limit_refusals",
    "Requests refused since their tenant had used up a limit: `requests`, `tokens`, `concurrency` or `dollars`.",
    "tenant", "limit",
)  # fmt: skip
LIMIT_STORE_UP = gauge("serving_limit_store_up", "1 while the store of the limits answers.", over_gateways="each")
LIMIT_STORE_FAILURES = counter(
    "serving_limit_store_failures", "How often the store of the limits was lost: by a `timeout` or an `error`.", "reason"
)
DATABASE_UP = gauge(
    "serving_database_up", "1 while the database of keys and ledger answers, 0 while it is away.", over_gateways="each"
)
KEYS_AGE = gauge(
    "serving_keys_age_seconds",
    "How long ago the keys were last known to be those of the database; the age of the last known ones while it is away.",
    over_gateways="each",
)
KEYS_IGNORED = gauge(
    "serving_keys_ignored",
    "Keys that open nothing: of a tenant that the settings do not list, or hashed with another secret.",
    "reason",
    over_gateways="max",
)
LEDGER_WAITING = gauge("serving_ledger_waiting_records", "Records of ended requests that are only in memory.")
LEDGER_RECORDS = counter(
    "serving_ledger_records",
    "Records of ended requests: written to the database, or spilled to a file until it takes them; and never written: "
    "dropped since too many waited, refused by the database, lost_at_stop.",
    "result",
)
