"""A token before the first traffic, when an endpoint returns, and as the trial of one that failed. Time is virtual here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from serving.core.outcomes import AttemptResult
from serving.core.routes import Task
from serving.fleet.breaker import BreakerState, Fault
from serving.fleet.health import Health
from serving.fleet.probe import Probe, ProbeFailed
from serving.fleet.store import Endpoint, EndpointState, Fleet, most_ejected
from serving.fleet.token_request import TokenAnswer, TokenRequest, token_answer, token_request
from serving.health_settings import HealthSettings
from serving.settings import ProbeSettings
from tests.doubles.virtual_time import in_virtual_time

READY, UNREADY, UNKNOWN = EndpointState.READY, EndpointState.UNREADY, EndpointState.UNKNOWN
CLOSED, OPEN, HALF_OPEN = BreakerState
TOKEN = b'{"choices":[{"text":" a","finish_reason":"length"}]}'
SETTINGS = HealthSettings(open_seconds=5.0, most_open_seconds=40.0, slow_start_seconds=30.0)
MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()


def endpoint(number: int) -> Endpoint:
    return Endpoint(f"e{number}", f"http://e{number}:8000", "tiny", "default", "cpu")


class Engines:
    """All of them; what `get` and `post` say of one stands under its url."""

    def __init__(self) -> None:
        self.cheap: dict[str, int | ProbeFailed] = {}
        self.token: dict[str, tuple[int, bytes] | ProbeFailed] = {}
        self.looks: list[float] = []
        self.trials: list[tuple[float, str]] = []
        self.running = 0
        self.most_running = 0
        self.seconds = 0.1

    async def get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        said = self.cheap.get(url, 200)
        self.looks.append(asyncio.get_running_loop().time())
        if isinstance(said, ProbeFailed):
            raise said
        return said, MODELS

    async def post(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]:
        self.trials.append((asyncio.get_running_loop().time(), url))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        said = self.token.get(url, (200, TOKEN))
        late = isinstance(said, ProbeFailed) and said.timed_out
        await asyncio.sleep(timeout_seconds if late else self.seconds)
        self.running -= 1
        if isinstance(said, ProbeFailed):
            raise said
        return said


class Watched:
    """A fleet of endpoints under probe and breakers."""

    def __init__(self, endpoints: int, settings: HealthSettings = SETTINGS) -> None:
        self.engines = Engines()
        self.endpoints = [endpoint(number) for number in range(1, endpoints + 1)]
        self.fleet = Fleet(self.endpoints, settings=settings)
        self.ejected: list[tuple[str, Fault]] = []
        clock = asyncio.get_running_loop().time
        self.health = Health(self.fleet, settings, clock, ejected=lambda e, fault: self.ejected.append((e.name, fault)))
        self.probe = Probe(
            self.fleet,
            self.engines.get,
            ProbeSettings(period_seconds=1.0),
            post=self.engines.post,
            health=self.health,
            token_timeout_seconds=settings.token_timeout_seconds,
        )

    def state(self, number: int = 1) -> EndpointState:
        return self.fleet.snapshot.statuses[f"e{number}"].state

    def breaker(self, number: int = 1) -> BreakerState:
        return self.fleet.snapshot.statuses[f"e{number}"].breaker

    def share(self, number: int) -> float:
        return self.fleet.snapshot.statuses[f"e{number}"].share(asyncio.get_running_loop().time())

    def fail(self, number: int, result: AttemptResult = AttemptResult.ERROR, times: int = 3) -> None:
        for _ in range(times):
            self.health.ended(self.endpoints[number - 1], result, asyncio.get_running_loop().time())

    def names(self) -> list[str]:
        return [e.name for e in self.fleet.snapshot.candidates("tiny")]

    def trials_of(self, number: int) -> list[float]:
        return [at for at, url in self.engines.trials if url == self.endpoints[number - 1].url]


@in_virtual_time
async def test_a_new_endpoint_is_ready_once_its_token_came() -> None:
    watched = Watched(1)
    async with watched.probe:
        await asyncio.sleep(0.05)
        assert (watched.state(), len(watched.engines.trials)) == (UNKNOWN, 1)
        await asyncio.sleep(0.1)
        assert watched.state() is READY
        await asyncio.sleep(20.0)
        assert len(watched.engines.trials) == 1


@in_virtual_time
async def test_o_dsc_2_c_a_loading_engine_is_asked_again_until_it_is_done() -> None:
    watched = Watched(1)
    watched.engines.token[watched.endpoints[0].url] = (503, b"")
    async with watched.probe:
        await asyncio.sleep(20.0)
        assert (watched.state(), watched.names()) == (UNREADY, [])
        watched.engines.token.clear()
        await asyncio.sleep(1.2)
        assert watched.state() is READY
    assert watched.ejected == []


@pytest.mark.parametrize(
    "said",
    [(500, b""), (200, b"<<<"), (200, b"{}"), (200, b'{"choices":[{"finish_reason":"abort"}]}'), ProbeFailed("reset")],
)
@in_virtual_time
async def test_a_new_endpoint_that_cannot_make_a_token_stays_out_and_is_asked_less_and_less(
    said: tuple[int, bytes] | ProbeFailed,
) -> None:
    watched = Watched(1)
    watched.engines.token[watched.endpoints[0].url] = said
    async with watched.probe:
        await asyncio.sleep(40.0)
        assert (watched.state(), watched.names()) == (UNREADY, [])
    gaps = [later - earlier for (earlier, _), (later, _) in zip(watched.engines.trials, watched.engines.trials[1:], strict=False)]
    assert gaps == pytest.approx([5.1, 10.1, 20.1])
    assert watched.ejected == [("e1", Fault.TRIAL)]


@in_virtual_time
async def test_a_token_that_does_not_come_in_time_leaves_it_unknown() -> None:
    """Perhaps it is full of other gateways' requests: without a better one it is asked all the same."""
    watched = Watched(2)
    watched.engines.token[watched.endpoints[0].url] = ProbeFailed("late", timed_out=True)
    watched.engines.token[watched.endpoints[1].url] = ProbeFailed("late", timed_out=True)
    async with watched.probe:
        await asyncio.sleep(11.0)
        assert (watched.state(), watched.names()) == (UNKNOWN, ["e1", "e2"])
        watched.engines.token.pop(watched.endpoints[1].url)
        await asyncio.sleep(10.0)
        assert watched.names() == ["e2"]


