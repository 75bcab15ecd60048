"""What must hold whatever is sent: every answer is one, nothing is smuggled, and an engine sees only what it may."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from serving.core.routes import ROUTES
from serving.engines.body import GATEWAY_ONLY, GATEWAY_ONLY_PREFIX
from tests.doubles.http_requests import MalformedRequest, ParsedRequest, RequestParser
from tests.fuzz.words import CANARY

ENGINE_HEADERS = {"host", "content-type", "content-length", "x-request-id", "traceparent", "tracestate"}
OURS = {"cache_salt", "store", "stream_options", "structured_outputs"}
"""Members that the gateway may set itself."""
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [^\r\n]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\t\x20-\x7e\x80-\xff]*)")
_ENGINE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SPACES = re.compile(rb" +")
"""Between the parts of a request line there may be more than one (RFC 9112, 3)."""
Pairs = list[tuple[str, Any]]


@dataclass
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_whole: bool

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


def read_answers(data: bytes, methods: list[str], *, ended: bool, head_only: bool = False) -> list[Answer]:
    """All answers on a connection, read strictly. Interim ones are passed over. Raises: AssertionError.

    `head_only`: a HEAD that never became a request may be among what was sent; then the last answer may be without a body.
    """
    answers: list[Answer] = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        assert end, f"half a head: {head[:200]!r}"
        first, *lines = head.split(b"\r\n")
        line = _STATUS_LINE.fullmatch(first)
        assert line, first
        status = int(line[1])
        if status == 100:
            data = rest
            continue
        fields = [_FIELD.fullmatch(text) for text in lines]
        assert all(fields), head
        answer = Answer(status, [(f[1], f[2]) for f in fields if f], b"", True)
        method = methods[len(answers)] if len(answers) < len(methods) else ""
        if head_only and not rest and ended and answer.values(b"connection") == [b"close"]:
            method = "HEAD"
        data = _read_body(answer, rest, method, ended)
        answers.append(answer)
    return answers


def _read_body(answer: Answer, rest: bytes, method: str, ended: bool) -> bytes:
    lengths, codings = answer.values(b"content-length"), answer.values(b"transfer-encoding")
    if method == "HEAD" or answer.status == 204:
        return rest
    assert len(lengths) + len(codings) <= 1, answer.headers
    if lengths:
        size = int(lengths[0])
        answer.body, rest = rest[:size], rest[size:]
        assert len(answer.body) == size, "cut short"
        return rest
    if not codings:
        assert ended and answer.values(b"connection") == [b"close"], answer.headers
        answer.body = rest
        return b""
    assert codings == [b"chunked"]
    while True:
        digits, end, rest = rest.partition(b"\r\n")
        assert end and re.fullmatch(rb"[0-9a-fA-F]+", digits), digits[:50]
        size = int(digits, 16)
        piece, rest = rest[:size], rest[size:]
        assert len(piece) == size and rest[:2] == b"\r\n"
        rest = rest[2:]
        if not size:
            return rest
        answer.body += piece


def check_answer(answer: Answer) -> None:
    assert answer.status < 500, f"{answer.status}: {answer.body!r}"
    assert CANARY not in answer.body or answer.status >= 400
    if answer.status < 400 or not answer.body:
        return
    assert answer.values(b"content-type") == [b"application/json"], answer.headers
    shown = json.loads(answer.body)
    error = shown["error"]
    if "type" in shown:
        assert set(shown) == {"type", "error", "request_id"} and set(error) == {"type", "message"}, shown
    else:
        assert set(shown) == {"error"} and set(error) == {"message", "type", "param", "code"}, shown
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    if answer.status in (400, 408, 413, 414, 415, 431) and error.get("code") in ("malformed_request", "headers_too_large"):
        assert answer.values(b"connection") == [b"close"]


def reference(data: bytes) -> list[ParsedRequest]:
    """The requests that a strict reader sees, the last one perhaps incomplete. Empty lines before a request are passed over."""
    found: list[ParsedRequest] = []
    while data := data.lstrip(b"\r\n"):
        parser = RequestParser()
        with contextlib.suppress(MalformedRequest):
            line, end, rest = data.partition(b"\r\n")
            parser.feed(_SPACES.sub(b" ", line) + end + rest)
        if parser.head is None:
            break
        found.append(parser.head)
        if not parser.is_complete:
            break
        data = parser.pending_bytes
    return found


def check_arrivals(arrived: list[tuple[str, str]], seen: list[ParsedRequest]) -> None:
    """What the gateway took for requests is the beginning of what a strict reader takes for requests."""
    assert len(arrived) <= len(seen), f"arrived {arrived}, but a strict reader sees {[(r.method, r.target) for r in seen]}"
    for (method, path), request in zip(arrived, seen, strict=False):
        assert method == request.method, (method, request.method)
        if (
            request.target.isascii()
            and "%" not in request.target
            and request.target.startswith("/")
            and "#" not in request.target
        ):
            assert path == request.path, (path, request.target)


def check_engine_request(request: ParsedRequest, host: str = "127.0.0.1:9") -> None:
    assert request.method == "POST"
    assert request.target in ROUTES
    names = [name.lower() for name, _ in request.headers]
    assert len(names) == len(set(names)) and set(names) <= ENGINE_HEADERS, names
    assert request.header("content-type") == "application/json"
    assert request.header("host") == host
    assert _ENGINE_ID.fullmatch(request.header("x-request-id") or "")
    assert CANARY not in request.raw_head
    members = pairs_of(bytes(request.body))
    names = [name for name, _ in members]
    for name in names:
        assert name not in GATEWAY_ONLY and not name.startswith(GATEWAY_ONLY_PREFIX), name
    single = {"cache_salt", "store"} if request.target == "/v1/responses" else {"cache_salt"}
    assert all(names.count(name) <= 1 for name in single), names
    values = dict(members)
    assert values["model"] == "tiny"
    if request.target == "/v1/responses":
        assert values["store"] is False
        for name in ("previous_response_id", "conversation", "background"):
            assert values.get(name) in (None, False)
    assert values.get("cache_salt") != "CANARY"


def check_body_is_the_clients(sent: bytes, got: bytes) -> None:
    """Member for member and digit for digit the same, but for what the gateway takes out and what it sets."""

    def kept(text: bytes) -> Pairs:
        return [
            (name, value)
            for name, value in pairs_of(text)
            if name not in GATEWAY_ONLY | OURS and not name.startswith(GATEWAY_ONLY_PREFIX)
        ]

    assert kept(got) == kept(sent), (sent[:300], got[:300])


def pairs_of(text: bytes) -> Pairs:
    """The members of an object in their order, numbers as they are written. Raises: ValueError."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # for this reading only: the gateway takes texts deeper than the library's default
    try:
        found = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=lambda pairs: ("object", pairs),
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse,
        )
    finally:
        sys.setrecursionlimit(usual)
    assert isinstance(found, tuple) and found[0] == "object", found
    members: Pairs = found[1]
    return members


def _number(text: str) -> tuple[str, str]:
    return "number", text


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
