"""Multipart forms as clients write them, well or badly."""

from __future__ import annotations

import struct
from collections.abc import Iterable

BOUNDARY = b"----client-7f3a"
SOUND = bytes(range(256)) * 40 + b"\r\n--" + BOUNDARY[:-1] + b"\r\n--\r\n\r\n"
"""A file that holds every byte, and most of what a parser might take for an end."""


def text(name: str, value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return b'Content-Disposition: form-data; name="%b"\r\n\r\n%b' % (name.encode(), data)


def file(data: bytes = SOUND, *, name: str = "file", filename: str = "a.wav", content_type: str = "audio/wav") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\nContent-Type: {content_type}\r\n\r\n'
    return head.encode() + data


def form(parts: Iterable[bytes], *, boundary: bytes = BOUNDARY, end: bytes = b"--\r\n") -> bytes:
    """A body of these parts, each its head and its data."""
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts) + b"--" + boundary + end


def headers(boundary: bytes = BOUNDARY) -> dict[str, str]:
    return {"Content-Type": f"multipart/form-data; boundary={boundary.decode()}"}


def wave(seconds: int, *, hertz: int = 16_000) -> bytes:
    """A WAV file of a tone, one channel of 16 bits: 32,000 bytes a second."""
    data = struct.pack("<80h", *(400 * min(step, 80 - step) for step in range(80))) * (seconds * hertz // 80)
    kind = struct.pack("<IHHIIHH", 16, 1, 1, hertz, 2 * hertz, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + kind + b"data" + struct.pack("<I", len(data)) + data
