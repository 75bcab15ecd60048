"""Decompression of request bodies as they arrive, in pieces, and never to more than the limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator

from serving.core.clock import monotonic
from serving.core.errors import BodyTooLarge, InvalidRequest, UnsupportedMedia

PIECE_BYTES = 128 * 1024
"""The most that one step makes; a step takes a fraction of a millisecond."""
TURN_SECONDS = 0.002
"""How long one body is worked on before other requests have their turn."""
SUPPORTED = "gzip, deflate"
_NAMES = {b"gzip": "gzip", b"x-gzip": "gzip", b"deflate": "deflate"}
_MAX_CODINGS = 2


def decoder_for(content_encoding: bytes | None, limit_bytes: int) -> Decoder | None:
    """What a body with this header needs; None when it is plain. Raises: UnsupportedMedia."""
    codings = [] if content_encoding is None else content_codings(content_encoding)
    return Decoder(codings, limit_bytes) if codings else None


def content_codings(value: bytes) -> list[str]:
    """The codings of a Content-Encoding header in the order in which they were applied.

    Raises: UnsupportedMedia, with a header that names what is supported.
    """
    names = [name for name in (part.strip().lower() for part in value.split(b",")) if name and name != b"identity"]
    for name in names:
        if name not in _NAMES:
            raise _unsupported(f"The content coding {name.decode('latin-1')[:40]!r} is not supported.")
    if len(names) > _MAX_CODINGS:
        raise _unsupported(f"More than {_MAX_CODINGS} content codings are not supported.")
    return [_NAMES[name] for name in names]


def _unsupported(message: str) -> UnsupportedMedia:
    # The body stays unread, so the connection cannot carry another request.
    headers = {"accept-encoding": SUPPORTED, "connection": "close"}
    return UnsupportedMedia(f"{message} Use {SUPPORTED}, or none.", headers=headers)


class Decoder:
    """Undoes the codings of one body. No stage makes more than `limit_bytes`, so that nothing can be blown up in between."""

    def __init__(self, codings: list[str], limit_bytes: int) -> None:
        self._stages = [_Stage(coding, limit_bytes) for coding in reversed(codings)]

    async def decode(self, data: bytes, parts: list[bytes]) -> None:
        """Append the plain bytes that `data` holds to `parts`, with turns for other requests in between.

        Raises: BodyTooLarge, InvalidRequest.
        """
        turn_ends = monotonic() + TURN_SECONDS
        for piece in self.feed(data):
            if piece:
                parts.append(piece)
            if monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = monotonic() + TURN_SECONDS

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The same as steps, some of which make nothing."""
        pieces: Iterable[bytes] = (data,)
        for stage in self._stages:
            pieces = stage.feed(pieces)
        yield from pieces

    def finish(self) -> None:
        """The body is at its end. Raises: InvalidRequest when a stage is not."""
        if not all(stage.is_complete for stage in self._stages):
            raise _corrupt("ends too early")


class _Stage:
    """One coding."""

    def __init__(self, coding: str, limit_bytes: int) -> None:
        self.is_complete = False
        self._coding = coding
        self._limit_bytes = limit_bytes
        self._made_bytes = 0
        self._inflater: zlib._Decompress | None = None
        self._holds_back = False
        """The last step made a full piece, so zlib may have more of what it has read."""

    def feed(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for data in pieces:
            yield b""  # an earlier stage has made a step
            while data or self._holds_back:
                inflater = self._inflater or self._begin(data)
                try:
                    piece = inflater.decompress(data, PIECE_BYTES)
                except zlib.error:
                    raise _corrupt("cannot be decompressed") from None
                self._made_bytes += len(piece)
                if self._made_bytes > self._limit_bytes:
                    words = f"The decompressed body is larger than {self._limit_bytes} bytes."
                    raise BodyTooLarge(words, headers={"connection": "close"})
                yield piece
                data = inflater.unconsumed_tail
                self._holds_back = len(piece) == PIECE_BYTES
                if inflater.eof:
                    # A gzip body may consist of several members.
                    data, self._inflater = inflater.unused_data, None
                    self.is_complete, self._holds_back = True, False

    def _begin(self, data: bytes) -> zlib._Decompress:
        """A decompressor for what begins with `data`."""
        if self._coding == "gzip":
            window_bits = 16 + zlib.MAX_WBITS
        elif self.is_complete:
            raise _corrupt("goes on after its end")
        else:
            # `deflate` means the zlib format, but some senders leave its two bytes of head out.
            window_bits = zlib.MAX_WBITS if data[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS
        self.is_complete = False
        self._inflater = inflater = zlib.decompressobj(window_bits)
        return inflater


def _corrupt(what: str) -> InvalidRequest:
    return InvalidRequest(f"The compressed body {what}.", code="invalid_content_encoding", headers={"connection": "close"})
