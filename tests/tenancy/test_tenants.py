"""A tenant's terms: what it may ask for, with what caps, and who shares its caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ConfigurationError
from serving.settings import Settings, load_settings
from serving.tenancy.tenants import Tenant, Tenants
from serving.tenant_settings import DEFAULT_TENANT, ParameterLimits, TenantSettings

ENDPOINTS = "endpoints: [{name: e1, url: http://127.0.0.1:1, model: tiny}]\n"


def tenants(isolates: bool = True, **terms: dict[str, Any]) -> Tenants:
    settings = {name: TenantSettings.model_validate(fields) for name, fields in terms.items()}
    return Tenants(settings, ParameterLimits(n=4, max_tokens=100), isolates=isolates)


def tenant(isolates: bool = True, **fields: Any) -> Tenant:
    found = tenants(isolates, red=fields).find("red")
    assert found is not None
    return found


def test_without_terms_everything_is_allowed_within_the_gateways_caps() -> None:
    plain = tenant()
    assert plain.may_use("anything")
    assert plain.parameters == ParameterLimits(n=4, max_tokens=100)
    assert (plain.priority, plain.may_use_class_header) == ("standard", False)
    assert set(plain.limits.model_dump().values()) == {None}


def test_models_are_those_that_are_listed() -> None:
    assert [tenant(models=["tiny"]).may_use(name) for name in ("tiny", "large", "")] == [True, False, False]


def test_a_cap_takes_the_place_of_the_gateways_and_the_others_stay() -> None:
    caps = tenant(parameters={"n": 1, "prompt_logprobs": 5}).parameters
    assert (caps.n, caps.prompt_logprobs, caps.max_tokens) == (1, 5, 100)
    assert caps.bounds["n"] == (1, 1)


def test_a_cap_may_be_taken_away() -> None:
    assert tenant(parameters={"max_tokens": None}).parameters.max_tokens is None


def test_where_tenants_are_listed_no_other_exists_but_the_default_one() -> None:
    listed = tenants(red={})
    assert listed.find("blue") is None
    assert listed.find(DEFAULT_TENANT) is not None


def test_where_none_are_listed_every_name_is_a_tenant_and_always_the_same_one() -> None:
    known = tenants()
    found = known.find("blue")
    assert found is not None
    assert found is known.find("blue")


def test_isolation_groups() -> None:
    groups = {
        name: tenant(**fields).isolation_group
        for name, fields in {
            "own": {},
            "shared": {"isolation": "shared", "isolation_group": "red"},
            "off": {"isolation": "off"},
        }.items()
    }
    assert groups["off"] is None
    assert groups["own"] is not None
    assert groups["own"] != groups["shared"], "a group is not the tenant of its name"
    assert tenant(isolates=False).isolation_group is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants: {Red: {}}", "tenants.Red.[key]: String should match pattern"),
        ("tenants: {red: {model: [tiny]}}", "tenants.red.model: is not a setting; did you mean tenants.red.models?"),
        ("tenants: {red: {models: [huge]}}", "tenants.red.models.0: 'huge' is neither under models nor served by an endpoint"),
        ("tenants: {red: {models: []}}", "tenants.red.models: Tuple should have at least 1 item"),
        (
            "tenants: {red: {limits: {concurrency: 0}}}",
            "tenants.red.limits.concurrency: Input should be greater than or equal to 1",
        ),
        ("tenants: {red: {limits: {dollars_per_day: 0}}}", "tenants.red.limits.dollars_per_day: Input should be greater than 0"),
        ("tenants: {red: {limits: {rpm: 1}}}", "tenants.red.limits.rpm: is not a setting"),
        ("tenants: {red: {priority: urgent}}", "tenants.red.priority: Input should be 'interactive', 'standard' or 'batch'"),
        ("tenants: {red: {isolation: shared}}", "tenants.red: isolation is shared and isolation_group is missing"),
        ("tenants: {red: {isolation_group: g}}", "tenants.red: isolation_group is given and isolation is own"),
        ("tenants: {red: {parameters: {n: 0}}}", "tenants.red.parameters.n: Input should be greater than or equal to 1"),
        ("tenants: {red: {tags: {team: 1}}}", "tenants.red.tags.team: Input should be a valid string"),
        (
            f"tenants: {{red: {{}}}}\nauth: {{keys: [{{tenant: blue, sha256: {'a' * 64}}}]}}",
            "auth.keys.0.tenant: 'blue' is not under tenants",
        ),
    ],
)
def test_wrong_terms_name_their_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(ENDPOINTS + text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path)
    assert message in str(caught.value)


def test_terms_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.model_validate({"tenants": {"red": {}}}).tenants["red"].priority = "batch"  # type: ignore[misc]
