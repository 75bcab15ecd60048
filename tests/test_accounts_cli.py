"""`serving keys …` and `serving usage`, as somebody types them."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr
from typer.testing import CliRunner

from serving import cli
from serving.core.errors import ConfigurationError
from serving.ledger_settings import DatabaseSettings
from serving.settings import load_settings
from serving.tenancy.database.open import open_database
from serving.tenancy.identities import Identities
from serving.tenancy.keys import KeyHashes, KeyTable, key_secret, read_key_file
from tests.tenancy.test_usage import note

SECRET = "the secret of all gateways"
ENDPOINTS = [{"name": "e1", "url": "http://127.0.0.1:1", "model": "tiny"}]


class Shell:
    """The program with one file of settings."""

    def __init__(self, config: Path, **sections: Any) -> None:
        self.config = config
        config.write_text(yaml.safe_dump({"endpoints": ENDPOINTS, **sections}))

    def run(self, *words: str) -> tuple[str, str]:
        """Standard output, and what was said beside it."""
        done = CliRunner().invoke(cli.app, [*words, "--config", str(self.config)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    def refused(self, *words: str) -> str:
        with pytest.raises(ConfigurationError) as caught:
            CliRunner().invoke(cli.app, [*words, "--config", str(self.config)], catch_exceptions=False)
        return str(caught.value)

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("keys", "list", "--json")[0])
        return found

    def tenant_of(self, key: str) -> str:
        """Whom a gateway of these settings takes the key for."""
        settings = load_settings(self.config)
        hashes = KeyHashes(key_secret(settings))
        identities = Identities(settings.auth, settings.tenants, hashes=hashes, sources=["any"])
        if settings.database.url is None:
            assert settings.auth.key_file is not None
            records = read_key_file(settings.auth.key_file)
        else:
            database = open_database(settings.database)
            records = KeyTable(database).all()
            database.close()
        identities.take_keys("any", [r for r in records if r.revoked_at is None or r.revoked_at > time.time()])
        return identities.identify(key).tenant.name


@pytest.fixture
def shell(database_url: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path / "gateway.yaml", database={"url": database_url}, auth={"key_secret": SECRET})


def test_a_key_is_shown_once_and_opens_its_tenant(shell: Shell) -> None:
    key, said = shell.run("keys", "create", "red", "--note", "for the tests")
    key = key.strip()
    assert key.startswith("sk-") and "\n" not in key
    assert "this once" in said and key not in said
    assert shell.tenant_of(key) == "red"
    (only,) = shell.listed()
    assert (only["tenant"], only["state"], only["note"], only["ends"]) == ("red", "valid", "for the tests", None)
    assert only["id"] in key
    secret = key.partition(only["id"])[2]  # in which hyphens may stand, too
    assert len(secret) > 32 and secret not in "".join(shell.run("keys", "list"))


def test_a_revoked_key_is_listed_and_opens_nothing(shell: Shell) -> None:
    key = shell.run("keys", "create", "red")[0].strip()
    (only,) = shell.listed()
    assert shell.run("keys", "revoke", only["id"])[0] == f"The key {only['id']} is revoked. Gateways refuse it within 5 s.\n"
    assert shell.listed()[0]["state"] == "revoked"
    with pytest.raises(Exception, match="not valid"):
        shell.tenant_of(key)


def test_a_rotated_key_and_its_successor_both_work_for_a_while(shell: Shell) -> None:
    old = shell.run("keys", "create", "red", "--note", "n")[0].strip()
    key_id = shell.listed()[0]["id"]
    new, said = shell.run("keys", "rotate", key_id, "--keep-hours", "2")
    assert said.endswith(f"The key {key_id} ends in 2 h.\n")
    assert [shell.tenant_of(key) for key in (old, new.strip())] == ["red", "red"]
    assert sorted((key["state"], key["note"]) for key in shell.listed()) == [("ending", "n"), ("valid", "n")]
    shell.run("keys", "rotate", key_id, "--keep-hours", "0")
    with pytest.raises(Exception, match="not valid"):
        shell.tenant_of(old)


def test_a_revoked_key_has_no_successor(shell: Shell) -> None:
    shell.run("keys", "create", "red")
    key_id = shell.listed()[0]["id"]
    shell.run("keys", "revoke", key_id)
    assert shell.refused("keys", "rotate", key_id).startswith(f"KEY_ID: the key {key_id!r} is revoked; make a new one with")
    assert len(shell.listed()) == 1


def test_an_end_is_not_put_off_and_the_one_that_holds_is_said(shell: Shell) -> None:
    shell.run("keys", "create", "red")
    key_id = shell.listed()[0]["id"]
    shell.run("keys", "rotate", key_id, "--keep-hours", "2")
    ends = shell.listed()[0]["ends"]
    said = shell.run("keys", "rotate", key_id, "--keep-hours", "500")[1]
    assert said.endswith(f"The key {key_id} ends at {ends}, as was said before.\n")


def test_keys_that_open_nothing_are_not_called_valid(tmp_path: Path) -> None:
    database = {"url": f"sqlite:{tmp_path}/k.db"}
    before = Shell(tmp_path / "before.yaml", database=database, auth={"key_secret": SECRET})
    before.run("keys", "create", "red")
    before.run("keys", "create", "blue")
    listed = Shell(tmp_path / "listed.yaml", database=database, auth={"key_secret": SECRET}, tenants={"red": {}})
    assert {key["tenant"]: key["state"] for key in listed.listed()} == {"red": "valid", "blue": "unknown tenant"}
    blue = next(key["id"] for key in listed.listed() if key["tenant"] == "blue")
    assert listed.refused("keys", "rotate", blue).startswith("TENANT: 'blue' is not under tenants")
    other = Shell(tmp_path / "other.yaml", database=database, auth={"key_secret": SECRET + "!"})
    assert [key["state"] for key in other.listed()] == ["other secret"] * 2


@pytest.mark.parametrize("note", ["two\nlines", "red \x1b[31m", "x" * 257])
def test_a_note_is_one_printable_line(shell: Shell, note: str) -> None:
    assert shell.refused("keys", "create", "red", "--note", note).startswith("--note: ")
    assert shell.listed() == []


@pytest.mark.parametrize("command", ["revoke", "rotate"])
def test_a_key_that_is_not_there_is_said(shell: Shell, command: str) -> None:
    assert shell.refused("keys", command, "nothing").startswith("KEY_ID: there is no key 'nothing'")


def test_a_tenant_has_to_be_a_name_and_listed_where_some_are(shell: Shell, tmp_path: Path) -> None:
    assert shell.refused("keys", "create", "Red!").startswith("TENANT: 'Red!' must be")
    listed = Shell(tmp_path / "other.yaml", database={"url": f"sqlite:{tmp_path}/o.db"}, tenants={"red": {}})
    assert listed.refused("keys", "create", "blue").startswith("TENANT: 'blue' is not under tenants")
    listed.run("keys", "create", "red")


def test_without_a_place_for_keys_it_is_said_what_to_set(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "gateway.yaml")
    for words in (["create", "red"], ["list"], ["revoke", "x"], ["rotate", "x"]):
        assert shell.refused("keys", *words).startswith("database.url: is missing, so that keys have no place")
    assert shell.refused("keys", "list", "--file").startswith("auth.key_file: is missing")
    assert shell.refused("usage").startswith("database.url: is missing")


def test_a_database_that_is_away_is_said_in_one_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "gateway.yaml", database={"url": "postgresql://u:hush@127.0.0.1:1/x"}, auth={"key_secret": SECRET})
    said = shell.refused("keys", "list")
    assert said.startswith("database.url: ") and "hush" not in said and "\n" not in said


# Key files


@pytest.fixture
def file_shell(tmp_path: Path) -> Shell:
    (tmp_path / "keys").touch()
    return Shell(tmp_path / "gateway.yaml", auth={"key_secret": SECRET, "key_file": str(tmp_path / "keys")})


def test_with_a_key_file_the_line_to_add_is_printed_and_works(file_shell: Shell, tmp_path: Path) -> None:
    key, said = file_shell.run("keys", "create", "red")
    assert f"Add this line to the Secret behind {tmp_path}/keys:\n" in said
    (tmp_path / "keys").write_text(said.splitlines()[-1] + "\n")
    assert file_shell.tenant_of(key.strip()) == "red"
    (only,) = file_shell.listed()
    assert (only["tenant"], only["state"]) == ("red", "valid")


def test_with_a_key_file_revoking_and_rotating_say_what_to_do(file_shell: Shell, tmp_path: Path) -> None:
    _, said = file_shell.run("keys", "create", "red")
    line = said.splitlines()[-1]
    (tmp_path / "keys").write_text(line)
    key_id = line.split()[0]
    assert f"take the line that begins with {key_id} out of the Secret" in file_shell.refused("keys", "revoke", key_id)
    new, said = file_shell.run("keys", "rotate", key_id)
    assert f"take the line that begins with {key_id} out of the Secret" in said
    (tmp_path / "keys").write_text(said.splitlines()[-2])
    assert file_shell.tenant_of(new.strip()) == "red"


# Usage


@pytest.fixture
def noted(shell: Shell) -> Shell:
    url = load_settings(shell.config).database.url
    database = open_database(DatabaseSettings(url=SecretStr(url.get_secret_value() if url else "")))
    note(database)
    note(database, tenant="blue", model="unpriced")
    database.close()
    return shell


PERIOD = ("--from", "2026-11-01", "--to", "2026-12-01")


def test_usage_as_a_table(noted: Shell) -> None:
    lines = noted.run("usage", *PERIOD)[0].splitlines()
    assert lines[0].split()[:2] == ["tenant", "requests"]
    assert lines[1].split() == ["blue", "1", "100", "60", "5", "5.0", "unknown", "unknown", "0", "0", "1"]
    assert lines[2].split() == ["red", "1", "100", "60", "5", "5.0", "0.000080", "unknown", "0", "0", "0"]


def test_usage_says_what_to_set_where_dollars_are_unknown(noted: Shell) -> None:
    _, said = noted.run("usage", *PERIOD)
    assert "prices.models.MODEL.prompt" in said and "targets.TARGET.dollars_per_accelerator_hour" in said
    _, said = noted.run("usage", *PERIOD, "--tenant", "red")
    assert "prices.models" not in said and "routing.pools.POOL.dollars_per_hour" in said
    assert noted.run("usage", "--tenant", "nobody", *PERIOD)[1] == noted.run("usage", *PERIOD, "--format", "csv")[1] == ""


def test_usage_as_csv_and_json_say_the_same(noted: Shell) -> None:
    options = ("usage", "--by", "tenant", "--by", "day", *PERIOD)
    from_json = json.loads(noted.run(*options, "--format", "json")[0])
    from_csv = list(csv.DictReader(io.StringIO(noted.run(*options, "--format", "csv")[0])))
    assert [(row["tenant"], row["day"]) for row in from_json] == [("blue", "2026-11-29"), ("red", "2026-11-29")]
    assert from_json[0]["dollars"] is None and from_csv[0]["dollars"] == ""
    assert from_json[1]["dollars"] == float(from_csv[1]["dollars"]) == pytest.approx(80e-6)
    assert list(from_json[0]) == list(from_csv[0])


def test_a_dimension_that_is_given_twice_counts_once(noted: Shell) -> None:
    since = ("--from", "2020-01-01")
    twice = noted.run("usage", "--by", "tenant", "--by", "tenant", *since, "--format", "csv")[0]
    assert twice == noted.run("usage", "--by", "tenant", *since, "--format", "csv")[0]


def test_usage_of_nothing_still_has_its_header(noted: Shell) -> None:
    text = noted.run("usage", "--from", "2020-01-01", "--to", "2020-02-01", "--format", "csv")[0]
    assert text.startswith("tenant,requests,") and text.count("\n") == 1
    assert json.loads(noted.run("usage", "--tenant", "nobody", *PERIOD, "--format", "json")[0]) == []


def test_times_without_a_zone_are_utc(noted: Shell) -> None:
    for since, count in (("2026-11-29T11:59", 2), ("2026-11-29T12:01", 0), ("2026-11-29T13:30+01:00", 0)):
        assert len(json.loads(noted.run("usage", "--from", since, "--to", "2026-12-01", "--format", "json")[0])) == count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "yesterday"], "--from: 'yesterday' must be a day as 2026-11-30"),
        (["--from", "0001-01-01T00:00+14:00"], "--from: '0001-01-01T00:00+14:00' must be a day as 2026-11-30"),
        (["--to", "9999-12-31T23:59-14:00"], "--to: '9999-12-31T23:59-14:00' must be a day as 2026-11-30"),
        (["--from", "2026-12-01", "--to", "2026-11-01"], "--from: 2026-12-01T00:00:00+00:00 is not before --to"),
    ],
)
def test_wrong_times_are_named(noted: Shell, options: list[str], words: str) -> None:
    assert noted.refused("usage", *options).startswith(words)
