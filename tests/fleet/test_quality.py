"""The watch over answers, without a clock: what is reported when, who is ejected, and what says nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from serving.core.context import Usage
from serving.fleet.known_answers import Reference
from serving.fleet.probe import ProbeFailed
from serving.fleet.quality import ProbeResult, QualityWatch
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.fleet.token_request import TokenRequest
from serving.quality_settings import QualitySettings
from tests.doubles.virtual_time import in_virtual_time
from tests.fleet.answers import completion
from tests.fleet.test_known_answers import REFERENCE

GOOD, BAD = completion(), completion(words="hgfedcba")


def endpoint(name: str, **fields: Any) -> Endpoint:
    return Endpoint(name=name, url=f"http://{name}", model="tiny", pool="p", target="cpu", **fields)


class Engines:
    """What each answers, by address."""

    def __init__(self, *endpoints: Endpoint, references: dict[str, Reference] | None = None, **settings: Any) -> None:
        self.fleet = Fleet(endpoints)
        for each in endpoints:
            self.fleet.record(each.name, EndpointState.READY, "ready")
        self.answers: dict[str, tuple[int, bytes] | ProbeFailed] = {each.url: (200, GOOD) for each in endpoints}
        self.results: list[tuple[str, ProbeResult]] = []
        self.usage: list[Usage] = []
        self.asked: list[float] = []
        chosen = QualitySettings.model_construct(**QualitySettings(enabled=True).model_dump() | settings)
        self.watch = QualityWatch(self.fleet, self.post, chosen, references or {}, probed=self.probed)

    async def post(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]:
        self.asked.append(asyncio.get_running_loop().time())
        answer = self.answers[url]
        if isinstance(answer, ProbeFailed):
            raise answer
        return answer

    def probed(self, endpoint: Endpoint, result: ProbeResult, usage: Usage) -> None:
        self.results.append((endpoint.name, result))
        self.usage.append(usage)

    async def ask(self, name: str, body: bytes = GOOD) -> bool | None:
        """Answer a probe; what is known of the endpoint after it."""
        status = self.fleet.snapshot.statuses[name]
        self.answers[status.endpoint.url] = (200, body)
        await self.watch.ask(status.endpoint)
        return self.fleet.snapshot.statuses[name].answers_rightly


async def test_two_of_three_report_and_two_of_three_take_it_back() -> None:
    engines = Engines(endpoint("a"), endpoint("b"))
    assert [await engines.ask("a") for _ in range(5)] == [None, None, None, None, True]
    assert await engines.ask("a", BAD) is True, "one odd probe says nothing"
    assert await engines.ask("a", GOOD) is True
    assert [await engines.ask("a", body) for body in (BAD, BAD)] == [False, False]
    assert "nats from its own first answers" in engines.fleet.snapshot.statuses["a"].wrong
    assert {each.name for each in engines.fleet.snapshot.candidates("tiny")} == {"a", "b"}, "without a file nobody is ejected"
    assert [await engines.ask("a", body) for body in (GOOD, GOOD)] == [False, True]
    assert engines.fleet.snapshot.statuses["a"].wrong == ""
    assert [result for _, result in engines.results][:4] == [ProbeResult.LEARNED] * 3 + [ProbeResult.INSIDE]
    assert engines.usage[0] == Usage(48, None, 32)


@pytest.mark.parametrize("eject", [True, False])
async def test_by_a_file_a_wrong_one_is_out_even_if_it_is_the_last(eject: bool) -> None:
    engines = Engines(endpoint("a"), references={"p": REFERENCE}, eject=eject)
    assert [await engines.ask("a", body) for body in (BAD, BAD)] == [None, False]
    assert [each.name for each in engines.fleet.snapshot.candidates("tiny")] == ([] if eject else ["a"])
    assert engines.fleet.snapshot.statuses["a"].serves is not eject
    assert [await engines.ask("a", GOOD), await engines.ask("a", GOOD)][-1] is True
    assert [each.name for each in engines.fleet.snapshot.candidates("tiny")] == ["a"]


async def test_an_unknown_one_does_not_take_the_place_of_one_that_is_out() -> None:
    """It is not ready either: only health may send requests to what nobody knows."""
    engines = Engines(endpoint("a"), references={"p": REFERENCE}, eject=True)
    for _ in range(2):
        await engines.ask("a", BAD)
    engines.fleet.record("a", EndpointState.UNKNOWN, "no answer in time")
    assert engines.fleet.snapshot.candidates("tiny") == ()


@pytest.mark.parametrize("change", [{"target": "cuda-b200"}, {"model": "other"}])
async def test_a_file_of_another_target_or_model_says_nothing(change: dict[str, Any]) -> None:
    engines = Engines(endpoint("a"), references={"p": REFERENCE.model_copy(update=change)}, eject=True)
    assert [await engines.ask("a", BAD) for _ in range(5)] == [None] * 4 + [True], "it is compared with itself"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (ProbeFailed("no"), ProbeResult.FAILED),
        ((500, b""), ProbeResult.FAILED),
        ((503, b""), ProbeResult.FAILED),
        ((429, b""), ProbeResult.FAILED),
        ((400, b""), ProbeResult.NOT_ASKABLE),
        ((404, b""), ProbeResult.NOT_ASKABLE),
        ((200, b'{"choices": [{"index": 0, "logprobs": null}]}'), ProbeResult.NOT_ASKABLE),
    ],
)
async def test_what_is_no_answer_says_nothing_of_answers(answer: Any, result: ProbeResult) -> None:
    engines = Engines(endpoint("a"), references={"p": REFERENCE}, eject=True)
    engines.answers["http://a"] = answer
    for _ in range(3):
        await engines.watch.ask(endpoint("a"))
    assert engines.results == [("a", result)] * 3
    assert engines.fleet.snapshot.statuses["a"].answers_rightly is None


async def test_another_pod_at_the_address_starts_anew() -> None:
    engines = Engines(endpoint("a", uid="1"))
    for body in (GOOD, GOOD, GOOD, BAD, BAD):
        await engines.ask("a", body)
    assert engines.fleet.snapshot.statuses["a"].answers_rightly is False
    engines.fleet.replace("p", [endpoint("a", uid="2")])
    assert engines.fleet.snapshot.statuses["a"].answers_rightly is None
    assert [await engines.ask("a", BAD) for _ in range(5)] == [None] * 4 + [True]


async def test_of_an_engine_that_does_not_repeat_itself_nothing_is_known() -> None:
    """As the simulator, whose words are chance."""
    engines = Engines(endpoint("a"))
    assert {await engines.ask("a", body) for body in (GOOD, BAD) * 10} == {None}
    assert {result for _, result in engines.results} == {ProbeResult.LEARNED}
    for _ in range(4):
        await engines.ask("a")
    assert await engines.ask("a") is True


@in_virtual_time
async def test_each_is_asked_once_in_a_period_and_a_wrong_one_is_reported_within_three() -> None:
    engines = Engines(endpoint("a"), endpoint("b"), endpoint("c"), period_seconds=60.0)
    async with engines.watch:
        await asyncio.sleep(360.0)
        assert len(engines.asked) == pytest.approx(18, abs=1)
        gaps = [after - before for before, after in zip(engines.asked, engines.asked[1:], strict=False)]
        assert gaps == pytest.approx([20.0] * len(gaps)), "evenly spread"
        engines.answers["http://b"] = (200, BAD)
        await asyncio.sleep(180.0)
        said = {name: status.answers_rightly for name, status in engines.fleet.snapshot.statuses.items()}
        assert said == {"a": True, "b": False, "c": True}


@in_virtual_time
async def test_one_that_restarts_learns_its_answers_anew() -> None:
    """Another model at a fixed address is no fault."""
    engines = Engines(endpoint("a"), period_seconds=10.0)
    async with engines.watch:
        await asyncio.sleep(55.0)
        assert engines.fleet.snapshot.statuses["a"].answers_rightly is True
        engines.fleet.record("a", EndpointState.UNREADY, "refused")
        await asyncio.sleep(15.0)
        engines.answers["http://a"] = (200, BAD)
        engines.fleet.record("a", EndpointState.READY, "ready")
        await asyncio.sleep(60.0)
        assert engines.fleet.snapshot.statuses["a"].answers_rightly is True
        assert {result for _, result in engines.results} == {ProbeResult.LEARNED, ProbeResult.INSIDE}


@in_virtual_time
async def test_switched_off_nobody_is_asked() -> None:
    engines = Engines(endpoint("a"), enabled=False)
    async with engines.watch:
        await asyncio.sleep(300.0)
    assert engines.asked == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"eject": True, "enabled": True}, "eject: needs references"),
        ({"references": {"p": "x.json"}}, "enabled: is false"),
        ({"band_nats": 0}, "band_nats"),
        ({"period_seconds": 0}, "period_seconds"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QualitySettings.model_validate(fields)
