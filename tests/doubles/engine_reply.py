"""From a script and a request to the bytes and moments of one reply."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate

from tests.doubles.http_requests import ParsedRequest
from tests.doubles.script import Script
from tests.doubles.vllm_answers import Answer, Event
from tests.doubles.vllm_errors import VllmError, phrase

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Piece:
    """One event of the reply, framed for the wire."""

    delay_seconds: float
    data: bytes
    marks: tuple[str, ...]
    tokens: int = 0


@dataclass(frozen=True)
class Reply:
    """`head` goes out first when `head_is_early`, else together with the first piece."""

    head: bytes
    head_is_early: bool
    pieces: Iterator[Piece]
    tail: bytes
    keeps_alive: bool
    is_chunked: bool = False


def head_bytes(status: int, headers: list[tuple[str, str]], script: Script, *, closes: bool) -> bytes:
    fields = [("date", formatdate(usegmt=True)), ("server", "uvicorn"), *headers, ("vary", "Origin")]
    if closes:
        fields.append(("connection", "close"))
    replaced = {name.lower() for name, _ in script.headers}
    fields = [field for field in fields if field[0] not in replaced] + list(script.headers)
    lines = [f"HTTP/1.1 {status} {phrase(status)}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole_reply(
    request: ParsedRequest,
    script: Script,
    status: int,
    body: bytes,
    *,
    content_type: str | None = JSON,
    delay_seconds: float = 0.0,
    tokens: int = 0,
    more_headers: tuple[tuple[str, str], ...] = (),
) -> Reply:
    """One body in one piece."""
    headers = list(more_headers)
    if script.gzip:
        body = gzip.compress(body)
        headers.append(("content-encoding", "gzip"))
    closes = not request.keeps_alive or script.framing == "close" or script.truncate_body_bytes is not None
    data = body
    if script.framing == "chunked":
        headers.append(("transfer-encoding", "chunked"))
        data = (chunk(body) if body else b"") + b"0\r\n\r\n"
    elif script.framing != "close":
        headers.append(("content-length", str(len(body))))
    if content_type is not None:
        headers.append(("content-type", content_type))
    if request.method == "HEAD":
        data = b""
    data = data[: script.truncate_body_bytes]
    marks = ("whole", "first_token", "last_token") if tokens else ("whole",)
    piece = Piece(delay_seconds, data, marks, tokens)
    head = head_bytes(status, headers, script, closes=closes)
    return Reply(head, False, iter([piece]), b"", keeps_alive=not closes)


def error_reply(request: ParsedRequest, script: Script, error: VllmError) -> Reply:
    return whole_reply(request, script, error.status, error.body_on(request.path))


def canned_reply(request: ParsedRequest, script: Script) -> Reply:
    """The reply of a script that does not look at the request."""
    if script.raw is not None:
        return _raw_reply(request, script)
    delay_seconds = script.ttft_seconds
    if script.body is None:
        error = VllmError(script.status, phrase(script.status))
        return whole_reply(request, script, script.status, error.body_on(request.path), delay_seconds=delay_seconds)
    return whole_reply(request, script, script.status, script.body, delay_seconds=delay_seconds)


def generated_reply(request: ParsedRequest, script: Script, answer: Answer, *, streams: bool) -> Reply:
    """The reply of a healthy engine."""
    if streams:
        pieces = (
            Piece(_delay_seconds(script, index, event, answer), event.data, event.marks, int(event.token_number > 0))
            for index, event in enumerate(answer.events())
        )
        return _stream_reply(request, script, pieces)
    delay_seconds = script.ttft_seconds + script.itl_seconds * max(0, len(answer.tokens) - 1)
    tokens = len(answer.tokens) * answer.choices
    return whole_reply(request, script, 200, answer.whole(), delay_seconds=delay_seconds, tokens=tokens)


def _delay_seconds(script: Script, index: int, event: Event, answer: Answer) -> float:
    if index == answer.early_events:
        return script.ttft_seconds
    return script.itl_seconds if event.token_number > answer.choices else 0.0


def _raw_reply(request: ParsedRequest, script: Script) -> Reply:
    assert script.raw is not None
    pieces = (Piece(delay_seconds, data, ()) for delay_seconds, data in script.raw)
    if script.raw_is == "response":
        return Reply(b"", False, pieces, b"", keeps_alive=request.keeps_alive)
    return _stream_reply(request, script, pieces)


def _stream_reply(request: ParsedRequest, script: Script, pieces: Iterator[Piece]) -> Reply:
    headers = [("content-type", SSE)]
    is_chunked = script.framing in ("natural", "chunked")
    closes = not request.keeps_alive or script.framing == "close"
    ending = b""
    if script.gzip:
        headers.append(("content-encoding", "gzip"))
        pieces, ending = _compressed(pieces)
    if is_chunked:
        headers.append(("transfer-encoding", "chunked"))
        framed: Iterator[Piece] = (Piece(p.delay_seconds, chunk(p.data), p.marks, p.tokens) for p in pieces)
        tail = (chunk(ending) if ending else b"") + b"0\r\n\r\n"
    else:
        tail = ending
        framed = pieces
        if script.framing == "length":
            known = list(pieces)
            headers.append(("content-length", str(sum(len(piece.data) for piece in known) + len(ending))))
            framed = iter(known)
    head = head_bytes(script.status, headers, script, closes=closes)
    return Reply(head, script.head_at_arrival, framed, tail, keeps_alive=not closes, is_chunked=is_chunked)


def _compressed(pieces: Iterator[Piece]) -> tuple[Iterator[Piece], bytes]:
    """Each piece flushed so that a reader can decode it at once; all are compressed beforehand, the end is their trailer."""
    compressor = zlib.compressobj(wbits=31)
    done = [
        Piece(
            piece.delay_seconds,
            compressor.compress(piece.data) + compressor.flush(zlib.Z_SYNC_FLUSH),
            piece.marks,
            piece.tokens,
        )
        for piece in pieces
    ]
    return iter(done), compressor.flush()