@in_virtual_time
async def test_an_endpoint_that_does_not_know_the_request_is_ready() -> None:
    watched = Watched(1)
    watched.engines.token[watched.endpoints[0].url] = (404, b"")
    async with watched.probe:
        await asyncio.sleep(1.0)
        assert watched.state() is READY


@in_virtual_time
async def test_an_endpoint_that_was_discovered_gets_nothing_before_it_was_asked() -> None:
    watched = Watched(1)
    async with watched.probe:
        watched.fleet.replace("other", [endpoint(2)])
        assert watched.names() == ["e1"]
        watched.fleet.record("e1", UNREADY, "gone")
        assert watched.names() == []


@in_virtual_time
async def test_one_that_refused_is_asked_for_a_token_when_it_is_back_and_one_that_was_silent_is_not() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.engines.cheap[watched.endpoints[0].url] = ProbeFailed("refused")
        watched.engines.cheap[watched.endpoints[1].url] = ProbeFailed("late", timed_out=True)
        await asyncio.sleep(4.0)
        assert (watched.state(1), watched.state(2)) == (UNREADY, UNREADY)
        watched.engines.cheap.clear()
        await asyncio.sleep(2.0)
        assert (watched.state(1), watched.state(2)) == (READY, READY)
        assert (len(watched.trials_of(1)), len(watched.trials_of(2))) == (2, 1)


# Breakers


@in_virtual_time
async def test_a_failing_endpoint_is_out_until_its_trial_passes() -> None:
    watched = Watched(3)
    watched.engines.token[watched.endpoints[0].url] = (200, TOKEN)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1, times=2)
        assert watched.names() == ["e1", "e2", "e3"]
        watched.fail(1, times=1)
        assert (watched.breaker(), watched.names()) == (OPEN, ["e2", "e3"])
        watched.engines.token[watched.endpoints[0].url] = (500, b"")
        await asyncio.sleep(6.0)
        assert (watched.breaker(), len(watched.trials_of(1))) == (OPEN, 2)
        watched.engines.token.clear()
        await asyncio.sleep(9.0)
        assert watched.breaker() is OPEN
        await asyncio.sleep(1.2)
        assert (watched.breaker(), watched.names()) == (CLOSED, ["e1", "e2", "e3"])
    assert watched.engines.most_running == 3, "at the start, one of each"
    assert watched.ejected == [("e1", Fault.ERROR)]


