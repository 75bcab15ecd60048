"""A request whose body goes to the engine while the client still sends it, in chunks, since its size is not known."""

from __future__ import annotations

from serving.core.context import RequestContext, Rest
from serving.engines.exchange import BrokenAnswer, Exchange
from serving.engines.wire import Address


def first_part(ctx: RequestContext, address: Address, more_headers: bytes) -> bytes:
    """The request up to where `ctx.body` ends. `more_headers`: whole lines."""
    head = b"POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: %s\r\nx-request-id: %s\r\n%stransfer-encoding: chunked\r\n\r\n" % (
        ctx.route.path_bytes,
        address.host_header,
        ctx.content_type,
        ctx.request_id.encode("ascii"),
        more_headers,
    )
    return head + _chunk(ctx.body)


async def send_rest(exchange: Exchange, rest: Rest, first_byte_timeout_seconds: float) -> None:
    """Send what is left, holding one piece at a time; ends early when the engine refuses the request before its end.

    Raises: WireError for the engine's side, RequestError for the client's.
    """
    whole = False
    while not whole:
        data, whole = await rest.piece()
        end = b"0\r\n\r\n" if whole else b""
        if (data or end) and not await exchange.send_more(_chunk(data) + end):
            if exchange.status == 200:
                raise BrokenAnswer("the engine answered before it had the request")
            return
    exchange.sent(first_byte_timeout_seconds)


def _chunk(data: bytes) -> bytes:
    """A chunk; nothing for no bytes, since an empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
