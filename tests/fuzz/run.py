"""Plays inputs to a gateway in memory and checks the properties of each; what breaks one becomes a file of the corpus.

python -m tests.fuzz.run        (FUZZ_SEED, FUZZ_SECONDS or FUZZ_INPUTS; prints its seed)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import secrets
import sys
import time
from collections import Counter
from pathlib import Path

from serving.core.routes import ROUTES
from tests.doubles.conservation import is_client_request
from tests.doubles.http_requests import ParsedRequest
from tests.fuzz.inputs import pieces_of
from tests.fuzz.memory import Client, MemoryGateway
from tests.fuzz.properties import (
    check_answer,
    check_arrivals,
    check_body_is_the_clients,
    check_engine_request,
    read_answers,
    reference,
)

CORPUS = Path(__file__).parent / "corpus"
MARKER = b"GET /livez HTTP/1.1\r\nHost: marker\r\n\r\n"
WORK = {("POST", path) for path in ROUTES}
BATCH = 500
"""Inputs after which everything must be back."""


class Found(AssertionError):
    """An input that breaks a property."""


class _Faults(logging.Handler):
    """Collects what the gateway logs as a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else record.getMessage())


class Fuzzer:
    """One gateway and what happened to it so far."""

    def __init__(self) -> None:
        self.gateway = MemoryGateway(limits={"header_timeout_seconds": 60.0})
        self.inputs = 0
        self.statuses: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()
        self.engine_requests = 0
        self._work = 0
        self._log = _Faults()
        logging.getLogger().addHandler(self._log)

    def close(self) -> None:
        logging.getLogger().removeHandler(self._log)
        self.gateway.close()

    def play(self, pieces: list[bytes]) -> None:
        """One connection's input. Raises: Found."""
        self.inputs += 1
        try:
            self.gateway.loop.run_until_complete(self._play(pieces))
            self._no_fault()
        except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
            raise Found(f"{type(error).__name__}: {error}; written to {keep(pieces)}") from error

    async def _play(self, pieces: list[bytes]) -> None:
        gateway, engine = self.gateway, self.gateway.engine
        gateway.arrived.clear()
        engine.requests.clear()
        client = Client(gateway)
        for piece in pieces:
            await client.send(piece)
        await client.answered()
        sent = b"".join(pieces)
        before_marker = len(client.received)
        in_sync = client.is_between_requests
        if in_sync:
            await client.send(MARKER)
            await client.answered()
        ended = not client.is_open
        await client.leave()
        arrived = gateway.arrived[:-1] if in_sync else gateway.arrived
        self._check(sent, list(arrived), bytes(client.received[:before_marker]), ended=ended)
        if in_sync:
            (answer,) = read_answers(bytes(client.received[before_marker:]), ["GET"], ended=ended)
            assert (answer.status, gateway.arrived[-1]) == (200, ("GET", "/livez")), "the connection is out of step"
        self.ends["in sync" if in_sync else "closed" if ended else "waiting"] += 1

    def _check(self, sent: bytes, arrived: list[tuple[str, str]], received: bytes, *, ended: bool) -> None:
        engine = self.gateway.engine
        answers = read_answers(received, [method for method, _ in arrived], ended=ended, head_only=b"HEAD" in sent)
        for answer in answers:
            check_answer(answer)
            self.statuses[answer.status] += 1
        seen = reference(sent)
        check_arrivals(arrived, seen)
        assert not engine.malformed, engine.malformed
        work = [(path, request) for request, (method, path) in zip(seen, arrived, strict=False) if (method, path) in WORK]
        assert len(engine.requests) <= len(work), f"engines saw {len(engine.requests)} of the {len(work)} accepted: {arrived}"
        assert len(engine.requests) >= sum(answer.status == 200 for answer in answers) - sum(m != "POST" for m, _ in arrived)
        for request in engine.requests:
            check_engine_request(request)
        self._match(work)
        self._work += sum(is_client_request(*arrival) for arrival in arrived)
        self.engine_requests += len(engine.requests)

    def _match(self, work: list[tuple[str, ParsedRequest]]) -> None:
        """Each body that an engine saw belongs to the next request of its path that can be its source."""
        rest = iter(work)
        for request in self.gateway.engine.requests:
            for path, source in rest:
                if path == request.target and (source.header("content-encoding") or "").lower() in ("", "identity"):
                    try:
                        check_body_is_the_clients(bytes(source.body), bytes(request.body))
                    except (AssertionError, ValueError):
                        continue
                    break
                if source.header("content-encoding") and path == request.target:
                    break
            else:
                raise AssertionError(f"no request that was sent is the source of {bytes(request.body)[:300]!r}")

    def _no_fault(self) -> None:
        faults, self._log.lines = self._log.lines, []
        loop_faults = list(self.gateway.faults)
        self.gateway.faults.clear()
        assert not faults and not loop_faults, [*faults, *loop_faults]

    def rest(self) -> None:
        """Everything that was taken is given back, and each request has one outcome. Raises: AssertionError."""
        gateway = self.gateway.app

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.gateway.loop.run_until_complete(turns())
        gateway.pipeline.publish()
        assert gateway.admission.open_leases == 0
        assert gateway.pipeline.in_flight == 0
        assert gateway.relay.open_exchanges == 0
        assert not gateway.edge._active
        assert self.gateway.server.door.open_connections == 0
        assert not self.gateway.server.server_state.tasks
        assert not asyncio.all_tasks(self.gateway.loop)
        ended = sum(gateway.metrics.requests._values.values())
        assert ended == self._work, f"{self._work} requests, {ended} outcomes"


def keep(pieces: list[bytes]) -> Path:
    """Write an input down for the test that replays the corpus."""
    text = json.dumps([piece.decode("latin-1") for piece in pieces])
    path = CORPUS / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path.write_text(text)
    return path


def kept(path: Path) -> list[bytes]:
    return [piece.encode("latin-1") for piece in json.loads(path.read_text())]


def search(seed: int, *, inputs: int | None = None, seconds: float | None = None) -> Fuzzer:
    """Play made-up inputs until there were so many, or for so long. Raises: Found."""
    chance = random.Random(seed)
    started, started_cpu = time.monotonic(), time.process_time()
    fuzzer = Fuzzer()
    try:
        while (inputs is None or fuzzer.inputs < inputs) and (seconds is None or time.monotonic() - started < seconds):
            for _ in range(BATCH):
                fuzzer.play(pieces_of(chance))
            fuzzer.rest()
    finally:
        took, cpu = time.monotonic() - started, time.process_time() - started_cpu
        print(
            f"seed {seed}: {fuzzer.inputs} inputs in {took:.1f} s ({cpu:.1f} s of CPU), "
            f"answers {dict(sorted(fuzzer.statuses.items()))}, "
            f"connections {dict(fuzzer.ends)}, engines saw {fuzzer.engine_requests}",
            flush=True,
        )
        fuzzer.close()
    return fuzzer


def main() -> int:
    seed = int(os.environ.get("FUZZ_SEED") or secrets.randbits(32))
    seconds = os.environ.get("FUZZ_SECONDS")
    inputs = os.environ.get("FUZZ_INPUTS")
    print(f"FUZZ_SEED={seed}", flush=True)
    try:
        search(seed, inputs=int(inputs) if inputs else None, seconds=float(seconds) if seconds else None if inputs else 600.0)
    except Found as found:
        print(found, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
