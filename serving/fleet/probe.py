"""Asks each endpoint again and again whether it can serve its model, and for one token before it gets its first request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import orjson

from serving.core.tasks import end_all
from serving.fleet.health import Health
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.fleet.token_request import TokenAnswer, TokenRequest, token_answer, token_request
from serving.health_settings import HealthSettings
from serving.settings import ProbeSettings

log = logging.getLogger("serving.fleet")


SILENCES = 3
"""So many looks in a row without an answer make an endpoint unready that was ready; before that it is unknown."""


class ProbeFailed(Exception):
    """The endpoint could not be asked; the message says why."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """It said nothing; what is behind the address is most likely what was there before."""


class Get(Protocol):
    """GET a small answer. Raises: ProbeFailed."""

    async def __call__(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]: ...


class Post(Protocol):
    """Send a token request. Raises: ProbeFailed."""

    async def __call__(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]: ...


class Probe:
    """One task for each endpoint: `/health`, then whether `/v1/models` lists the model.

    An engine can be healthy before it serves, so that alone makes no endpoint ready: one that is new or comes back is asked for
    a token first, and so is one whose breaker is open when its time is over. Each has one such trial at a time.
    """

    def __init__(
        self,
        fleet: Fleet,
        get: Get,
        settings: ProbeSettings,
        *,
        post: Post | None = None,
        health: Health | None = None,
        token_timeout_seconds: float = HealthSettings().token_timeout_seconds,
    ) -> None:
        """Without `post` nobody is asked for a token."""
        self._fleet = fleet
        self._get = get
        self._post = post
        self._settings = settings
        self._health = health or Health(fleet, HealthSettings())
        self._token_timeout_seconds = token_timeout_seconds
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._soon: dict[str, asyncio.Event] = {}
        self._silences: dict[Endpoint, int] = {}
        """Looks in a row that were not answered in time."""
        self._cold: set[Endpoint] = set()
        """Those that are asked for a token before they are ready."""

    async def __aenter__(self) -> Probe:
        self.follow()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values()]
        self._tasks.clear()
        await end_all(tasks)

    def follow(self) -> None:
        """Begin to ask endpoints that are new in the fleet, and leave those alone that have left it."""
        present = {status.endpoint for status in self._fleet.snapshot.statuses.values()}
        for endpoint in self._tasks.keys() - present:
            self._tasks.pop(endpoint).cancel()
            self._soon.pop(endpoint.name)
            self._cold.discard(endpoint)
            self._silences.pop(endpoint, None)
        for endpoint in present - self._tasks.keys():
            self._soon[endpoint.name] = asyncio.Event()
            self._cold.add(endpoint)
            self._tasks[endpoint] = asyncio.create_task(self._watch(endpoint), name=f"probe-{endpoint.name}")

    def suspect(self, endpoint: Endpoint, reason: str, *, certain: bool = True) -> None:
        """A request could not reach the endpoint: take it out now and ask it again at once.

        Not `certain`: nobody said no, so that it is only out while there is a better one.
        """
        if certain:
            self._went(endpoint)
        self._note(endpoint, EndpointState.UNREADY if certain else EndpointState.UNKNOWN, reason)
        self.look_soon(endpoint)

    def look_soon(self, endpoint: Endpoint) -> None:
        """Something happened to the endpoint that a look may explain."""
        if (soon := self._soon.get(endpoint.name)) is not None:
            soon.set()

    async def _watch(self, endpoint: Endpoint) -> None:
        soon = self._soon[endpoint.name]
        while True:
            soon.clear()
            await self._look(endpoint)
            self._fleet.end_ramps(self._health.clock())
            wait_seconds = self._settings.period_seconds
            until_trial_seconds = self._health.seconds_until_trial(endpoint)
            if until_trial_seconds:
                wait_seconds = min(wait_seconds, until_trial_seconds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await soon.wait()
                    # Let the engine that just refused breathe; without this a dead port would be asked in a tight loop.
                    await asyncio.sleep(self._settings.period_seconds / 4)

    async def _look(self, endpoint: Endpoint) -> None:
        """Ask once and note what that says."""
        try:
            problem = await self._ask(endpoint)
        except ProbeFailed as error:
            self._note(endpoint, self._silent(endpoint) if error.timed_out else self._refused(endpoint), str(error))
            return
        self._silences.pop(endpoint, None)
        if problem:
            self._went(endpoint)
            self._note(endpoint, EndpointState.UNREADY, problem)
            return
        until_trial_seconds = self._health.seconds_until_trial(endpoint)
        if self._post is not None and (endpoint in self._cold or until_trial_seconds is not None) and not until_trial_seconds:
            await self._try(endpoint, self._post)
        elif endpoint not in self._cold or self._post is None:
            self._note(endpoint, EndpointState.READY, "ready")

    async def _try(self, endpoint: Endpoint, post: Post) -> None:
        """Ask for a token."""
        self._health.begin_trial(endpoint)
        answer, reason = await self._ask_for_token(endpoint, post)
        is_cold = endpoint in self._cold
        match answer:
            case TokenAnswer.CAME | TokenAnswer.NOT_ASKABLE:
                self._cold.discard(endpoint)
                self._health.trial_passed(endpoint)
                began_at = self._health.clock() if is_cold else None
                self._note(endpoint, EndpointState.READY, reason, began_at=began_at)
                return
            case TokenAnswer.BUSY:
                self._health.trial_put_off(endpoint, self._settings.period_seconds)
            case _:
                self._health.trial_failed(endpoint)
        if is_cold:
            self._note(endpoint, EndpointState.UNKNOWN if answer is TokenAnswer.LATE else EndpointState.UNREADY, reason)

    async def _ask_for_token(self, endpoint: Endpoint, post: Post) -> tuple[TokenAnswer, str]:
        request = token_request(endpoint.model, endpoint.tasks)
        try:
            status, body = await post(endpoint.url, request, timeout_seconds=self._token_timeout_seconds)
        except ProbeFailed as error:
            return TokenAnswer.LATE if error.timed_out else TokenAnswer.FAILED, f"no token: {error}"
        return token_answer(status, body)

    async def _ask(self, endpoint: Endpoint) -> str:
        """What keeps the endpoint from being ready; empty if nothing does. Raises: ProbeFailed."""
        timeout = self._settings.timeout_seconds
        status, _ = await self._get(endpoint.url, "/health", timeout_seconds=timeout)
        if status != 200:
            return f"/health answered {status}"
        status, body = await self._get(endpoint.url, "/v1/models", timeout_seconds=timeout)
        if status != 200:
            return f"/v1/models answered {status}"
        served, adapters = _models_of(body)
        self._fleet.record_adapters(endpoint.name, adapters)
        if endpoint.model not in served:
            return f"serves {', '.join(sorted(served)[:5]) or 'no model'}, not {endpoint.model}"
        return ""

    def _silent(self, endpoint: Endpoint) -> EndpointState:
        """What a look without an answer makes of an endpoint: at first nothing is known, since this process may have had no time
        itself, and all would be out at once."""
        silences = self._silences[endpoint] = self._silences.get(endpoint, 0) + 1
        return EndpointState.UNKNOWN if silences < SILENCES and endpoint not in self._cold else EndpointState.UNREADY

    def _refused(self, endpoint: Endpoint) -> EndpointState:
        self._went(endpoint)
        return EndpointState.UNREADY

    def _went(self, endpoint: Endpoint) -> None:
        """What answers next at this address may be another process, without a cache and with nothing compiled."""
        self._cold.add(endpoint)
        self._health.try_now(endpoint)

    def _note(self, endpoint: Endpoint, state: EndpointState, reason: str, *, began_at: float | None = None) -> None:
        if self._fleet.record(endpoint.name, state, reason, began_at=began_at):
            level = logging.WARNING if state is EndpointState.UNREADY else logging.INFO
            log.log(
                level,
                "endpoint %s is %s: %s",
                endpoint.name,
                state,
                reason,
                extra={"endpoint": endpoint.name, "state": str(state)},
            )


def _models_of(body: bytes) -> tuple[set[str], set[str]]:
    """What an engine's `/v1/models` lists, and which of that has a parent: those are LoRA adapters."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return set(), set()
    data = document.get("data") if isinstance(document, dict) else None
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    named = [(card["id"], card.get("parent")) for card in cards if isinstance(card.get("id"), str)]
    return {name for name, _ in named}, {name for name, parent in named if parent is not None}
