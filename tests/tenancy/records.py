"""Ended requests as the ledger gets them, and a clock that stands until it is told."""

from __future__ import annotations

from typing import Any

from serving.core.context import RequestContext, Usage
from serving.core.outcomes import Outcome
from serving.core.routes import ROUTES
from serving.ledger_settings import LedgerSettings, PricesSettings
from serving.tenancy.database.schema import LEDGER_COLUMNS
from serving.tenancy.ledger import Ledger, Record
from serving.tenancy.prices import Prices
from serving.tenancy.tenants import Identity, Tenants

TENANTS = Tenants({})


class StandingClock:
    """Seconds that pass when somebody says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def identity(tenant: str = "red", key_id: str = "key-1") -> Identity:
    found = TENANTS.find(tenant)
    assert found is not None
    return Identity(found, key_id)


def ended(number: int = 0, route: str = "/v1/chat/completions", **fields: Any) -> RequestContext:
    """A request that arrived at 10 and got its first byte at 11, in monotonic seconds."""
    values: dict[str, Any] = {
        "request_id": f"r{number}",
        "route": ROUTES[route],
        "credential": None,
        "arrived": 10.0,
        "tenant": "red",
        "model": "tiny",
        "pool": "cpu",
        "target": "epyc",
        "attempts": 1,
        "first_byte": 11.0,
        "usage": Usage(100, 60, 5),
        "outcome": Outcome.OK,
    }
    return RequestContext(**(values | fields))


def ledger(**fields: Any) -> Ledger:
    prices = fields.pop("prices", {"models": {"tiny": {"prompt": 1, "cached": 0.5, "output": 2}}})
    options = {name: fields.pop(name) for name in ("dropped", "clock", "wall") if name in fields}
    return Ledger(LedgerSettings(**fields), Prices(PricesSettings.model_validate(prices)), **options)


def named(record: Record) -> dict[str, Any]:
    return dict(zip((name for name, _ in LEDGER_COLUMNS), record, strict=True))
