"""Any order of what clients do, engines do and time does: whatever was taken is given back, and no answer lies.

Hypothesis makes up the orders and shortens those that fail. Each runs a whole gateway with two engines on a loop of its own, and
ends with the conservation check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from serving.core.outcomes import AttemptResult
from tests.doubles.conservation import Expectation, conserved
from tests.doubles.http_requests import ParsedRequest
from tests.doubles.raw_client import HangUp, RawClient, RawResponse, request_bytes
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import settings_over
from tests.flow.surfaces import GENERATING, RESPONSES, asking, assert_error, is_whole

pytestmark = pytest.mark.slow

T = TypeVar("T")
Phase_ = Literal["half a head", "half a body", "sent", "answer begun"]
STEPS = 30
"""In one sequence."""
STEP_SECONDS = 30
LIMITS = {"in_flight": 6, "body_timeout_seconds": 2.0, "header_timeout_seconds": 2.0}
RELAY = {"first_byte_timeout_seconds": 0.6, "idle_timeout_seconds": 0.6, "client_write_timeout_seconds": 0.6}
PROBE = {"period_seconds": 0.05, "timeout_seconds": 0.5}
EXPECTED = Expectation(
    unsure_results=(AttemptResult.STALE, AttemptResult.BROKEN, AttemptResult.CANCELLED), answers_may_be_given_up=True
)
"""An engine that is killed may take a request to its grave unread, and a client may leave before its request is sent on."""
GARBAGE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"
HALF_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x'
BIG_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 60_000 + b'"}}]}\n\n'

FAULTS: dict[str, Script] = {
    "well": Script(),
    "slow": Script(ttft_seconds=0.02, itl_seconds=0.002),
    "blackhole": Script(blackhole=True),
    "reset before the head": Script(rst_after=0, head_at_arrival=False),
    "reset after the head": Script(rst_after=0),
    "closed before the head": Script(close_after=0, head_at_arrival=False),
    "reset in the middle": Script(rst_after=2),
    "closed in the middle": Script(close_after=2),
    "truncated": Script(truncate_body_bytes=30),
    "stalls": Script(stall_after=1),
    "garbage": Script(raw_is="response", raw=((0.0, GARBAGE),), ending="fin"),
    "no HTTP": Script(raw_is="response", raw=((0.0, b"\x16\x03\x01 hello"),), ending="stall"),
    "half an event": Script(raw_is="body", raw=((0.0, HALF_EVENT),), ending="fin"),
    "error event": Script(error_after=2),
    "error event first": Script(error_after=0),
    "400": Script(status=400),
    "404": Script(status=404),
    "429": Script(status=429),
    "500": Script(status=500),
    "503": Script(status=503),
    "closes after the answer": Script(ending="fin"),
    "resets after the answer": Script(ending="rst"),
    "floods": Script(raw_is="body", raw=((0.0, BIG_EVENT),) * 200, log_bytes=False),
}
HOW = st.sampled_from(["fin", "rst"])


@dataclass
class Guest:
    """One client connection and where it is with its request."""

    client: RawClient
    path: str = ""
    stream: bool = False
    phase: Phase_ | None = None
    rest: bytes = b""
    """What is still to be sent."""
    response: RawResponse | None = None
    behind: list[tuple[str, bool]] = field(default_factory=list)
    """Requests pipelined behind this one."""

    @property
    def idle(self) -> bool:
        return self.phase is None


def check(response: RawResponse, path: str, stream: bool) -> None:
    """An answer is whole, or says that it is not."""
    if response.status != 200:
        assert_error(response, path)
        return
    if response.end != "complete":
        return
    if not (stream or (response.header("content-type") or "").startswith("text/event-stream")):
        assert response.json
    elif not is_whole(response, path):
        last = response.events[-1]
        told = b"error" in last or (b"response.failed" in last and path == RESPONSES)
        assert told, response.body[-300:]


class Conservation(RuleBasedStateMachine):
    """Clients, engines and time."""

    taken = 0
    """Steps of all sequences together."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.stack = contextlib.AsyncExitStack()
        self.guests: list[Guest] = []
        self.scripts: dict[str, Script] = {}
        self.gates: list[Gate] = []
        self.number = 0

        self.work: asyncio.Queue[tuple[Coroutine[Any, Any, Any], asyncio.Future[Any]]] = asyncio.Queue()
        self.worker = self.loop.create_task(self._take_on())

    async def _take_on(self) -> None:
        """One task does all that a step asks for: what is there before and after it has no tasks of the steps in it."""
        while True:
            work, done = await self.work.get()
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    done.set_result(await work)
            except Exception as error:  # noqa: BLE001  (it is the step's, which gets it)
                done.set_exception(error)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        done: asyncio.Future[T] = self.loop.create_future()
        self.work.put_nowait((work, done))
        return self.loop.run_until_complete(done)

    @initialize(attempts=st.integers(1, 3), comments=st.booleans())
    def begin(self, attempts: int, comments: bool) -> None:
        self.run(self._begin(attempts, comments))

    async def _begin(self, attempts: int, comments: bool) -> None:
        first = await self.stack.enter_async_context(ScriptedEngine())
        second = await self.stack.enter_async_context(ScriptedEngine())
        self.engines = {"e1": first, "e2": second}
        for engine in (first, second):
            engine.choose = self._script
        relay = RELAY | {"max_attempts": attempts} | ({"keep_alive_comment_seconds": 0.1} if comments else {})
        settings_ = settings_over(self.engines, limits=LIMITS, relay=relay, probe=PROBE)
        self.gateway = await self.stack.enter_async_context(conserved(settings_, self.engines, EXPECTED, within_seconds=10.0))

    def _script(self, request: ParsedRequest) -> Script:
        """By the request's id, so that each request meets its own fault, on whichever engine and however often it is tried."""
        return self.scripts.get(request.header("x-request-id") or "", FAULTS["well"])

    def _request(self, path: str, stream: bool, fault: str, held: bool) -> bytes:
        self.number += 1
        name = f"r{self.number}"
        script = FAULTS[fault]
        if held and fault == "well":
            gate = Gate(events=1)
            self.gates.append(gate)
            script = Script(gate=gate)
        self.scripts[name] = script
        return request_bytes(path, asking(path, stream=stream), headers={"X-Request-Id": name})

    def _pick(self, number: int, *phases: Phase_ | None) -> Guest | None:
        fitting = [guest for guest in self.guests if guest.phase in phases]
        return fitting[number % len(fitting)] if fitting else None

    # Clients

    @precondition(lambda self: len(self.guests) < 10)
    @rule(small=st.booleans())
    def arrive(self, small: bool) -> None:
        client = self.run(RawClient(self.gateway.url, receive_buffer_bytes=4096 if small else None).connect())
        self.guests.append(Guest(client))

    @precondition(lambda self: any(guest.idle for guest in self.guests))
    @rule(
        number=st.integers(0, 9),
        path=st.sampled_from(GENERATING),
        stream=st.booleans(),
        fault=st.sampled_from(sorted(FAULTS)),
        held=st.booleans(),
        upto=st.sampled_from(["half a head", "half a body", "sent", "sent", "sent", "sent"]),
    )
    def ask(self, number: int, path: str, stream: bool, fault: str, held: bool, upto: Phase_) -> None:
        guest = self._pick(number, None)
        assert guest is not None
        data = self._request(path, stream, fault, held)
        head = data.index(b"\r\n\r\n") + 4
        cut = {"half a head": head // 2, "half a body": head + 5, "sent": len(data)}[upto]
        guest.path, guest.stream, guest.phase, guest.rest = path, stream, upto, data[cut:]
        self._send(guest, data[:cut])

    @rule(path=st.sampled_from(GENERATING), stream=st.booleans(), fault=st.sampled_from(sorted(FAULTS)))
    def come_ask_and_read(self, path: str, stream: bool, fault: str) -> None:
        """All of it in one step, on a connection that is then kept."""
        guest = Guest(self.run(RawClient(self.gateway.url).connect()), path, stream, "sent")
        self.guests.append(guest)
        self._send(guest, self._request(path, stream, fault, False))
        if guest in self.guests:
            self.run(self._read(guest))

    @rule(number=st.integers(0, 9))
    def send_the_rest(self, number: int) -> None:
        guest = self._pick(number, "half a head", "half a body")
        if guest is not None:
            data, guest.rest, guest.phase = guest.rest, b"", "sent"
            self._send(guest, data)

    @rule(number=st.integers(0, 9), path=st.sampled_from(GENERATING), fault=st.sampled_from(sorted(FAULTS)))
    def pipeline(self, number: int, path: str, fault: str) -> None:
        guest = self._pick(number, "sent", "answer begun")
        if guest is not None and len(guest.behind) < 3:
            guest.behind.append((path, False))
            self._send(guest, self._request(path, False, fault, False))

    @rule(
        number=st.integers(0, 9),
        data=st.sampled_from([b"\0\0", b"GET / HTTP/9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n\r\n"]),
    )
    def talk_nonsense(self, number: int, data: bytes) -> None:
        guest = self._pick(number, None, "half a head", "sent", "answer begun")
        if guest is not None:
            self._send(guest, data)
            self._drop(guest)

    @rule(number=st.integers(0, 9))
    def read_the_head(self, number: int) -> None:
        guest = self._pick(number, "sent")
        if guest is not None:
            try:
                guest.response = self.run(self._head(guest))
                guest.phase = "answer begun"
            except HangUp:
                self._drop(guest)

    @rule(number=st.integers(0, 9))
    def read_to_the_end(self, number: int) -> None:
        guest = self._pick(number, "sent", "answer begun")
        if guest is not None:
            self.run(self._read(guest))

    async def _head(self, guest: Guest) -> RawResponse:
        self._open_gates()
        return await guest.client.read_head()

    async def _read(self, guest: Guest) -> None:
        try:
            response = guest.response or await self._head(guest)
            self._open_gates()
            async for _ in guest.client.read_body(response):
                pass
        except HangUp:
            self._drop(guest)
            return
        check(response, guest.path, guest.stream)
        guest.response = None
        if response.end != "complete" or response.header("connection") == "close" or guest.client.end is not None:
            self._drop(guest)
        elif guest.behind:
            guest.path, guest.stream = guest.behind.pop(0)
            guest.phase = "sent"
        else:
            guest.phase = None

    def _open_gates(self) -> None:
        gates, self.gates = self.gates, []
        for gate in gates:
            gate.open_all()

    @rule(number=st.integers(0, 9), how=HOW)
    def leave(self, number: int, how: Literal["fin", "rst"]) -> None:
        if self.guests:
            self._drop(self.guests[number % len(self.guests)], how)

    @rule(number=st.integers(0, 9))
    def half_close(self, number: int) -> None:
        """Which counts as leaving here."""
        guest = self._pick(number, "half a head", "half a body", "sent", "answer begun")
        if guest is not None:
            with contextlib.suppress(OSError):
                guest.client.half_close()
            self.tick(0.005)
            self._drop(guest)

    def _send(self, guest: Guest, data: bytes) -> None:
        try:
            self.run(guest.client.send(data))
        except ConnectionError:
            self._drop(guest)

    def _drop(self, guest: Guest, how: Literal["fin", "rst"] = "fin") -> None:
        guest.client.hang_up(how)
        if guest in self.guests:
            self.guests.remove(guest)

    # Engines and time

    @rule(name=st.sampled_from(["e1", "e2"]), how=HOW)
    def kill_an_engine(self, name: str, how: Literal["fin", "rst"]) -> None:
        self.run(self.engines[name].stop(how=how))

    @rule(name=st.sampled_from(["e1", "e2"]))
    def close_a_port(self, name: str) -> None:
        self.engines[name].refuse()

    @rule(name=st.sampled_from(["e1", "e2"]))
    def start_an_engine(self, name: str) -> None:
        self.engines[name].refuse()
        self.run(self.engines[name].start())

    @rule(name=st.sampled_from(["e1", "e2"]), dead=st.booleans())
    def hang_an_engine(self, name: str, dead: bool) -> None:
        self.engines[name].blackhole = dead

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3]))
    def tick(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def open_gates(self) -> None:
        self._open_gates()

    @invariant()
    def nothing_is_below_zero_or_above_its_ceiling(self) -> None:
        Conservation.taken += 1
        if hasattr(self, "gateway"):
            gateway = self.gateway.app
            assert 0 <= gateway.admission.open_leases <= LIMITS["in_flight"]
            assert gateway.pipeline.in_flight >= gateway.admission.open_leases
            assert all(gateway.pipeline._chooser.in_flight(name) >= 0 for name in self.engines)
            assert gateway.relay.open_exchanges <= 20 + 2 * len(self.engines)

    def teardown(self) -> None:
        try:
            self.run(self._end())
        finally:
            for guest in self.guests:
                guest.client.hang_up()
            self.worker.cancel()
            self.loop.run_until_complete(asyncio.wait({self.worker}))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _end(self) -> None:
        """All clients leave; within the time-outs everything is back, which `conserved` checks."""
        for guest in list(self.guests):
            self._drop(guest)
        self._open_gates()
        for engine in getattr(self, "engines", {}).values():
            engine.blackhole = False
            engine.refuse()
            await engine.start()
        await self.stack.aclose()
        if hasattr(self, "gateway"):
            assert all(self.gateway.app.pipeline._chooser.in_flight(name) == 0 for name in self.engines)

            async def left() -> list[str]:
                count = self.gateway.app.relay.open_connections
                return [f"{count} connections to engines"] if count else []

            await settled(left)


def search(steps: int) -> None:
    """Take at least that many steps, in sequences of at most `STEPS`."""
    begun = Conservation.taken
    while (left := steps - (Conservation.taken - begun)) > 0:
        options = settings(
            max_examples=max(1, left // STEPS),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(Conservation, settings=options)
    print(f"{Conservation.taken - begun} steps")


def test_nothing_is_lost_in_600_steps() -> None:
    search(600)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_10000_steps() -> None:
    search(10_000)
