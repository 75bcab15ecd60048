"""How `serving gateway` starts, and how it says that it cannot."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.open import open_database

GATEWAY = [sys.executable, "-m", "serving", "gateway"]


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SERVING_")}
    return inherited | {"SERVING_SERVER__PORT": "0"} | variables


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


def refusal(**variables: str) -> str:
    done = subprocess.run(GATEWAY, env=environment(**variables), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize("variable", ["SERVING_SERVER__PORT", "SERVING_SERVER__OPERATOR_PORT"])
def test_a_taken_port_is_one_sentence_and_status_2(taken: str, variable: str) -> None:
    message = refusal(**{variable: taken})
    assert message.startswith(f"serving: port {taken} is taken by ")
    assert variable.removeprefix("SERVING_").lower().replace("__", ".") in message


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1"])
@pytest.mark.parametrize("field", ["HOST", "OPERATOR_HOST"])
def test_a_wrong_host_is_one_sentence_and_status_2(field: str, host: str) -> None:
    assert host in refusal(**{f"SERVING_SERVER__{field}": host, "SERVING_SERVER__OPERATOR_PORT": "0"})


def test_where_nobody_is_asked_for_a_key_only_the_loopback_is_listened_on() -> None:
    message = refusal(SERVING_SERVER__HOST="0.0.0.0")
    assert message.startswith("serving: server.host: 0.0.0.0 can be reached from other machines, and nobody is asked for a key")


def test_a_database_of_a_newer_version_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    database = open_database(DatabaseSettings(url=SecretStr(url)))
    database.execute("UPDATE serving_schema SET version = 99")
    database.close()
    assert refusal(SERVING_DATABASE__URL=url).startswith("serving: database.url: the database has schema 99")


def test_a_key_file_that_is_not_there_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    message = refusal(SERVING_AUTH__KEY_FILE=str(tmp_path / "none"), SERVING_AUTH__KEY_SECRET="0123456789abcdef")
    assert message.startswith(f"serving: auth.key_file: {tmp_path}/none cannot be read")


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
def test_without_an_output_the_log_goes_to_the_errors(tmp_path: Path, closed: str) -> None:
    errors = tmp_path / "errors"
    shell = f"exec {shlex.join(GATEWAY)} {closed} 2>{shlex.quote(str(errors))}"
    process = subprocess.Popen(["sh", "-c", shell], env=environment())
    try:
        while process.poll() is None and not (errors.exists() and "running on" in errors.read_text()):
            time.sleep(0.05)
    finally:
        process.terminate()
    assert process.wait(120) == 0
    assert "Traceback" not in errors.read_text()
    assert re.search(r"running on http://127\.0\.0\.1:[1-9]", errors.read_text()), "port 0 is a free one"


def test_without_any_output_it_runs() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    variables = environment(SERVING_SERVER__PORT=str(address[1]))
    process = subprocess.Popen(["sh", "-c", f"exec {shlex.join(GATEWAY)} <&- >&- 2>&-"], env=variables)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(address):
                break
            time.sleep(0.05)
    finally:
        process.terminate()
    assert process.wait(120) == 0
