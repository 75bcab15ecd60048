"""Addresses that cannot be asked, and answers that would not end."""

from __future__ import annotations

import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from serving.core.clock import monotonic
from serving.core.errors import ConfigurationError
from serving.gate.address import Address, Garbage, Silent

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://127.0.0.1:http", "Port could not be cast"),
        ("http://127.0.0.1:0", "Port out of range"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://", "must be like http"),
        ("http://a..b", "is no name of a machine"),
        ("http://engine:8000/v1 x", "without spaces"),
        ("http://engine:8000/\u00e9", "printable ASCII"),
        ("http://engine:8000/v1?model=x", "must end with its path"),
    ],
)
def test_what_is_no_address_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Address(url)


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@engine:8000", "http://hunter2@engine", "ftp://me:hunter2@e", "http://me:hunter2@[::1"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must have no user and no password") as refused:
        Address(url)
    assert "hunter2" not in str(refused.value)


def test_a_secret_that_fits_in_no_header_is_refused_and_not_repeated() -> None:
    for secret in ("hunter2\r\nx: y", "hunter2\u2026"):
        with pytest.raises(ConfigurationError, match="--secret: must be one line of ASCII") as refused:
            Address("http://engine", secret=secret)
        assert "hunter2" not in str(refused.value)


def test_a_time_that_is_none_is_refused() -> None:
    for seconds in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(ConfigurationError, match="--timeout: must be above 0"):
            Address("http://engine", timeout_seconds=seconds)


@contextmanager
def serves(*parts: bytes, then: bytes = b"", pause_seconds: float = 0.0) -> Iterator[str]:
    """The address of a server that sends `parts`, and then `then` again and again until it is left."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                _send(connection, parts, then, over, pause_seconds)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _send(connection: socket.socket, parts: tuple[bytes, ...], then: bytes, over: threading.Event, pause_seconds: float) -> None:
    try:
        connection.recv(65536)
        for part in parts:
            connection.sendall(part)
        while then and not over.wait(pause_seconds):
            connection.sendall(then)
    except OSError:
        return  # the other side has gone


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "then"),
    [
        ((HEAD + b"Content-Length: 1000\r\n\r\n",), b" "),
        ((HEAD + b"Connection: close\r\n\r\n",), b" "),
        ((CHUNKED,), b"1\r\n \r\n"),
        ((CHUNKED,), b"0"),
        ((b"HTTP/1.1 200 OK\r\nx: ",), b"y"),
        ((b"HTTP/1.1 2",), b"0"),
    ],
)
def test_an_answer_that_trickles_ends_with_the_time(parts: tuple[bytes, ...], then: bytes) -> None:
    with serves(*parts, then=then, pause_seconds=0.02) as url:
        began = monotonic()
        with pytest.raises(Silent, match=r"no whole answer within 0\.3 s"):
            Address(url, timeout_seconds=0.3, sleep=lambda seconds: None).get("/x")
        assert monotonic() - began < 10


@pytest.mark.parametrize(
    ("parts", "then"),
    [
        ((HEAD + b"Connection: close\r\n\r\n",), b"x" * 65536),
        ((CHUNKED,), b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        ((HEAD + b"Content-Length: 1000000000000000\r\n\r\n",), b"x" * 65536),
        ((b"HTTP/1.1 500 x\r\n\r\n",), b"x" * 65536),
    ],
)
def test_an_answer_without_an_end_takes_no_memory(parts: tuple[bytes, ...], then: bytes) -> None:
    with serves(*parts, then=then) as url:
        tracemalloc.start()
        try:
            with pytest.raises(Garbage, match="the answer is larger than 1048576 bytes"):
                Address(url, most_bytes=MEBIBYTE, sleep=lambda seconds: None).get("/x")
            assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
        finally:
            tracemalloc.stop()


BODY = json.dumps({"a": 1}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
        HEAD + b"Connection: close\r\n\r\n" + BODY,
        CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    ],
)
def test_whole_answers_are_read_however_they_are_framed(answer: bytes) -> None:
    with serves(answer) as url:
        assert Address(url).get("/x") == {"a": 1}


def test_one_that_is_cut_off_is_no_answer() -> None:
    for answer in (HEAD + b"Content-Length: 100\r\n\r\n" + BODY, CHUNKED + b"64\r\n" + BODY):
        waits: list[float] = []
        sleep: Callable[[float], None] = waits.append
        with serves(answer) as url, pytest.raises(Silent, match="no answer, twice"):
            Address(url, sleep=sleep).get("/x")
        assert len(waits) == 1
