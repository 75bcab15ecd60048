"""HTTP answers that end: within a time in all, whatever trickles in, and within a number of bytes."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from serving.core.clock import monotonic

BLOCK_BYTES = 1 << 16
_LEAST_SECONDS = 0.001


class TooMuch(Exception):
    """More bytes than are taken."""


class _Bounded(io.RawIOBase):
    """A socket's bytes, until `deadline` (monotonic seconds) and at most so many.

    The socket's own timeout starts anew with each byte, so one that sends a byte now and then would never end.
    """

    def __init__(self, sock: socket.socket, deadline: float, most_bytes: int) -> None:
        self._sock = sock
        self._raw: Any = sock.makefile("rb", buffering=0)
        """Keeps the socket open behind a connection that is closed already."""
        self._deadline = deadline
        self._left_bytes = most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Raises: TimeoutError, TooMuch."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(max(left, _LEAST_SECONDS))
        count: int | None = self._raw.readinto(buffer)
        self._left_bytes -= count or 0
        if self._left_bytes < 0:
            raise TooMuch
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_connection(
    scheme: str, host: str, port: int | None, timeout_seconds: float, most_bytes: int
) -> http.client.HTTPConnection:
    """Not connected yet; the time of its one answer begins now."""
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout_seconds)
    deadline = monotonic() + timeout_seconds

    class Answer(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *given: Any, **named: Any) -> None:
            super().__init__(sock, *given, **named)
            self.fp.close()
            self.fp = io.BufferedReader(_Bounded(sock, deadline, most_bytes))

    connection.response_class = Answer
    return connection


def read_whole(answer: http.client.HTTPResponse) -> bytes:
    """In blocks, since one read of all would make room for whatever length is announced.

    Raises: TimeoutError, TooMuch, and HTTPException for a body that is shorter than announced.
    """
    blocks = []
    while block := answer.read(BLOCK_BYTES):
        blocks.append(block)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(blocks)
