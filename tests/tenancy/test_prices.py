"""Dollars are exact sums of tokens times prices, and unknown where there is no price."""

from __future__ import annotations

from typing import Any

import pytest

from serving.core.context import Usage
from serving.ledger_settings import PricesSettings
from serving.settings import Settings
from serving.tenancy.prices import Cost, Prices

ENDPOINT = {"name": "e1", "url": "http://127.0.0.1:1", "model": "tiny", "pool": "cpu"}


def cost(usage: Usage, model: str = "tiny", pool: str = "cpu", **prices: Any) -> Cost:
    return Prices(PricesSettings.model_validate(prices)).cost(model, pool, usage)


def test_each_kind_costs_its_own_price() -> None:
    prices = {"models": {"tiny": {"prompt": 0.3, "cached": 0.03, "output": 1.2}}}
    # 400 × 0.3, 600 × 0.03 and 50 × 1.2 dollars a million
    assert cost(Usage(1000, 600, 50), **prices) == Cost(120_000, 18_000, 60_000)


def test_cached_tokens_without_a_price_of_their_own_cost_what_others_do() -> None:
    assert cost(Usage(1000, 600, 50), models={"tiny": {"prompt": 1}}) == Cost(400_000, 600_000, None)


def test_where_the_engine_does_not_tell_what_was_cached_all_costs_the_full_price() -> None:
    assert cost(Usage(1000, None, 50), models={"tiny": {"prompt": 1, "cached": 0.1, "output": 2}}) == Cost(
        1_000_000, None, 100_000
    )


def test_what_has_no_price_is_unknown_and_a_price_of_nothing_is_nothing() -> None:
    assert cost(Usage(1000, 600, 50), models={"other": {"prompt": 1}}) == Cost(None, None, None)
    assert cost(Usage(1000, 600, 50), models={"tiny": {"output": 0}}) == Cost(None, None, 0)


def test_what_the_engine_did_not_say_is_unknown() -> None:
    assert cost(Usage(), models={"tiny": {"prompt": 1, "output": 1}}) == Cost(None, None, None)


def test_the_pools_prices_take_the_place_of_the_models_as_a_whole() -> None:
    prices = {"models": {"tiny": {"prompt": 1, "output": 1}}, "pools": {"cheap": {"prompt": 0.1}}}
    assert cost(Usage(1000, 0, 50), pool="cheap", **prices) == Cost(100_000, 0, None)


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"models": {"huge": {"prompt": 1}}}, "prices.models.huge: is neither under models nor served by an endpoint"),
        ({"models": {"alias": {"prompt": 1}}}, "prices.models.alias: is an alias"),
        ({"pools": {"gpu": {"prompt": 1}}}, "prices.pools.gpu: is the pool of no endpoint"),
        ({"models": {"tiny": {"prompt": -1}}}, "Input should be greater than or equal to 0"),
        ({"models": {"tiny": {"prompts": 1}}}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_prices_name_their_field(prices: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings.model_validate({"endpoints": [ENDPOINT], "models": {"alias": {"alias_of": "tiny"}}, "prices": prices})
