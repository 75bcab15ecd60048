"""Fixtures for tests with other people's clients; all of them carry the mark `clients`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.programs import HERE, NODE_CLIENTS, PYTHON, Client, Program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def clients_installed() -> None:
    if not PYTHON.exists() or not (NODE_CLIENTS / "node_modules").is_dir():
        pytest.fail("the clients are not installed: `make setup-clients`, or leave these tests out with -m 'not clients'")


@pytest.fixture(scope="session")
def start_program(clients_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Client], Program]]:
    """Gives a client's process, the same one for the whole run."""
    started: dict[Client, Program] = {}

    def start(client: Client) -> Program:
        if client not in started:
            started[client] = Program(client, tmp_path_factory.mktemp("client"))
        return started[client]

    yield start
    for program in started.values():
        program.stop()
