"""Settings of limits and queue say what is wrong and what would be right."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serving.settings import Settings
from serving.tenancy.shared_quotas import CONNECT_SECONDS

STORE = "redis://:secret@redis:6379/0"


def endpoint(name: str = "e1", **more: Any) -> dict[str, Any]:
    return {"name": name, "url": "http://engine:8000", "model": "tiny", **more}


def refusal(**sections: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(sections)
    text = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in caught.value.errors())
    assert "secret" not in text
    return text


def test_slots_are_given_to_all_endpoints_of_a_model_or_to_none() -> None:
    text = refusal(endpoints=[endpoint(slots=4), endpoint("e2")])
    assert "'e1' has slots and 'e2'" in text and "all endpoints of a model or to none" in text
    Settings.model_validate({"endpoints": [endpoint(slots=4), endpoint("e2") | {"model": "other"}]})


def test_a_share_needs_to_know_of_how_many() -> None:
    assert "limits.store: Value error, replicas is missing" in refusal(limits={"store": {"url": STORE}})
    Settings.model_validate({"limits": {"store": {"url": STORE, "replicas": 2}}})
    Settings.model_validate({"limits": {"store": {"url": STORE, "when_down": "closed"}}})


@pytest.mark.parametrize("url", ["http://redis:6379", "redis:6379", ""])
def test_a_store_is_a_redis(url: str) -> None:
    assert "redis://HOST:PORT" in refusal(limits={"store": {"url": url, "replicas": 2}})


@pytest.mark.parametrize(("field", "value"), [("timeout_seconds", 0.2), ("retry_seconds", 5), ("lease_seconds", 1)])
def test_a_store_that_is_lost_is_known_in_time(field: str, value: float) -> None:
    assert f"limits.store.{field}" in refusal(limits={"store": {"url": STORE, "replicas": 2, field: value}})


def test_dollars_need_a_price() -> None:
    tenants = {"a": {"limits": {"dollars_per_day": 5}}}
    text = refusal(endpoints=[endpoint()], tenants=tenants)
    assert "tenants.a.limits.dollars_per_day" in text and "prices.models.tiny" in text
    half = {"models": {"tiny": {"prompt": 1}}}
    assert "prices.models.tiny" in refusal(endpoints=[endpoint()], tenants=tenants, prices=half)
    Settings.model_validate({"endpoints": [endpoint(tasks=["embed"])], "tenants": tenants, "prices": half})
    whole = {"models": {"tiny": {"prompt": 1, "output": 0}}}
    Settings.model_validate({"endpoints": [endpoint()], "tenants": tenants, "prices": whole})
    by_pool = {"pools": {"default": {"prompt": 1, "output": 2}}}
    Settings.model_validate({"endpoints": [endpoint()], "tenants": tenants, "prices": by_pool})
    other = {"a": {"models": ["other"], "limits": {"dollars_per_day": 5}}}
    Settings.model_validate({"endpoints": [endpoint()], "models": {"other": {}}, "tenants": other})
    models = {"other": {"fallbacks": ["tiny"]}}
    text = refusal(endpoints=[endpoint()], models=models, tenants=other)
    assert "'tiny'" in text, "what may answer in its place costs, too"


def test_a_store_that_is_back_is_used_again_within_five_seconds() -> None:
    Settings.model_validate({"limits": {"store": {"url": STORE, "replicas": 2, "retry_seconds": 4}}})
    assert 4 + CONNECT_SECONDS <= 5
