"""The time that a request gives itself is a number of seconds, and no more than the gateway gives it."""

from __future__ import annotations

import pytest

from serving.core.deadlines import ends_of
from serving.core.errors import InvalidRequest


@pytest.mark.parametrize(("asked", "ends"), [(b"5", 105.0), (b" 2.5 ", 102.5), (b"0.001", 100.001), (b"900", 160.0)])
def test_a_number_of_seconds_from_the_arrival(asked: bytes, ends: float) -> None:
    assert ends_of(asked, 100.0, 60.0) == pytest.approx(ends)


@pytest.mark.parametrize("asked", [b"", b"0", b"0.0", b"-1", b"1e3", b"nan", b"inf", b"5s", b"1 2", "５".encode(), b"1_0"])
def test_anything_else_is_refused(asked: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ends_of(asked, 100.0, 60.0)
    assert caught.value.error_code == "invalid_request_timeout"
