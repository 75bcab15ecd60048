"""A DNS server over UDP that answers A queries from a dictionary, or fails as real ones do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self

NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
A = 1


class NameServer(asyncio.DatagramProtocol):
    """`records` maps a name to its addresses; a name that is not there does not exist."""

    def __init__(self, host: str = "127.0.0.1", port: int = 53) -> None:
        self.records: dict[str, Sequence[str]] = {}
        self.failing = False
        self.silent = False
        self.asked: list[str] = []
        self._address = (host, port)
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=self._address)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._transport is not None
        self._transport.close()

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        name, end = _name(data)
        (kind,) = struct.unpack_from("!H", data, end)
        self.asked.append(name)
        if self.silent or self._transport is None:
            return
        addresses = self.records.get(name, ()) if kind == A and not self.failing else ()
        code = SERVER_FAILURE if self.failing else NO_ERROR if name in self.records else NO_SUCH_NAME
        head = data[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(addresses), 0, 0)
        answers = b"".join(struct.pack("!HHHLH", 0xC00C, A, 1, 5, 4) + socket.inet_aton(each) for each in addresses)
        self._transport.sendto(head + data[12 : end + 4] + answers, address)


def _name(data: bytes) -> tuple[str, int]:
    """The name that is asked for and where it ends."""
    labels, place = [], 12
    while length := data[place]:
        labels.append(data[place + 1 : place + 1 + length].decode())
        place += 1 + length
    return ".".join(labels).lower(), place + 1
