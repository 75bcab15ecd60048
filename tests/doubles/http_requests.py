"""An incremental parser of HTTP/1.1 requests that keeps every byte as it came and forgives nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class MalformedRequest(Exception):
    """The bytes are not one unambiguous request."""


_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@dataclass
class ParsedRequest:
    """A request; `raw_head` and `raw_body` are exactly the bytes received, chunk framing included."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]
    raw_head: bytes
    raw_body: bytearray = field(default_factory=bytearray)
    body: bytearray = field(default_factory=bytearray)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return ", ".join(values) if values else None

    @property
    def json(self) -> Any:
        return json.loads(bytes(self.body))

    @property
    def keeps_alive(self) -> bool:
        return self.version == "HTTP/1.1" and "close" not in (self.header("connection") or "").lower()

    @property
    def body_length(self) -> int | None:
        """Bytes announced by Content-Length, or None for a chunked body."""
        codings, lengths = self.all("transfer-encoding"), self.all("content-length")
        if codings and lengths:
            raise MalformedRequest("both Transfer-Encoding and Content-Length")
        if codings:
            if [coding.lower() for coding in codings] != ["chunked"]:
                raise MalformedRequest(f"Transfer-Encoding: {codings}")
            return None
        if len(lengths) > 1:
            raise MalformedRequest("more than one Content-Length")
        if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
            raise MalformedRequest(f"Content-Length: {lengths[0]}")
        return int(lengths[0]) if lengths else 0


def parse_head(raw: bytes) -> ParsedRequest:
    lines = raw[:-4].split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not parts[0] or not set(parts[0]) <= _TOKEN:
        raise MalformedRequest(f"request line {lines[0]!r}")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN or any(byte in value for byte in b"\r\n\0"):
            raise MalformedRequest(f"header line {line!r}")
        headers.append((name.decode("ascii"), value.strip(b" \t").decode("latin-1")))
    method, target, version = (part.decode("latin-1") for part in parts)
    return ParsedRequest(method, target, version, tuple(headers), raw)


class RequestParser:
    """Fed with bytes; `head` is set once the head is there, `take()` returns a request once it is complete."""

    def __init__(self) -> None:
        self.head: ParsedRequest | None = None
        self._buffer = bytearray()
        self._rest_bytes = 0
        self._step = "head"

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._advance():
            pass

    @property
    def pending_bytes(self) -> bytes:
        return bytes(self._buffer)

    @property
    def is_complete(self) -> bool:
        return self._step == "complete"

    def take(self) -> ParsedRequest | None:
        if self._step != "complete":
            return None
        request, self.head, self._step = self.head, None, "head"
        while self._advance():
            pass
        return request

    def _advance(self) -> bool:
        match self._step:
            case "head":
                return self._read_head()
            case "body" | "chunk":
                return self._read_data()
            case "chunk-size":
                return self._read_chunk_size()
            case "chunk-end":
                return self._read_chunk_end()
            case "trailers":
                return self._read_trailer()
        return False

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if b"\n\n" in self._buffer:
                raise MalformedRequest("bare line feeds")
            return False
        raw = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        head = parse_head(raw)
        length = head.body_length
        self.head = head
        self._rest_bytes = length or 0
        self._step = "chunk-size" if length is None else "body" if length else "complete"
        return True

    def _read_data(self) -> bool:
        assert self.head is not None
        piece = bytes(self._buffer[: self._rest_bytes])
        del self._buffer[: len(piece)]
        self.head.raw_body += piece
        self.head.body += piece
        self._rest_bytes -= len(piece)
        if self._rest_bytes:
            return False
        self._step = "complete" if self._step == "body" else "chunk-end"
        return True

    def _line(self) -> bytes | None:
        assert self.head is not None
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        self.head.raw_body += self._buffer[: end + 2]
        del self._buffer[: end + 2]
        return line

    def _read_chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        digits = line.partition(b";")[0]
        if not digits or len(digits.lstrip(b"0")) > 16 or not set(digits) <= set(b"0123456789abcdefABCDEF") or b"\n" in line:
            raise MalformedRequest(f"chunk size {line!r}")
        self._rest_bytes = int(digits, 16)
        self._step = "chunk" if self._rest_bytes else "trailers"
        return True

    def _read_chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._line() != b"":
            raise MalformedRequest("no line end after chunk data")
        self._step = "chunk-size"
        return True

    def _read_trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._step = "complete"
        return True
