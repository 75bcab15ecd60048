"""HTTP/1.1 to engines on real loopback sockets: what is an answer, what is not, and what becomes of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.engines.exchange import AnswerTimedOut, BrokenAnswer, Exchange, StaleConnection, Unreachable, WireError
from serving.engines.wire import Address, Connection, Pool
from tests.doubles.settling import HANG_SECONDS, settled

REQUEST = b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK"
LONG_SECONDS = 60.0

Play = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The engine's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def left(self) -> None:
        """Wait until the gateway has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Engine:
    """Accepts connections and plays the same part on each."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.accepted = 0
        self.ended = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._play(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.ended += 1
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


StartEngine = Callable[[Play], Awaitable[tuple[Engine, Pool]]]


def pool_at(url: str, *, connect_timeout_seconds: float = 5.0, idle_seconds: float = LONG_SECONDS) -> Pool:
    return Pool(Address.parse(url), connect_timeout_seconds=connect_timeout_seconds, idle_seconds=idle_seconds)


def url_of(listener: Any) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def start() -> AsyncIterator[StartEngine]:
    """Start an engine and a pool of connections to it."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(play: Play) -> tuple[Engine, Pool]:
            engine = Engine(play)
            server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
            stack.push_async_callback(engine.stop)
            stack.callback(server.close)
            pool = pool_at(url_of(server.sockets[0]))
            stack.callback(pool.close_idle)
            return engine, pool

        yield start


async def begin(pool: Pool, *, fresh: bool = False, high_water_bytes: int = 1024 * 1024) -> Exchange:
    """Send a request; what comes back is read with the exchange."""
    return begin_on(await pool.connection(fresh=fresh), high_water_bytes=high_water_bytes)


def begin_on(connection: Connection, *, high_water_bytes: int = 1024 * 1024) -> Exchange:
    exchange = Exchange(
        connection,
        deadline=connection.loop.time() + LONG_SECONDS,
        idle_timeout_seconds=LONG_SECONDS,
        high_water_bytes=high_water_bytes,
    )
    connection.send(exchange, REQUEST)
    return exchange


async def rest(exchange: Exchange) -> bytes:
    body, complete = b"", False
    while not complete:
        piece, complete = await exchange.piece()
        body += piece
    return body


async def ask(pool: Pool) -> tuple[int, bytes]:
    exchange = await begin(pool)
    return await exchange.head(), await rest(exchange)


async def until(condition: Callable[[], bool]) -> None:
    async def problems() -> Sequence[str]:
        return [] if condition() else ["the condition does not hold"]

    await settled(problems)


def saying(*answers: bytes) -> Play:
    """Each answer to a request of its own, then the end of the connection."""

    async def play(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.say(answer)

    return play


async def always_ok(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.say(OK)


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.left()


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://engine:8000", Address("engine", 8000, "", b"engine:8000")),
        ("http://engine", Address("engine", 80, "", b"engine:80")),
        ("http://[::1]:8000", Address("::1", 8000, "", b"[::1]:8000")),
        ("unix:/run/engine.sock", Address("", 0, "/run/engine.sock", b"engine")),
    ],
)
def test_an_address_is_host_and_port_or_a_path(url: str, address: Address) -> None:
    assert Address.parse(url) == address


# What an answer is


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"OK"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", 503, b"busy"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", 200, b"abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\ntrailer: x\r\n\r\n", 200, b"a"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 200 OK\r\n\r\n", 200, b""),
        (b"HTTP/1.0 200 OK\r\n\r\nold", 200, b"old"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"OK"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK, 200, b"OK"),
    ],
)
async def test_an_answer_is_read_to_its_end(start: StartEngine, answer: bytes, status: int, body: bytes) -> None:
    _, pool = await start(saying(answer))
    assert await ask(pool) == (status, body)


async def test_an_answer_may_come_byte_by_byte(start: StartEngine) -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    async def play(peer: Peer) -> None:
        await peer.request()
        for index in range(len(answer)):
            await peer.say(answer[index : index + 1])
            await asyncio.sleep(0)
        await peer.left()

    _, pool = await start(play)
    assert await ask(pool) == (200, b"abc")


async def test_headers_are_lower_case_and_without_what_is_between_two_hops(start: StartEngine) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n"
        b"Proxy-Authenticate: x\r\nTE: trailers\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"
    )
    _, pool = await start(saying(answer))
    exchange = await begin(pool)
    await exchange.head()
    assert exchange.headers == [(b"content-type", b"text/plain"), (b"content-length", b"0")]


