"""What tokens cost, in whole billionths of a dollar, so that sums are exact."""

from __future__ import annotations

from typing import NamedTuple

from serving.core.context import Usage
from serving.ledger_settings import PricesSettings, TokenPrices

NANODOLLARS = 1_000_000_000
"""In a dollar."""
_PER_TOKEN = NANODOLLARS / 1_000_000


class Cost(NamedTuple):
    """Billionths of a dollar by kind of token; None is unknown, which is not 0."""

    prompt: int | None = None
    """Of the prompt tokens that were not cached; of all where `cached` is None."""
    cached: int | None = None
    output: int | None = None


class _Rates(NamedTuple):
    """Billionths of a dollar for one token."""

    prompt: float | None
    cached: float | None
    output: float | None


UNKNOWN_COST = Cost()
NOTHING = Cost(0, 0, 0)
_UNPRICED = _Rates(None, None, None)


class Prices:
    """The prices of the settings."""

    def __init__(self, settings: PricesSettings) -> None:
        self._models = {name: _rates(prices) for name, prices in settings.models.items()}
        self._pools = {name: _rates(prices) for name, prices in settings.pools.items()}

    def cost(self, model: str, pool: str, usage: Usage) -> Cost:
        """What the tokens of one answer cost."""
        rates = self._pools.get(pool) or self._models.get(model, _UNPRICED)
        if rates is _UNPRICED:
            return UNKNOWN_COST
        prompt, cached, output, _ = usage
        computed = prompt if prompt is None or cached is None else prompt - cached
        return Cost(_product(computed, rates.prompt), _product(cached, rates.cached), _product(output, rates.output))


def _rates(prices: TokenPrices) -> _Rates:
    cached = prices.prompt if prices.cached is None else prices.cached
    return _Rates(*(None if price is None else price * _PER_TOKEN for price in (prices.prompt, cached, prices.output)))


def _product(tokens: int | None, rate: float | None) -> int | None:
    return None if tokens is None or rate is None else round(tokens * rate)
