"""What a request costs, for limits in dollars."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple, Protocol

from serving.core.context import Usage
from serving.model_settings import ModelSettings
from serving.tenancy.quotas import NANO_DOLLARS


class Prices(Protocol):
    """Knows the price of a model's tokens."""

    def has(self, model: str) -> bool:
        """Whether anything is billed of that model."""
        ...

    def nano_dollars(self, model: str, usage: Usage) -> int:
        """Of a request with that usage, at the model that engines serve under that name; 0 where nothing is billed."""
        ...


class _Price(NamedTuple):
    """Nano-dollars."""

    prompt: float
    cached: float
    output: float
    request: float


class ListedPrices:
    """The prices of `models.NAME.listing`."""

    def __init__(self, models: Mapping[str, ModelSettings]) -> None:
        self._prices: dict[str, _Price] = {}
        for name, model in models.items():
            prices = model.listing.prices if model.listing is not None else None
            if prices is not None:
                prompt = _nano(prices.prompt)
                cached = prompt if prices.cached_prompt is None else _nano(prices.cached_prompt)
                self._prices[name] = _Price(prompt, cached, _nano(prices.completion), _nano(prices.request))

    def has(self, model: str) -> bool:
        return model in self._prices

    def nano_dollars(self, model: str, usage: Usage) -> int:
        price = self._prices.get(model)
        if price is None:
            return 0
        prompt, cached = usage.prompt_tokens or 0, usage.cached_tokens or 0
        tokens = (prompt - cached) * price.prompt + cached * price.cached + (usage.output_tokens or 0) * price.output
        return round(price.request + tokens)


def _nano(dollars: str | None) -> float:
    return float(Decimal(dollars) * NANO_DOLLARS) if dollars is not None else 0.0