async def test_headers_of_an_interim_answer_are_not_the_answers(start: StartEngine) -> None:
    _, pool = await start(saying(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK))
    exchange = await begin(pool)
    await exchange.head()
    assert exchange.headers == [(b"content-length", b"2")]


async def test_the_head_is_there_before_the_body(start: StartEngine) -> None:
    go_on = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK[:-2])
        await go_on.wait()
        await peer.say(OK[-2:])

    _, pool = await start(play)
    exchange = await begin(pool)
    assert await exchange.head() == 200
    go_on.set()
    assert await rest(exchange) == b"OK"


# What is no answer


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_broken(start: StartEngine, answer: bytes) -> None:
    _, pool = await start(saying(answer))
    with pytest.raises(BrokenAnswer):
        await ask(pool)
    await until(lambda: pool.open_connections == 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\npart",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\nXY\r\n",
    ],
)
async def test_a_body_cut_short_is_broken_after_what_came_of_it(start: StartEngine, answer: bytes) -> None:
    _, pool = await start(saying(answer))
    exchange = await begin(pool)
    assert await exchange.head() == 200
    assert await exchange.piece() == (b"part", False)
    with pytest.raises(BrokenAnswer):
        await exchange.piece()


async def test_a_reset_is_no_end_of_a_body_that_lasts_until_the_end(start: StartEngine) -> None:
    read = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\npart")
        await read.wait()
        peer.reset()

    _, pool = await start(play)
    exchange = await begin(pool)
    assert await exchange.piece() == (b"part", False)
    read.set()
    with pytest.raises(BrokenAnswer):
        await exchange.piece()


# Which connections are kept


async def test_a_kept_connection_is_used_again(start: StartEngine) -> None:
    engine, pool = await start(always_ok)
    for _ in range(5):
        assert await ask(pool) == (200, b"OK")
    assert (engine.accepted, pool.open_connections) == (1, 1)


async def test_a_fresh_connection_is_a_new_one(start: StartEngine) -> None:
    engine, pool = await start(always_ok)
    await ask(pool)
    await rest(await begin(pool, fresh=True))
    assert engine.accepted == 2


async def test_the_connection_used_last_is_used_first(start: StartEngine) -> None:
    _, pool = await start(always_ok)
    older, newer = await pool.connection(), await pool.connection()
    for connection in (older, newer):
        await rest(begin_on(connection))
    assert await pool.connection() is newer
    assert await pool.connection() is older


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nOK",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nOK",
    ],
)
async def test_a_connection_that_the_engine_wants_closed_is_closed(start: StartEngine, answer: bytes) -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer)
        await peer.left()

    engine, pool = await start(play)
    assert await ask(pool) == (200, b"OK")
    await until(lambda: engine.ended == 1 and pool.open_connections == 0)


@pytest.mark.parametrize("behind", [OK, b"H", b"garbage", b"HTTP/1.1 200 OK\r\n"])
async def test_bytes_behind_an_answer_end_the_connection(start: StartEngine, behind: bytes) -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + behind)
        await peer.left()

    engine, pool = await start(play)
    for _ in range(2):
        assert await ask(pool) == (200, b"OK")
    assert engine.accepted == 2
    await until(lambda: engine.ended == 2 and pool.open_connections == 0)


async def test_bytes_on_an_idle_connection_end_it(start: StartEngine) -> None:
    idle = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await idle.wait()
        await peer.say(OK)
        await peer.left()

    engine, pool = await start(play)
    await ask(pool)
    idle.set()
    await until(lambda: engine.ended == 1 and pool.open_connections == 0)


async def test_a_connection_idle_for_too_long_is_not_used(start: StartEngine) -> None:
    engine, pool = await start(always_ok)
    connection = await pool.connection()
    await rest(begin_on(connection))
    connection.idle_since -= LONG_SECONDS + 1
    await ask(pool)
    assert engine.accepted == 2
    await until(lambda: engine.ended == 1 and pool.open_connections == 1)


async def test_only_connections_idle_for_longer_are_closed(start: StartEngine) -> None:
    engine, pool = await start(always_ok)
    old, young = await pool.connection(), await pool.connection()
    for connection in (old, young):
        await rest(begin_on(connection))
    old.idle_since -= 10
    pool.close_idle(older_than_seconds=5)
    await until(lambda: engine.ended == 1 and pool.open_connections == 1)
    pool.close_idle()
    await until(lambda: engine.ended == 2 and pool.open_connections == 0)