@in_virtual_time
async def test_o_hlt_1_no_state_lasts_longer_than_its_time_and_one_probe() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.engines.seconds = 2.0
        watched.fail(1)
        opened = asyncio.get_running_loop().time()
        while watched.breaker() is OPEN:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - opened == pytest.approx(5.0, abs=0.05)
        assert watched.breaker() is HALF_OPEN
        assert watched.names() == ["e2"]
        await asyncio.sleep(2.01)
        assert watched.breaker() is CLOSED


@pytest.mark.parametrize("result", [AttemptResult.REFUSED, AttemptResult.BUSY, AttemptResult.STALE, AttemptResult.CANCELLED])
@in_virtual_time
async def test_what_says_nothing_about_an_engine_takes_none_out(result: AttemptResult) -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1, result, times=100)
        assert (watched.breaker(), watched.health.troubled) == (CLOSED, {})


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (AttemptResult.TIMEOUT, Fault.TIMEOUT),
        (AttemptResult.UNREACHABLE, Fault.UNREACHABLE),
        (AttemptResult.BROKEN, Fault.BROKEN),
        (AttemptResult.ERROR, Fault.ERROR),
    ],
)
@in_virtual_time
async def test_each_kind_of_fault_takes_out(result: AttemptResult, fault: Fault) -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1, result)
        assert (watched.breaker(), watched.ejected) == (OPEN, [("e1", fault)])


@in_virtual_time
async def test_one_that_drains_is_out_at_once() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.health.draining(watched.endpoints[0])
        assert (watched.names(), watched.ejected) == (["e2"], [("e1", Fault.DRAINING)])
        await asyncio.sleep(6.0)
        assert watched.names() == ["e1", "e2"]
        watched.health.draining(watched.endpoints[0])
        assert watched.health.seconds_until_trial(watched.endpoints[0]) == 5.0, "to be stopped again and again is no relapse"


@pytest.mark.parametrize(
    ("endpoints", "share", "most"), [(1, 1.0, 0), (2, 0.1, 1), (3, 0.5, 1), (4, 0.5, 2), (10, 0.3, 3), (4, 1.0, 3)]
)
def test_how_many_may_be_out(endpoints: int, share: float, most: int) -> None:
    assert most_ejected(endpoints, share) == most


@in_virtual_time
async def test_when_all_fail_the_least_bad_stay() -> None:
    watched = Watched(4)
    watched.engines.token = {e.url: (500, b"") for e in watched.endpoints}
    watched.engines.token.pop(watched.endpoints[3].url)
    async with watched.probe:
        for number in (1, 2, 3, 4):
            watched.fleet.record(f"e{number}", READY, "ready")
        for number in (1, 2, 3, 4):
            watched.fail(number)
            assert len(watched.names()) >= 2
        assert watched.names() == ["e3", "e4"]
        await asyncio.sleep(6.0)
        assert "e4" in watched.names()


@in_virtual_time
async def test_a_single_endpoint_stays_in_rotation_and_a_whole_answer_closes_its_breaker() -> None:
    watched = Watched(1)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1)
        assert (watched.breaker(), watched.names()) == (OPEN, ["e1"])
        await asyncio.sleep(0.5)
        watched.health.ended(watched.endpoints[0], AttemptResult.OK, asyncio.get_running_loop().time())
        assert watched.breaker() is CLOSED


@in_virtual_time
async def test_one_request_that_breaks_every_engine_counts_half_at_each() -> None:
    watched = Watched(4)
    async with watched.probe:
        await asyncio.sleep(1.0)
        for _ in range(2):
            before: Endpoint | None = None
            for engine in watched.endpoints[:2]:
                before = watched.health.ended(engine, AttemptResult.ERROR, 0.0, failed_before=before)
        watched.fail(1, times=1)
        watched.fail(2, times=1)
        assert (watched.ejected, len(watched.names())) == ([], 4)


@in_virtual_time
async def test_a_dead_engine_with_an_open_breaker_is_not_asked_in_a_tight_loop() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1)
        watched.engines.cheap[watched.endpoints[0].url] = ProbeFailed("refused")
        watched.engines.looks.clear()
        await asyncio.sleep(30.0)
    assert len(watched.engines.looks) < 100


@in_virtual_time
async def test_nobody_is_remembered_who_left_or_has_long_done_well() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.fail(1)
        watched.fail(2, times=1)
        watched.health.retain([watched.endpoints[1]])
        assert list(watched.health.troubled) == [watched.endpoints[1]]
        await asyncio.sleep(1.0)
        watched.health.ended(watched.endpoints[1], AttemptResult.OK, asyncio.get_running_loop().time())
        assert watched.health.troubled == {}
        watched.fleet.replace("default", [watched.endpoints[1]])
        watched.fail(1)
        assert watched.health.troubled == {}


