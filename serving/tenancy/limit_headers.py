"""What a limited tenant is told of its limits with each answer, in the words of the API that it speaks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from serving.core.clock import wall_seconds
from serving.core.context import Headers
from serving.core.routes import Dialect
from serving.tenancy.quotas import Limits, Standing


def limit_fields(limits: Limits, standing: Standing, dialect: Dialect) -> dict[str, str]:
    """Limit, what is left and when all of it is there again, of requests and tokens, as far as they are limited."""
    fields: dict[str, str] = {}
    known = (
        ("requests", limits.requests, standing.requests, standing.requests_reset_seconds),
        ("tokens", limits.tokens, standing.tokens, standing.tokens_reset_seconds),
    )
    for kind, most, left, reset_seconds in known:
        if most is None:
            continue
        if dialect.name == "anthropic":
            at = datetime.fromtimestamp(wall_seconds(), UTC) + timedelta(seconds=reset_seconds)
            told = (str(most), str(left), at.strftime("%Y-%m-%dT%H:%M:%SZ"))
            names = (f"anthropic-ratelimit-{kind}-{what}" for what in ("limit", "remaining", "reset"))
        else:
            told = (str(most), str(left), _duration(reset_seconds))
            names = (f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset"))
        fields.update(zip(names, told, strict=True))
    return fields


def limit_headers(limits: Limits, standing: Standing, dialect: Dialect) -> Headers:
    fields = limit_fields(limits, standing, dialect)
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]


def _duration(seconds: float) -> str:
    """As OpenAI writes them: 1m0.5s, 12s, 120ms."""
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    rest = f"{milliseconds / 1000:g}s"
    return f"{minutes}m{rest}" if minutes else rest
