"""A key belongs to a tenant; without keys everybody is the default one."""

from __future__ import annotations

import hashlib

import pytest
from pydantic import SecretStr

from serving.api.edge import bearer
from serving.core.errors import InvalidRequest, Unauthorized
from serving.settings import AuthSettings, KeySettings
from serving.tenancy.identities import Identities
from serving.tenant_settings import DEFAULT_TENANT


def key(tenant: str, text: str) -> KeySettings:
    return KeySettings(tenant=tenant, sha256=hashlib.sha256(text.encode()).hexdigest())


TWO_TENANTS = Identities(AuthSettings(keys=(key("red", "red-key"), key("red", "red-key-2"), key("blue", "blue-key"))))


@pytest.mark.parametrize("credential", [None, "", "anything"])
def test_without_keys_everybody_is_the_default_tenant(credential: str | None) -> None:
    assert Identities(AuthSettings()).identify(credential).tenant.name == DEFAULT_TENANT


@pytest.mark.parametrize(("credential", "tenant"), [("red-key", "red"), ("red-key-2", "red"), ("blue-key", "blue")])
def test_a_key_belongs_to_its_tenant(credential: str, tenant: str) -> None:
    assert TWO_TENANTS.identify(credential).tenant.name == tenant


@pytest.mark.parametrize("credential", ["", "RED-KEY", "red-key ", "red-ke", "\udcff", hashlib.sha256(b"red-key").hexdigest()])
def test_what_is_no_key_is_refused(credential: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        TWO_TENANTS.identify(credential)
    assert (caught.value.status, caught.value.error_code) == (401, "invalid_api_key")
    assert caught.value.headers == {"www-authenticate": "Bearer"}


def test_a_missing_key_is_told_from_a_wrong_one() -> None:
    with pytest.raises(Unauthorized) as caught:
        TWO_TENANTS.identify(None)
    assert caught.value.error_code == "missing_api_key"
    assert caught.value.headers == {"www-authenticate": "Bearer"}


def test_a_refusal_does_not_repeat_the_key() -> None:
    with pytest.raises(Unauthorized) as caught:
        TWO_TENANTS.identify("sk-mistyped")
    assert "sk-mistyped" not in caught.value.message


def test_one_plain_key_is_the_default_tenants() -> None:
    identities = Identities(AuthSettings(api_key=SecretStr("plain")))
    assert identities.identify("plain").tenant.name == DEFAULT_TENANT
    with pytest.raises(Unauthorized):
        identities.identify("other")


def test_the_plain_key_stands_beside_the_hashed_ones() -> None:
    identities = Identities(AuthSettings(api_key=SecretStr("plain"), keys=(key("red", "red-key"),)))
    assert [identities.identify(text).tenant.name for text in ("plain", "red-key")] == [DEFAULT_TENANT, "red"]


@pytest.mark.parametrize("text", ["schlüssel", "鍵", "with space"])
def test_any_text_may_be_a_key(text: str) -> None:
    credential = bearer(b"Bearer " + text.encode())
    assert Identities(AuthSettings(keys=(key("red", text),))).identify(credential).tenant.name == "red"


def test_a_plain_key_with_a_newline_from_its_file_can_be_used() -> None:
    identities = Identities(AuthSettings(api_key=SecretStr("plain\n")))
    assert identities.identify(bearer(b"Bearer plain")).tenant.name == DEFAULT_TENANT


def test_no_key_stands_in_an_identities_attributes() -> None:
    identities = Identities(AuthSettings(api_key=SecretStr("plain")))
    assert "plain" not in repr(vars(identities))


# Cache salts


def isolating(secret: str | None = "s", **fields: bool) -> Identities:
    cache_secret = None if secret is None else SecretStr(secret)
    return Identities(AuthSettings(keys=(key("red", "red-key"), key("blue", "blue-key")), cache_secret=cache_secret, **fields))


def test_each_tenant_has_a_salt_of_its_own() -> None:
    identities = isolating()
    red, blue = identities.cache_salt("red", None), identities.cache_salt("blue", None)
    assert red and blue
    assert red != blue
    assert red == identities.cache_salt("red", None)


def test_gateways_with_the_same_secret_agree_and_others_do_not() -> None:
    salt = isolating().cache_salt("red", None)
    assert salt == isolating().cache_salt("red", None)
    assert salt != isolating("other").cache_salt("red", None)
    assert isolating(None).cache_salt("red", None) != isolating(None).cache_salt("red", None)


def test_a_clients_own_salt_parts_its_prompts_further_and_never_passes_as_it_is() -> None:
    identities = isolating()
    assert identities.cache_salt("red", "mine") != identities.cache_salt("red", None)
    assert "mine" not in (identities.cache_salt("red", "mine") or "")


def test_no_own_salt_names_another_tenants() -> None:
    identities = isolating()
    assert identities.cache_salt("re", "d") != identities.cache_salt("red", "")
    assert identities.cache_salt("1:a", "b") != identities.cache_salt("1", ":ab")


def test_without_keys_or_isolation_only_an_own_salt_is_one() -> None:
    for identities in (Identities(AuthSettings()), isolating(isolate_caches=False)):
        red, blue = (identities.tenants.find(name) for name in ("red", "blue"))
        assert red and blue
        assert identities.cache_salt(red.isolation_group, None) is None
        assert identities.cache_salt(red.isolation_group, "mine") == identities.cache_salt(blue.isolation_group, "mine")


@pytest.mark.parametrize("own", [1, True, [], {}])
def test_a_salt_that_is_no_string_is_refused(own: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        isolating().cache_salt("red", own)
    assert caught.value.param == "cache_salt"


def test_any_string_may_be_a_salt() -> None:
    assert isolating().cache_salt("red", "\ud800")