async def test_an_idle_connection_that_the_engine_closes_is_forgotten(start: StartEngine) -> None:
    _, pool = await start(saying(OK))
    await ask(pool)
    await until(lambda: pool.open_connections == 0)
    assert await ask(pool) == (200, b"OK")


# Stale connections


async def test_a_kept_connection_that_ends_without_a_byte_is_stale(start: StartEngine) -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await peer.request()

    _, pool = await start(play)
    await ask(pool)
    with pytest.raises(StaleConnection):
        await ask(pool)


async def test_a_kept_connection_that_is_reset_without_a_byte_is_stale(start: StartEngine) -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await peer.request()
        peer.reset()

    _, pool = await start(play)
    await ask(pool)
    with pytest.raises(StaleConnection):
        await ask(pool)


async def test_a_kept_connection_that_ends_after_a_byte_is_broken(start: StartEngine) -> None:
    _, pool = await start(saying(OK, b"H"))
    await ask(pool)
    with pytest.raises(BrokenAnswer):
        await ask(pool)


async def test_a_new_connection_that_ends_without_a_byte_is_broken(start: StartEngine) -> None:
    _, pool = await start(saying(b""))
    with pytest.raises(BrokenAnswer):
        await ask(pool)


async def test_a_connection_that_was_lost_before_it_is_used_is_stale(start: StartEngine) -> None:
    async def play(peer: Peer) -> None:
        peer.close()

    _, pool = await start(play)
    connection = await pool.connection()
    await until(lambda: connection.transport is None)
    exchange = Exchange(connection, deadline=0.0, idle_timeout_seconds=1.0, high_water_bytes=1)
    connection.send(exchange, REQUEST)
    with pytest.raises(StaleConnection):
        await exchange.head()


# Giving up


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", OK[:-1]])
async def test_closing_in_the_middle_closes_the_socket(start: StartEngine, said: bytes) -> None:
    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)
        await peer.left()

    engine, pool = await start(play)
    exchange = await begin(pool)
    exchange.close()
    await until(lambda: engine.ended == 1 and pool.open_connections == 0)
    exchange.close()
    assert pool.open_connections == 0


async def test_closing_after_the_end_keeps_the_connection(start: StartEngine) -> None:
    engine, pool = await start(always_ok)
    exchange = await begin(pool)
    await rest(exchange)
    exchange.close()
    await ask(pool)
    assert engine.accepted == 1


async def test_whoever_waits_for_a_closed_exchange_is_told(start: StartEngine) -> None:
    _, pool = await start(silent)
    exchange = await begin(pool)
    waiting = asyncio.create_task(exchange.head())
    await asyncio.sleep(0)
    exchange.close()
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(WireError):
            await waiting


async def test_a_failed_exchange_raises_its_first_error(start: StartEngine) -> None:
    _, pool = await start(silent)
    exchange = await begin(pool)
    waiting = asyncio.create_task(exchange.head())
    await asyncio.sleep(0)
    exchange.fail(AnswerTimedOut("first"))
    exchange.fail(BrokenAnswer("second"))
    with pytest.raises(AnswerTimedOut, match="first"):
        await waiting
    with pytest.raises(AnswerTimedOut, match="first"):
        await exchange.piece()
    exchange.close()


async def test_a_complete_answer_cannot_fail_any_more(start: StartEngine) -> None:
    _, pool = await start(always_ok)
    exchange = await begin(pool)
    await until(lambda: exchange.connection is None)
    exchange.fail(AnswerTimedOut("too late"))
    assert await rest(exchange) == b"OK"


# Deadlines


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_engine_that_is_silent_past_the_deadline_is_overdue(start: StartEngine) -> None:
    _, pool = await start(silent)
    exchange = await begin(pool)
    waiting = asyncio.create_task(exchange.head())
    await asyncio.sleep(0)
    assert not exchange.overdue(now())
    exchange.deadline -= LONG_SECONDS + 1
    assert exchange.overdue(now())
    exchange.fail(AnswerTimedOut("silent"))
    with pytest.raises(AnswerTimedOut):
        await waiting
    exchange.close()


async def test_a_client_that_does_not_ask_makes_no_engine_overdue(start: StartEngine) -> None:
    _, pool = await start(silent)
    exchange = await begin(pool)
    exchange.deadline -= LONG_SECONDS + 1
    assert not exchange.overdue(now())
    exchange.close()


