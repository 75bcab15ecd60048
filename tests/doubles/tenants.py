"""Tenants with a key each, and many clients that ask at one moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.doubles.raw_client import RawClient, RawResponse, request_bytes


def key_of(tenant: str) -> str:
    return f"sk-{tenant}"


def bearer(tenant: str, **more: str) -> dict[str, str]:
    """The headers of a tenant's request."""
    return {"Authorization": f"Bearer {key_of(tenant)}", **more}


def tenants(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The sections of the settings for these tenants, each with the terms that are given."""
    keys = [{"tenant": name, "sha256": hashlib.sha256(key_of(name).encode()).hexdigest()} for name in terms]
    return {"auth": {"keys": keys}, "tenants": {name: dict(each) for name, each in terms.items()}}


class Crowd:
    """Clients with open connections, spread over gateways."""

    def __init__(self, clients: list[RawClient]) -> None:
        self._clients = clients

    async def ask(self, path: str, body: Any, headers: Mapping[str, str]) -> list[RawResponse]:
        """All ask the same at once; their answers, whole."""
        request = request_bytes(path, body, headers=headers)
        barrier = asyncio.Event()

        async def one(client: RawClient) -> RawResponse:
            await barrier.wait()
            await client.send(request)
            return await client.read()

        asked = [asyncio.create_task(one(client)) for client in self._clients]
        await asyncio.sleep(0)
        barrier.set()
        return await asyncio.gather(*asked)


@asynccontextmanager
async def crowd(urls: Sequence[str], size: int) -> AsyncIterator[Crowd]:
    clients = [RawClient(urls[number % len(urls)]) for number in range(size)]
    try:
        for client in clients:
            await client.connect()
        yield Crowd(clients)
    finally:
        for client in clients:
            client.hang_up()
