"""What another gateway has under way at an endpoint, as it is told and as it counts here."""

from __future__ import annotations

import struct
from typing import NamedTuple

_LOAD = struct.Struct("!QIIdfff")
LOAD_BYTES = _LOAD.size
MOST = 1e12
"""Of any figure; more is nonsense."""


class PeerLoad(NamedTuple):
    requests: int = 0
    queued: int = 0
    """Of the requests, those without a first token."""
    waiting_seconds: float = 0.0
    """Of prefill, of those together."""
    context_tokens: float = 0.0
    """What all of them take of the engine's cache."""
    decoding_tokens: float = 0.0
    """Of that, what those with a first token take."""
    prefilled_seconds: float = 0.0
    """Of prefill that is done, since the gateway began: it only grows, so that what was not heard is in the next."""

    def scaled(self, share: float) -> PeerLoad:
        """A part of it, as it counts when it is old."""
        if share >= 1.0:
            return self
        return PeerLoad(
            round(share * self.requests),
            round(share * self.queued),
            share * self.waiting_seconds,
            share * self.context_tokens,
            share * self.decoding_tokens,
            self.prefilled_seconds,
        )

    def packed(self, endpoint: int) -> bytes:
        return _LOAD.pack(
            endpoint,
            self.requests,
            self.queued,
            self.prefilled_seconds,
            max(0.0, self.waiting_seconds),
            max(0.0, self.context_tokens),
            max(0.0, self.decoding_tokens),
        )


NOTHING = PeerLoad()


def unpacked(record: bytes, at: int) -> tuple[int, PeerLoad]:
    """The endpoint's number and what is under way there. Raises: ValueError."""
    try:
        endpoint, requests, queued, prefilled, waiting, context, decoding = _LOAD.unpack_from(record, at)
    except struct.error as error:
        raise ValueError(str(error)) from None
    if not all(0.0 <= figure < MOST for figure in (prefilled, waiting, context, decoding)) or queued > requests:
        raise ValueError("a load that cannot be")
    return endpoint, PeerLoad(requests, queued, waiting, context, decoding, prefilled)
