"""A request's body in pieces, within the same limits as a body that is read at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from serving.api.decoding import TURN_SECONDS, Decoder
from serving.api.reply import Receive
from serving.core.clock import monotonic
from serving.core.errors import BodyTooLarge, ClientGone, RequestTimeout
from serving.settings import LimitSettings


class BodyUpload:
    """Reads the client's bytes when they are asked for; holds no more than the server's own buffer and one decoded piece."""

    def __init__(
        self,
        content_type: bytes,
        receive: Receive,
        decoder: Decoder | None,
        limits: LimitSettings,
        on_complete: Callable[[], None],
    ) -> None:
        self.content_type = content_type
        self._receive = receive
        self._decoder = decoder
        self._limits = limits
        self._on_complete = on_complete
        self._left_seconds = limits.body_timeout_seconds
        """For the client alone: how long an engine takes to accept what is here is not its fault."""
        self._received_bytes = 0
        self._decoded: Iterator[bytes] | None = None
        self._ended = False
        self._turn_ends = 0.0

    async def piece(self) -> tuple[bytes, bool]:
        """The next bytes, decoded, and whether the body is whole with them.

        Raises: BodyTooLarge, RequestTimeout, InvalidRequest, ClientGone.
        """
        decoder = self._decoder
        if decoder is None:
            data = await self._read()
            return data, self._ended
        while True:
            if self._decoded is None:
                self._decoded = decoder.feed(await self._read())
                self._turn_ends = monotonic() + TURN_SECONDS
            data = await self._next_decoded(self._decoded)
            if data:
                return data, False
            self._decoded = None
            if self._ended:
                decoder.finish()
                return b"", True

    async def _next_decoded(self, decoded: Iterator[bytes]) -> bytes:
        """The next piece that the decoder makes of what it has; empty when it has no more."""
        for data in decoded:
            if data:
                return data
            if monotonic() > self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = monotonic() + TURN_SECONDS
        return b""

    async def _read(self) -> bytes:
        began = monotonic()
        try:
            async with asyncio.timeout(max(self._left_seconds, 0.0)):
                message = await self._receive()
        except TimeoutError:
            seconds = self._limits.body_timeout_seconds
            raise RequestTimeout(f"The body did not arrive within {seconds:g} s.", headers={"connection": "close"}) from None
        self._left_seconds -= monotonic() - began
        if message["type"] == "http.disconnect":
            raise ClientGone("The client left while it sent its request.")
        data: bytes = message.get("body", b"")
        self._received_bytes += len(data)
        if self._received_bytes > self._limits.body_bytes:
            raise too_large(self._limits)
        if not message.get("more_body"):
            self._ended = True
            self._on_complete()
        return data


def too_large(limits: LimitSettings) -> BodyTooLarge:
    # The rest of the body stays unread, so the connection cannot carry another request.
    return BodyTooLarge(f"The body is larger than {limits.body_bytes} bytes.", headers={"connection": "close"})
