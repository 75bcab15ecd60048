"""What a limited tenant is told, in the words of its API."""

from __future__ import annotations

import pytest

from serving.core.routes import ANTHROPIC, OPENAI
from serving.tenancy import limit_headers
from serving.tenancy.quotas import Limits, Standing

STANDING = Standing(3, 61.5, 70, 0.25)


def test_openais_headers_tell_durations() -> None:
    fields = dict(limit_headers.limit_fields(Limits(requests=10, tokens=100), STANDING, OPENAI))
    assert fields == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "1m1.5s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "70",
        "x-ratelimit-reset-tokens": "250ms",
    }


def test_anthropics_headers_tell_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_headers, "wall_seconds", lambda: 1_800_000_000.0)
    fields = dict(limit_headers.limit_fields(Limits(requests=10), STANDING, ANTHROPIC))
    assert fields == {
        "anthropic-ratelimit-requests-limit": "10",
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:01:01Z",
    }


@pytest.mark.parametrize(("seconds", "text"), [(0.0, b"0s"), (0.0004, b"0s"), (12.0, b"12s"), (60.0, b"1m0s"), (0.9999, b"1s")])
def test_durations(seconds: float, text: bytes) -> None:
    assert limit_headers._duration(seconds) == text
