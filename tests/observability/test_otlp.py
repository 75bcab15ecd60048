"""The sender of spans: what a receiver gets, and how each failure is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.observability.otlp import OtlpHttp, SendFailed
from tests.doubles.certificates import server_context, write_pair
from tests.doubles.span_sink import OtlpReceiver


def otlp(endpoint: str, ca: Path | None = None) -> OtlpHttp:
    return OtlpHttp(endpoint, headers={"x-key": "secret"}, ca=ca, timeout_seconds=10.0)


def failure(sender: OtlpHttp) -> SendFailed:
    with pytest.raises(SendFailed) as caught:
        sender.send(b"")
    sender.close()
    return caught.value


def test_one_connection_carries_all_messages() -> None:
    with OtlpReceiver() as receiver:
        sender = otlp(receiver.url)
        for _ in range(3):
            sender.send(b"")
        sender.close()
        assert [headers["x-key"] for _, headers, _ in receiver.requests] == ["secret"] * 3
        assert receiver.connections == 1


def test_a_receiver_behind_tls_is_verified(tmp_path: Path) -> None:
    write_pair(tmp_path, "receiver", alternative="IP:127.0.0.1")
    with OtlpReceiver(server_context(tmp_path)) as receiver:
        sender = otlp(receiver.url, tmp_path / "cert")
        sender.send(b"")
        sender.close()
        assert len(receiver.requests) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in str(failure(otlp(receiver.url)))
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("status", "retriable"),
    [(429, True), (502, True), (503, True), (504, True), (302, False), (400, False), (401, False), (500, False)],
)
def test_only_what_otlp_says_is_sent_again(status: int, retriable: bool) -> None:
    with OtlpReceiver() as receiver:
        receiver.statuses = [status]
        found = failure(otlp(receiver.url))
        assert (str(found), found.retriable) == (f"it answered {status}", retriable)


def test_nobody_there_may_be_there_later() -> None:
    with OtlpReceiver() as receiver:
        url = receiver.url
    assert failure(otlp(url)).retriable


def test_a_sender_finds_a_receiver_that_came_back() -> None:
    with OtlpReceiver() as receiver:
        sender = otlp(receiver.url)
        sender.send(b"")
        receiver.drop_connections()
        assert failure(sender).retriable
        sender.send(b"")
        sender.close()


@pytest.mark.parametrize("wrong", ["missing", "no certificate"])
def test_authorities_that_cannot_be_used_are_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "ca.pem"
    if wrong != "missing":
        path.write_text(wrong)
    with pytest.raises(ConfigurationError, match=r"tracing\.ca: .*ca\.pem: "):
        otlp("https://collector:4318/v1/traces", path)
