"""Keys are shown once, kept as keyed hashes, and nothing that is kept opens anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from serving.core.errors import ConfigurationError, Unauthorized, Unavailable
from serving.ledger_settings import DatabaseSettings
from serving.settings import AuthSettings, Settings
from serving.tenancy.database.base import Database
from serving.tenancy.database.open import open_database
from serving.tenancy.identities import Identities
from serving.tenancy.key_file import WatchedKeyFile
from serving.tenancy.keys import KeyHashes, KeyRecord, KeyTable, key_line, key_secret, new_key, read_key_file
from serving.tenant_settings import TenantSettings

HASHES = KeyHashes("the server's secret")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(DatabaseSettings(url=SecretStr(database_url)))
    yield opened
    opened.close()


def made(tenant: str = "red") -> tuple[KeyRecord, str]:
    return new_key(tenant, HASHES, note="for tests", now=1000.0)


def holding(*records: KeyRecord, tenants: dict[str, TenantSettings] | None = None, **auth: Any) -> Identities:
    identities = Identities(AuthSettings(**auth), tenants, hashes=HASHES, sources=["database"])
    identities.take_keys("database", records)
    return identities


def test_no_two_keys_are_alike_and_each_says_its_id() -> None:
    keys = [made() for _ in range(100)]
    assert len({text for _, text in keys}) == len({record.id for record, _ in keys}) == 100
    for record, text in keys:
        assert text.startswith(f"sk-{record.id}-")
        assert len(text) > 50


def test_what_is_kept_holds_neither_the_key_nor_a_hash_that_anybody_can_make() -> None:
    record, text = made()
    secret = text.removeprefix(f"sk-{record.id}-")
    assert secret not in repr(record)
    assert record.hash != KeyHashes("another secret").kept(text)
    assert record.hash == KeyHashes("the server's secret").kept(text), "all gateways of one secret agree"


def test_a_key_opens_its_tenant_and_says_which_it_is() -> None:
    (red, red_text), (blue, blue_text) = made("red"), made("blue")
    identities = holding(red, blue)
    assert [(i.tenant.name, i.key_id) for i in map(identities.identify, (red_text, blue_text))] == [
        ("red", red.id),
        ("blue", blue.id),
    ]


@pytest.mark.parametrize("wrong", ["", "sk-", "what is kept", "a character less", "a character more", "\udcff"])
def test_everything_else_opens_nothing(wrong: str) -> None:
    record, text = made()
    wrong = {"what is kept": record.hash, "a character less": text[:-1], "a character more": text + "x"}.get(wrong, wrong)
    with pytest.raises(Unauthorized):
        holding(record).identify(wrong)


def test_without_a_key_there_are_places_for_keys_and_so_nobody_is_served() -> None:
    with pytest.raises(Unauthorized) as caught:
        holding().identify(None)
    assert caught.value.error_code == "missing_api_key"


def test_anonymous_requests_are_served_where_that_is_said_and_wrong_keys_are_not() -> None:
    identities = holding(allow_anonymous=True)
    assert identities.identify(None).tenant.name == "default"
    with pytest.raises(Unauthorized):
        identities.identify("sk-wrong")


def test_before_the_keys_are_known_a_key_is_not_called_wrong() -> None:
    record, text = made()
    identities = Identities(AuthSettings(api_key=SecretStr("plain")), hashes=HASHES, sources=["database", "file"])
    identities.take_keys("file", [])
    assert not identities.is_ready
    with pytest.raises(Unavailable) as caught:
        identities.identify(text)
    assert (caught.value.error_code, caught.value.retry_after_seconds) == ("keys_unavailable", 5)
    assert identities.identify("plain").tenant.name == "default", "what is known is good already"
    identities.take_keys("database", [record])
    assert identities.is_ready
    assert identities.identify(text).tenant.name == "red"


def test_sources_stand_beside_each_other() -> None:
    (one, one_text), (two, two_text) = made("red"), made("blue")
    identities = Identities(AuthSettings(), hashes=HASHES, sources=["database", "file"])
    identities.take_keys("database", [one])
    identities.take_keys("file", [two])
    identities.take_keys("database", [])
    assert identities.identify(two_text).tenant.name == "blue"
    with pytest.raises(Unauthorized):
        identities.identify(one_text)


def test_keys_of_tenants_that_are_not_listed_or_of_another_secret_open_nothing_and_are_counted() -> None:
    counted: dict[str, int] = {}
    red, red_text = made("red")
    stray, stray_text = made("stray")
    foreign, foreign_text = new_key("red", KeyHashes("another secret"), note="", now=0.0)
    identities = Identities(
        AuthSettings(), {"red": TenantSettings()}, hashes=HASHES, sources=["database"], ignored=counted.__setitem__
    )
    identities.take_keys("database", [red, stray, foreign])
    assert identities.identify(red_text).tenant.name == "red"
    for text in (stray_text, foreign_text):
        with pytest.raises(Unauthorized):
            identities.identify(text)
    assert counted == {"unknown_tenant": 1, "other_secret": 1}


def test_caches_are_kept_apart_as_soon_as_keys_may_come() -> None:
    record, text = made()
    tenant = holding(record).identify(text).tenant
    assert tenant.isolation_group is not None
    assert holding(record, isolate_caches=False).identify(text).tenant.isolation_group is None


def test_gateways_of_one_key_secret_agree_on_cache_salts() -> None:
    def salt(secret: str) -> str | None:
        return Identities(AuthSettings(), hashes=KeyHashes(secret), sources=["database"]).cache_salt("tenant:red", None)

    assert salt("the server's secret") == salt("the server's secret") != salt("another secret")


# In a database


def test_a_key_is_in_the_table_until_it_is_revoked(database: Database) -> None:
    table = KeyTable(database)
    (red, _), (blue, _) = made("red"), made("blue")
    before = table.changes()
    table.add(red)
    table.add(blue)
    assert sorted(table.all()) == sorted([red, blue])
    assert table.changes() != before
    before = table.changes()
    assert table.revoke(red.id, 2000.0)
    assert table.changes() != before
    assert {record.id: record.revoked_at for record in table.all()} == {red.id: 2000.0, blue.id: None}


def test_a_revoked_key_does_not_come_back_by_a_later_end(database: Database) -> None:
    table = KeyTable(database)
    record, _ = made()
    table.add(record)
    table.revoke(record.id, 2000.0)
    assert table.revoke(record.id, 3000.0)
    assert table.all()[0].revoked_at == 2000.0
    assert table.revoke(record.id, 1500.0)
    assert table.all()[0].revoked_at == 1500.0


def test_a_key_that_is_not_there_cannot_be_revoked_or_replaced(database: Database) -> None:
    table = KeyTable(database)
    before = table.changes()
    assert not table.revoke("nothing", 0.0)
    assert not table.replace("nothing", made()[0], 0.0)
    assert table.all() == []
    assert table.changes() == before


def test_a_successor_comes_and_the_old_one_ends(database: Database) -> None:
    table = KeyTable(database)
    old, new = made()[0], made()[0]
    table.add(old)
    assert table.replace(old.id, new, 5000.0)
    assert {record.id: record.revoked_at for record in table.all()} == {old.id: 5000.0, new.id: None}


# The secret


def test_sqlite_makes_its_secret_once(tmp_path: Path) -> None:
    settings = Settings.model_validate({"database": {"url": f"sqlite:{tmp_path}/x.db"}})
    secret = key_secret(settings)
    assert len(secret) >= 32
    assert key_secret(settings) == secret
    assert (tmp_path / "x.db.secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["x.db.secret"], "nothing else is left"


def test_an_empty_secret_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "x.db.secret").touch()
    with pytest.raises(ConfigurationError, match="is empty; restore it"):
        key_secret(Settings.model_validate({"database": {"url": f"sqlite:{tmp_path}/x.db"}}))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match=r"auth\n.*key_secret is shorter than 16 characters"):
        Settings.model_validate({"auth": {"key_secret": "short"}})


# In a file


def test_a_line_of_a_key_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    (red, red_text), (blue, _) = made("red"), made("blue")
    path.write_text(f"# our keys\n{key_line(red)}\n\n  {key_line(blue)}  \n")
    records = read_key_file(path)
    assert [(record.id, record.tenant) for record in records] == [(red.id, "red"), (blue.id, "blue")]
    assert holding(*records).identify(red_text).tenant.name == "red"


@pytest.mark.parametrize("line", ["one two", "id red hash", "id red " + "a" * 64, "id red aaaaaaaa:" + "a" * 64 + " more"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n{line}\n")
    with pytest.raises(ConfigurationError, match=f"auth.key_file: {path}, line 2: must be ID TENANT HASH"):
        read_key_file(path)


@pytest.mark.parametrize("tenant", ["Red", "=cmd", "a{b}", "-", "r\u00e9d", "x" * 64])
def test_a_tenant_of_a_key_file_has_to_be_a_name(tmp_path: Path, tenant: str) -> None:
    path = tmp_path / "keys"
    path.write_text(key_line(made()[0]._replace(tenant=tenant)))
    with pytest.raises(ConfigurationError, match=r"line 1: the tenant '.+' must be 1 to 63 of a-z"):
        read_key_file(path)


def test_an_id_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    line = key_line(made()[0])
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"line 2: the id \w+ stands there twice"):
        read_key_file(path)


def test_a_changed_file_is_read_when_it_is_time_and_a_wrong_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    (red, _), (blue, _) = made("red"), made("blue")
    path.write_text(key_line(red))
    watched = WatchedKeyFile(path, poll_seconds=5.0)

    def ids(now: float) -> list[str] | None:
        records = watched.changed(now)
        return None if records is None else [record.id for record in records]

    assert ids(100.0) == [red.id]
    path.write_text(key_line(blue))
    assert ids(104.9) is None
    assert ids(105.0) == [blue.id]
    assert ids(110.0) is None, "nothing has changed"
    path.write_text("half a li")
    assert ids(115.0) is None
    assert ids(120.0) is None
    path.unlink()
    assert ids(125.0) is None
    assert [("line 1" in line, "cannot be read" in line) for line in caplog.messages] == [(True, False), (False, True)]
    path.write_text("")
    assert ids(130.0) == []


def test_a_key_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"auth\.key_file: .* cannot be read"):
        WatchedKeyFile(tmp_path / "none", poll_seconds=5.0)