# Slow start


@in_virtual_time
async def test_at_the_start_nobody_is_slow() -> None:
    watched = Watched(3)
    async with watched.probe:
        await asyncio.sleep(5.0)
        assert [watched.share(number) for number in (1, 2, 3)] == [1.0, 1.0, 1.0]
        assert not watched.fleet.snapshot.ramping


@in_virtual_time
async def test_who_comes_later_begins_with_a_little() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(40.0)
        watched.fleet.replace("more", [Endpoint("e3", "http://e3:8000", "tiny", "more", "cpu")])
        watched.probe.follow()
        await asyncio.sleep(0.2)
        assert (watched.state(3), watched.share(3), watched.share(1)) == (READY, 0.1, 1.0)
        assert list(watched.fleet.snapshot.ramping) == ["e3"]
        await asyncio.sleep(15.0)
        assert watched.share(3) == pytest.approx(0.5, abs=0.02)
        await asyncio.sleep(16.0)
        assert watched.share(3) == 1.0
        assert not watched.fleet.snapshot.ramping


@pytest.mark.parametrize("leave", [lambda w: w.fail(1), lambda w: w.probe.suspect(w.endpoints[0], "refused")])
@in_virtual_time
async def test_who_comes_back_begins_with_a_little(leave: Callable[[Watched], None]) -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(40.0)
        leave(watched)
        assert watched.names() == ["e2"]
        while watched.names() == ["e2"]:
            await asyncio.sleep(0.01)
        assert (watched.share(1), watched.share(2)) == (0.1, 1.0)


@in_virtual_time
async def test_a_suspicion_that_nobody_confirmed_takes_out_while_there_is_a_better_one() -> None:
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(1.0)
        watched.probe.suspect(watched.endpoints[0], "no answer", certain=False)
        assert watched.names() == ["e2"]
        watched.probe.suspect(watched.endpoints[1], "no answer", certain=False)
        assert watched.names() == ["e1", "e2"]
        watched.probe.suspect(watched.endpoints[1], "refused")
        assert watched.names() == ["e1"]


@in_virtual_time
async def test_when_all_are_silent_at_once_nobody_is_taken_for_dead_at_first() -> None:
    """It may be this process that had no time."""
    watched = Watched(2)
    async with watched.probe:
        await asyncio.sleep(0.5)
        watched.engines.cheap[watched.endpoints[0].url] = ProbeFailed("late", timed_out=True)
        await asyncio.sleep(1.0)
        assert watched.names() == ["e2"]
        watched.engines.cheap[watched.endpoints[1].url] = ProbeFailed("late", timed_out=True)
        await asyncio.sleep(1.0)
        assert watched.names() == ["e1", "e2"]
        await asyncio.sleep(3.0)
        assert (watched.names(), watched.state()) == ([], UNREADY)
        watched.engines.cheap.clear()
        await asyncio.sleep(1.0)
        assert (watched.names(), len(watched.engines.trials)) == (["e1", "e2"], 2)


# The request


@pytest.mark.parametrize(
    ("tasks", "path"),
    [
        (("generate",), "/v1/completions"),
        (("score", "embed"), "/v1/embeddings"),
        (("score",), "/v1/score"),
        (("transcription",), "/v1/audio/transcriptions"),
    ],
)
def test_an_engine_is_asked_for_what_it_does(tasks: tuple[Task, ...], path: str) -> None:
    request = token_request("tiny", tasks)
    assert request.path == path
    assert b"tiny" in request.body


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, TOKEN, TokenAnswer.CAME),
        (200, b'{"data":[{"embedding":[0.1]}]}', TokenAnswer.CAME),
        (200, b'{"text":""}', TokenAnswer.CAME),
        (200, b'{"data":[]}', TokenAnswer.FAILED),
        (200, b'{"choices":[]}', TokenAnswer.FAILED),
        (200, b'{"choices":[1]}', TokenAnswer.FAILED),
        (200, b"[]", TokenAnswer.FAILED),
        (200, b"", TokenAnswer.FAILED),
        (400, b"", TokenAnswer.NOT_ASKABLE),
        (429, b"", TokenAnswer.BUSY),
        (503, b"", TokenAnswer.BUSY),
        (501, b"", TokenAnswer.NOT_ASKABLE),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, answer: TokenAnswer) -> None:
    assert token_answer(status, body)[0] is answer
