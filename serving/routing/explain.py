"""Tells operators why an endpoint was chosen."""

from __future__ import annotations

import hmac

import orjson
from pydantic import SecretStr

from serving.core.context import RequestContext
from serving.routing.decision import Reason
from serving.routing.work import Ticket

MOST_CANDIDATES = 16
"""So many are told; a header must fit into what proxies take."""


RECORD = b"record"
"""Behind the key and a semicolon: tell also what the costs follow from, for `serving explain`."""


class Explain:
    """Who has the key is told; without one nobody is."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = None if key is None else key.get_secret_value().encode()

    def allows(self, asked: bytes) -> bool:
        """`asked`: the key, and perhaps that a record is wanted."""
        return self._key is not None and hmac.compare_digest(_parted(asked)[0], self._key)

    def note(self, ctx: RequestContext, ticket: Ticket) -> None:
        """Write down why, for the answer's header and for the attempt's span."""
        decision = ticket.decision
        data: dict[str, object]
        if decision is None:
            data = {"chosen": ticket.endpoint.name, "reason": str(Reason.ONLY)}
        else:
            data = decision.as_data()
            data["candidates"] = data["candidates"][:MOST_CANDIDATES]  # type: ignore[index]
            if ctx.explain_key is None or _parted(ctx.explain_key)[1]:
                # A trace has room for all of it; a header has where somebody says so.
                data["record"] = decision.record
        ctx.decision = orjson.dumps(data)
        if ctx.explain_key is not None and not self.allows(ctx.explain_key):
            ctx.explain_key = None


def _parted(asked: bytes) -> tuple[bytes, bool]:
    """`KEY` or `KEY; record`."""
    key, _, more = asked.rpartition(b";")
    return (key.strip(), True) if more.strip() == RECORD else (asked.strip(), False)