async def test_each_piece_moves_the_deadline(start: StartEngine) -> None:
    _, pool = await start(saying(OK))
    exchange = await begin(pool)
    exchange.deadline = 0.0
    await rest(exchange)
    assert not exchange.overdue(now())
    assert exchange.deadline > LONG_SECONDS


async def test_time_in_which_reading_was_paused_is_not_the_engines(start: StartEngine) -> None:
    _, pool = await start(silent)
    exchange = await begin(pool, high_water_bytes=1000)
    exchange.feed(b"x" * 1001)
    exchange.deadline -= LONG_SECONDS + 1  # the client took that long
    await exchange.piece()
    waiting = asyncio.create_task(exchange.piece())
    await asyncio.sleep(0)
    overdue = exchange.overdue(now())
    exchange.fail(AnswerTimedOut("the test is over"))
    with pytest.raises(AnswerTimedOut):
        await waiting
    exchange.close()
    assert not overdue, "the engine could not send while it was not read"


# Back-pressure


async def test_reading_pauses_while_the_client_takes_nothing_and_goes_on_after(start: StartEngine) -> None:
    size = 8 * 1024 * 1024

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        await peer.say(bytes(size))
        await peer.left()

    _, pool = await start(play)
    exchange = await begin(pool, high_water_bytes=64 * 1024)
    connection = exchange.connection
    assert connection is not None and connection.transport is not None
    transport: Any = connection.transport
    await until(lambda: not transport.is_reading())
    piece, complete = await exchange.piece()
    assert not complete
    assert 64 * 1024 < len(piece) < 1024 * 1024
    assert transport.is_reading()
    assert len(piece) + len(await rest(exchange)) == size


async def test_a_connection_paused_at_the_end_of_an_answer_reads_the_next_one(start: StartEngine) -> None:
    body = bytes(200_000)
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    engine, pool = await start(saying(large, large))
    for _ in range(2):
        exchange = await begin(pool, high_water_bytes=10)
        assert await rest(exchange) == body
    assert engine.accepted == 1


# Connecting


async def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    engine = Engine(always_ok)
    server = await asyncio.start_unix_server(engine.serve, path)
    pool = pool_at(f"unix:{path}")
    try:
        assert await ask(pool) == (200, b"OK")
        assert await ask(pool) == (200, b"OK")
        assert engine.accepted == 1
    finally:
        pool.close_idle()
        server.close()
        await engine.stop()


async def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        pool = pool_at(url_of(bound))
        with pytest.raises(Unreachable):
            await pool.connection()
    assert pool.open_connections == 0


async def test_a_missing_unix_socket_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        await pool_at(f"unix:{tmp_path / 'missing.sock'}").connection()


@pytest.mark.parametrize("host", ["engine..svc", "a" * 64 + ".svc"])
async def test_a_name_that_cannot_be_one_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable):
        await pool_at(f"http://{host}:8000").connection()


@pytest.fixture
async def full_port() -> AsyncIterator[str]:
    """An address whose queue of connections is full, so that a further one hangs."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filling = sockets.enter_context(socket.socket())
            filling.setblocking(False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await loop.sock_connect(filling, listener.getsockname())
        yield url_of(listener)


async def test_a_port_that_does_not_accept_in_time_is_unreachable(full_port: str) -> None:
    pool = pool_at(full_port, connect_timeout_seconds=0.05)
    with pytest.raises(Unreachable, match="in time"):
        await pool.connection()
    assert pool.open_connections == 0


async def test_dialling_that_is_cancelled_leaves_nothing(full_port: str) -> None:
    pool = pool_at(full_port)
    dialling = asyncio.create_task(pool.connection())
    await asyncio.sleep(0)
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    assert pool.open_connections == 0


class SlowToSay:
    """The running loop, but a connection that is up is not handed over before the dialling is given up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connected = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *arguments: Any, **options: Any) -> None:
        await self._loop.create_connection(*arguments, **options)
        self.connected.set()
        await asyncio.Event().wait()


@pytest.fixture
def slow_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[], SlowToSay]:
    def install() -> SlowToSay:
        loop = SlowToSay(asyncio.get_running_loop())
        monkeypatch.setattr("serving.engines.wire.asyncio.get_running_loop", lambda: loop)
        return loop

    return install


