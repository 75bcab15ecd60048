"""What a limited tenant is told of its limits with each answer, in the words of the API that it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from serving.core.clock import wall_seconds
from serving.core.context import Headers
from serving.core.routes import Dialect
from serving.tenancy.quotas import Limits, Standing


def limit_headers(limits: Limits, standing: Standing, dialect: Dialect) -> Headers:
    """Limit, what is left and when all of it is there again, of requests and tokens, as far as they are limited."""
    is_anthropic = dialect.name == "anthropic"
    headers: Headers = []
    if limits.requests is not None:
        most, left, reset = _lines("requests", limits.requests, is_anthropic)
        moment = _moment(standing.requests_reset_seconds) if is_anthropic else _duration(standing.requests_reset_seconds)
        headers += (most, (left, b"%d" % standing.requests), (reset, moment))
    if limits.tokens is not None:
        most, left, reset = _lines("tokens", limits.tokens, is_anthropic)
        moment = _moment(standing.tokens_reset_seconds) if is_anthropic else _duration(standing.tokens_reset_seconds)
        headers += (most, (left, b"%d" % standing.tokens), (reset, moment))
    return headers


def limit_fields(limits: Limits, standing: Standing, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """The same, as errors carry them."""
    for name, value in limit_headers(limits, standing, dialect):
        yield name.decode("ascii"), value.decode("ascii")


@lru_cache(maxsize=2048)
def _lines(kind: str, most: int, is_anthropic: bool) -> tuple[tuple[bytes, bytes], bytes, bytes]:
    """The line that tells the limit, and the names of the two others."""
    pattern = f"anthropic-ratelimit-{kind}-{{}}" if is_anthropic else f"x-ratelimit-{{}}-{kind}"
    limit, left, reset = (pattern.format(word).encode("ascii") for word in ("limit", "remaining", "reset"))
    return (limit, b"%d" % most), left, reset


def _moment(seconds: float) -> bytes:
    """As Anthropic writes them: the time of day at which it is."""
    at = datetime.fromtimestamp(wall_seconds(), UTC) + timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ").encode("ascii")


def _duration(seconds: float) -> bytes:
    """As OpenAI writes them: 1m0.5s, 12s, 120ms."""
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, milliseconds = divmod(milliseconds, 60_000)
    rest = f"{milliseconds / 1000:g}s".encode("ascii")
    return b"%dm%s" % (minutes, rest) if minutes else rest
