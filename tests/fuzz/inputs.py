"""Inputs for a connection: valid requests put together from a grammar, then bent in a few places, cut into pieces anyhow."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.json_texts import body_text
from tests.fuzz.words import CANARY, KNOWN_VALUES, LENGTHS, METHODS, NAMES, OTHER_TARGETS, PATHS, VALUES, VERSIONS

Chance = random.Random


@dataclass
class Draft:
    """One request before it is written down."""

    method: bytes
    target: bytes
    body: bytes
    version: bytes = b"HTTP/1.1"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    colon: bytes = b": "
    line_end: bytes = b"\r\n"
    chunk_sizes: list[int] | None = None
    """None: framed by Content-Length."""
    size: bytes = b"%x"
    chunk_end: bytes = b"\r\n"
    extension: bytes = b""
    trailers: bytes = b""

    def written(self) -> bytes:
        lines = [b"%s %s %s" % (self.method, self.target, self.version)]
        lines += [name + self.colon + value for name, value in self.headers]
        head = self.line_end.join([*lines, b"", b""])
        return head + (self.body if self.chunk_sizes is None else self._chunks())

    def _chunks(self) -> bytes:
        assert self.chunk_sizes is not None
        parts, rest = [], self.body
        for size in [*self.chunk_sizes, len(self.body)]:
            piece, rest = rest[:size], rest[size:]
            if piece:
                parts.append(
                    (self.size % len(piece) if b"%" in self.size else self.size)
                    + self.extension
                    + self.line_end
                    + piece
                    + self.chunk_end
                )
        return b"".join([*parts, b"0", self.line_end, self.trailers, self.line_end])


def draft(chance: Chance) -> Draft:
    """A valid request."""
    path = chance.choice(PATHS)
    body = body_text(path.decode(), chance)
    made = Draft(b"POST", path, body)
    made.headers = [(b"Host", b"gateway"), (b"Content-Type", b"application/json")]
    if chance.random() < 0.3:
        made.headers.append((b"Cookie", CANARY))
    if chance.random() < 0.1:
        made.body = gzip.compress(body, mtime=0)
        made.headers.append((b"Content-Encoding", b"gzip"))
    if chance.random() < 0.35:
        made.headers.append((b"Transfer-Encoding", b"chunked"))
        made.chunk_sizes = [chance.choice([1, 2, 7, 100, 4096]) for _ in range(chance.randrange(6))]
    else:
        made.headers.append((b"Content-Length", b"%d" % len(made.body)))
    if chance.random() < 0.3:
        chance.shuffle(made.headers)
    return made


def _header(made: Draft, chance: Chance) -> None:
    name = chance.choice(NAMES)
    value = chance.choice(KNOWN_VALUES.get(name, VALUES) if chance.random() < 0.8 else VALUES)
    made.headers.insert(chance.randrange(len(made.headers) + 1), (name, value))


def _change_header(made: Draft, chance: Chance) -> None:
    if made.headers:
        place = chance.randrange(len(made.headers))
        name, value = made.headers[place]
        changed = chance.choice(
            [
                (name, chance.choice(KNOWN_VALUES.get(name, VALUES))),
                (name + b" ", value),
                (name.upper(), value),
                (name.lower(), value),
                (name, value + chance.choice([b" ", b"\t", b"\x0b", b",", b"\x00"])),
                (b" " + name, value),
                (name, b"\t" + value),
            ]
        )
        made.headers[place] = changed


def _drop_header(made: Draft, chance: Chance) -> None:
    if made.headers:
        made.headers.pop(chance.randrange(len(made.headers)))


def _repeat_header(made: Draft, chance: Chance) -> None:
    if made.headers:
        made.headers.append(chance.choice(made.headers))


def _many_headers(made: Draft, chance: Chance) -> None:
    made.headers += [
        (b"X-%d" % number, b"a" * chance.choice([1, 10, 600])) for number in range(chance.choice([20, 124, 125, 126, 140]))
    ]


def _set(name: str, *values: bytes) -> Callable[[Draft, Chance], None]:
    def change(made: Draft, chance: Chance) -> None:
        setattr(made, name, chance.choice(values))

    return change


def _wrong_length(made: Draft, chance: Chance) -> None:
    wrong = b"%d" % max(0, len(made.body) + chance.choice([-10, -1, 1, 2, 100]))
    made.headers = [(name, wrong if name == b"Content-Length" else value) for name, value in made.headers]


def _other_body(made: Draft, chance: Chance) -> None:
    made.body = chance.choice(
        [b"", b"{", b"[]", b"null", CANARY, bytes(range(256)), b"\x1f\x8b\x08", gzip.compress(made.body)[:-3]]
    )
    _wrong_length(made, chance)


def _smuggle(made: Draft, chance: Chance) -> None:
    """Both framings, and a request where they disagree."""
    made.headers.append(chance.choice([(b"Transfer-Encoding", b"chunked"), (b"Content-Length", chance.choice(LENGTHS))]))
    made.body += b"0\r\n\r\nPOST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


STRUCTURAL: list[Callable[[Draft, Chance], None]] = [
    _header,
    _header,
    _header,
    _change_header,
    _change_header,
    _drop_header,
    _repeat_header,
    _many_headers,
    _wrong_length,
    _other_body,
    _smuggle,
    _set("target", *OTHER_TARGETS),
    _set("method", *METHODS),
    _set("version", *VERSIONS),
    _set("colon", b":", b" : ", b"\t: ", b":\t", b";", b"=", b":: "),
    _set("line_end", b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\r\n"),
    _set("size", b"%X", b"0%x", b"+%x", b" %x", b"%x ", b"0x%x", b"-%x", b"%016x", b"%017x", b"%d", b"", b"%x,", b"00000%x"),
    _set("chunk_end", b"\n", b"", b"XX", b"\r\n\r\n", b"\r", b"\n\n"),
    _set("extension", b";a=b", b';a="b\r\n"', b"; a", b";\n", b";" + b"x" * 70_000, b" ;a", b";a\x00"),
    _set(
        "trailers",
        b"X: y\r\n",
        b"Content-Length: 5\r\n",
        b"Authorization: Bearer CANARY\r\n",
        b"X\r\n",
        b"X: " + b"a" * 70_000 + b"\r\n",
        b" X: y\r\n",
    ),
]


def _bend_bytes(data: bytes, chance: Chance) -> bytes:
    """Without regard to what the bytes mean."""
    at = chance.randrange(len(data) + 1)
    upto = min(len(data), at + chance.choice([1, 1, 2, 5, 40]))
    match chance.randrange(6):
        case 0:
            return data[:at] + bytes([chance.randrange(256)]) + data[upto:]
        case 1:
            return (
                data[:at]
                + chance.choice([b"\r\n", b"\n", b"\r", b"\0", b" ", b'"', b"\\", b"\xff", b"0\r\n\r\n", b"{", b"1"])
                + data[at:]
            )
        case 2:
            return data[:at] + data[upto:]
        case 3:
            return data[:at]
        case 4:
            return data[:upto] + data[at:]
        case _:
            return data[:at] + data[at:upto][::-1] + data[upto:]


def one_request(chance: Chance) -> bytes:
    made = draft(chance)
    for _ in range(chance.choice([0, 0, 1, 1, 1, 2, 3])):
        chance.choice(STRUCTURAL)(made, chance)
    data = made.written()
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        data = _bend_bytes(data, chance)
    return data


def pieces_of(chance: Chance) -> list[bytes]:
    """What one connection sends: one request or several, cut anywhere."""
    data = b"".join(one_request(chance) for _ in range(chance.choice([1, 1, 1, 1, 2, 3])))
    if chance.random() < 0.6 or len(data) < 2:
        return [data]
    if chance.random() < 0.05 and len(data) < 600:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted({chance.randrange(1, len(data)) for _ in range(chance.randrange(1, 6))})
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