async def test_dialling_cancelled_just_when_it_succeeds_leaves_nothing(
    start: StartEngine, slow_loop: Callable[[], SlowToSay]
) -> None:
    _, pool = await start(silent)
    loop = slow_loop()
    dialling = asyncio.create_task(pool.connection())
    await loop.connected.wait()
    assert pool.open_connections == 1
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    await until(lambda: pool.open_connections == 0)


async def test_dialling_that_times_out_just_when_it_succeeds_leaves_nothing(
    start: StartEngine, slow_loop: Callable[[], SlowToSay]
) -> None:
    _, there = await start(silent)
    pool = Pool(there.address, connect_timeout_seconds=0.2, idle_seconds=LONG_SECONDS)
    slow_loop()
    with pytest.raises(Unreachable):
        await pool.connection()
    await until(lambda: pool.open_connections == 0)


# Requests whose end comes later

OPEN_REQUEST = b"POST / HTTP/1.1\r\nhost: engine\r\ntransfer-encoding: chunked\r\n\r\n"


async def begin_open(pool: Pool) -> Exchange:
    connection = await pool.connection()
    exchange = Exchange(
        connection,
        deadline=connection.loop.time() + LONG_SECONDS,
        idle_timeout_seconds=LONG_SECONDS,
        high_water_bytes=1024,
    )
    connection.send(exchange, OPEN_REQUEST, more=True)
    return exchange


async def test_an_open_request_is_ended_and_its_connection_kept(start: StartEngine) -> None:
    async def play(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.request()  # the last chunk ends with a blank line, too
            await peer.say(OK)

    engine, pool = await start(play)
    for _ in range(2):
        exchange = await begin_open(pool)
        assert await exchange.send_more(b"2\r\nhi\r\n")
        assert await exchange.send_more(b"0\r\n\r\n")
        exchange.sent(LONG_SECONDS)
        assert (await exchange.head(), await rest(exchange)) == (200, b"OK")
    assert engine.accepted == 1


async def test_an_answer_before_the_requests_end_closes_the_connection(start: StartEngine) -> None:
    """Another request on it would be read as the rest of this one."""

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        await peer.left()

    engine, pool = await start(play)
    exchange = await begin_open(pool)
    assert (await exchange.head(), await rest(exchange)) == (200, b"OK")
    assert not await exchange.send_more(b"2\r\nhi\r\n")
    exchange.close()
    await until(lambda: pool.open_connections == 0)
    await begin_open(pool)
    await until(lambda: engine.accepted == 2)


async def test_more_waits_until_the_engine_has_room_and_the_wait_is_the_engines(start: StartEngine) -> None:
    go_on = asyncio.Event()
    read_bytes = 0

    async def play(peer: Peer) -> None:
        nonlocal read_bytes
        await peer.request()
        await go_on.wait()
        read_bytes = len(await peer._reader.readexactly(64 * 1024 * 300))

    _, pool = await start(play)
    exchange = await begin_open(pool)
    data = b"s" * (64 * 1024)
    sent = 0

    async def push() -> None:
        nonlocal sent
        while sent < 300:
            assert await exchange.send_more(data)
            sent += 1

    pushing = asyncio.create_task(push())
    connection = exchange.connection
    assert connection is not None
    await until(lambda: connection.writing_paused)
    assert sent < 300 and not exchange.overdue(now())
    exchange.deadline = 0.0
    assert exchange.overdue(now())
    go_on.set()
    await asyncio.wait_for(pushing, HANG_SECONDS)
    await until(lambda: read_bytes == 64 * 1024 * 300)
    exchange.close()


async def test_more_for_a_connection_that_is_gone_raises(start: StartEngine) -> None:
    _, pool = await start(saying())
    exchange = await begin_open(pool)
    with pytest.raises(BrokenAnswer):
        while await exchange.send_more(b"2\r\nhi\r\n"):
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(12))
async def test_dialling_cancelled_at_any_moment_is_not_counted_for_ever(start: StartEngine, steps: int) -> None:
    """The loop may close a socket whose protocol it has told of its beginning, and never tell it of its end."""
    _, pool = await start(silent)
    dialling = asyncio.create_task(pool.connection())
    for _ in range(steps):
        await asyncio.sleep(0)
    dialling.cancel()
    await asyncio.wait({dialling})
    if not dialling.cancelled():
        dialling.result().abandon()
    await until(lambda: pool.open_connections == 0)
