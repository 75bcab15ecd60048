"""Asks each ready endpoint again and again what the answer is known of: an engine that computes wrong answers 200 like any other.

Two of the last three probes outside the band report an endpoint, two inside bring it back, so that one odd probe says nothing.
Where the answers are known from a file, made with a floor that was measured on the same target, and `eject` is set, a
reported endpoint gets no more requests. That may empty a model, which health never does: a wrong answer is worse than none.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from serving.core.context import Usage
from serving.fleet.known_answers import Answer, NoAnswer, Reference, apart, probe_request, read_answer
from serving.fleet.probe import Post, ProbeFailed
from serving.fleet.rounds import Rounds
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.quality_settings import QualitySettings

log = logging.getLogger("serving.fleet")

PROBES, ENOUGH = 3, 2


class ProbeResult(StrEnum):
    INSIDE = "inside"
    OUTSIDE = "outside"
    LEARNED = "learned"
    """The first answers of an endpoint that has no reference, which the others are compared with."""
    FAILED = "failed"
    """No answer came; that is for health to judge."""
    NOT_ASKABLE = "not_askable"
    """A 4xx, or an answer without log-probabilities: nothing is known of its answers."""


@dataclass(slots=True)
class _Watched:
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=PROBES))
    """Whether the last probes were inside."""
    own: Answer | None = None
    """Its first answers."""
    agreed: int = 0
    """How many answers in a row were those. Of an engine that does not repeat itself nothing is known."""


class QualityWatch:
    """Probes each ready endpoint that generates once in a period.

    `probed` is called with the endpoint, the result and what the answer cost after each probe.
    """

    def __init__(
        self,
        fleet: Fleet,
        post: Post,
        settings: QualitySettings,
        references: Mapping[str, Reference],
        *,
        probed: Callable[[Endpoint, ProbeResult, Usage], None] = lambda endpoint, result, usage: None,
    ) -> None:
        """`references` by pool."""
        self._fleet, self._post, self._settings = fleet, post, settings
        self._references = references
        self._probed = probed
        self._watched: dict[Endpoint, _Watched] = {}
        self._rounds = Rounds("quality", self._askable, self.ask, settings.period_seconds)

    async def __aenter__(self) -> QualityWatch:
        if self._settings.enabled:
            self._rounds.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.end()

    def _askable(self) -> list[Endpoint]:
        statuses = list(self._fleet.snapshot.statuses.values())
        # What is unready is another process when it comes back, with answers of its own.
        known = {status.endpoint for status in statuses if status.state is not EndpointState.UNREADY}
        self._watched = {endpoint: watched for endpoint, watched in self._watched.items() if endpoint in known}
        return [s.endpoint for s in statuses if s.state is EndpointState.READY and "generate" in s.endpoint.tasks]

    async def ask(self, endpoint: Endpoint) -> None:
        """Probe an endpoint once."""
        usage = Usage()
        try:
            status, body = await self._post(
                endpoint.url, probe_request(endpoint.model), timeout_seconds=self._settings.timeout_seconds
            )
        except ProbeFailed:
            self._probed(endpoint, ProbeResult.FAILED, usage)
            return
        if status != 200:
            is_no = 400 <= status < 500 and status != 429
            self._probed(endpoint, ProbeResult.NOT_ASKABLE if is_no else ProbeResult.FAILED, usage)
            return
        try:
            answer, usage = read_answer(body)
        except NoAnswer as error:
            log.debug("endpoint %s: %s", endpoint.name, error)
            self._probed(endpoint, ProbeResult.NOT_ASKABLE, usage)
            return
        self._probed(endpoint, self._judge(endpoint, answer), usage)

    def _judge(self, endpoint: Endpoint, answer: Answer) -> ProbeResult:
        watched = self._watched.setdefault(endpoint, _Watched())
        reference = self._reference(endpoint)
        band = reference.band_nats if reference is not None else self._settings.band_nats
        if reference is None and watched.agreed < PROBES:
            self._learn(watched, answer, band)
            return ProbeResult.LEARNED
        known = reference.answer if reference is not None else watched.own
        assert known is not None
        found = apart(known, answer)
        is_inside = found.inside(band)
        watched.recent.append(is_inside)
        self._conclude(endpoint, watched, f"{found.nats:.3g} nats from {_known(reference)}, band {band:.3g}")
        return ProbeResult.INSIDE if is_inside else ProbeResult.OUTSIDE

    @staticmethod
    def _learn(watched: _Watched, answer: Answer, band_nats: float) -> None:
        is_same = watched.own is not None and apart(watched.own, answer).inside(band_nats)
        if not is_same:
            watched.own, watched.agreed = answer, 0
        watched.agreed += any(answer)

    def _reference(self, endpoint: Endpoint) -> Reference | None:
        """That of its pool, if it is of this model and target: floors of other hardware say nothing here."""
        reference = self._references.get(endpoint.pool)
        fits = reference is not None and (reference.model, reference.target) == (endpoint.model, endpoint.target)
        return reference if fits else None

    def _conclude(self, endpoint: Endpoint, watched: _Watched, said: str) -> None:
        status = self._fleet.snapshot.statuses.get(endpoint.name)
        if status is None or status.endpoint != endpoint:
            return
        wrong = watched.recent.count(False)
        if wrong >= ENOUGH:
            out = self._settings.eject and self._reference(endpoint) is not None
            what = "answers wrongly and gets no requests" if out else "answers wrongly"
            if self._fleet.mark_quality(endpoint.name, inside=False, said=f"{what}: {said}", ejected=out):
                log.warning("endpoint %s %s: %s", endpoint.name, what, said, extra={"endpoint": endpoint.name, "ejected": out})
        elif len(watched.recent) - wrong >= ENOUGH:
            was_wrong = status.answers_rightly is False
            self._fleet.mark_quality(endpoint.name, inside=True)
            if was_wrong:
                log.info("endpoint %s answers rightly again: %s", endpoint.name, said, extra={"endpoint": endpoint.name})


def _known(reference: Reference | None) -> str:
    return "the known answers" if reference is not None else "its own first answers"
