"""The slots of one model's engines, and the queue of those that wait for one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from serving.core.clock import Clock, monotonic
from serving.core.errors import Overloaded
from serving.limit_settings import QueueSettings
from serving.tenancy.fair_queue import FairQueue, Waiting

UNBOUNDED = 2**31
"""The capacity where there is nothing to wait for: an endpoint without `slots`, or no endpoint, which the router will say."""
LOOK_SECONDS = 0.1
"""How often slots are looked for that have come with a new endpoint, while anybody waits."""
LONGEST_RETRY_SECONDS = 60
"""Clients do not heed a longer one."""
DOUBT = 0.1
"""What one who waited in vain adds to the part by which expected waits are taken to be too short."""
MOST_OPTIMISM = 3.0
"""The largest such part: who is expected to wait a quarter of its time is let wait in any case, so that slots stay busy."""
FORGET_SECONDS = 60.0
"""In which half of that part is forgotten."""
IN_VAIN = "queue_timeout"
_WEIGHT = 0.05
"""Of the newest request in the running means."""


class Place(Waiting):
    """A request's place in the queue, with what wakes it."""

    granted: asyncio.Future[None]


class Slots:
    """Gives at most as many requests to a model's engines as they have slots; the others wait, fairly, and not in vain."""

    def __init__(
        self,
        settings: QueueSettings,
        capacity: Callable[[], int],
        *,
        waited: Callable[[float], None] = lambda _: None,
        clock: Clock = monotonic,
    ) -> None:
        """`capacity` is asked for the number of slots there are now; `waited` is told how long one that got a slot waited."""
        self._capacity = capacity
        self._wait_seconds = settings.wait_seconds
        self._waited = waited
        self._clock = clock
        self.queue = FairQueue(most_requests=settings.requests, most_body_bytes=settings.body_bytes, turn=settings.turn)
        self.in_use = 0
        self._held_seconds = 0.0
        self._held_tokens = 0.0
        """Running means of a request: how long it has its slot, and how many tokens it was thought to be."""
        self._spread_seconds = 0.0
        """The running mean of how far off the expected time was."""
        self._optimism = 0.0
        """By what part of itself an expected wait was too short of late, as it was at `_doubted_at`."""
        self._doubted_at = 0.0
        self._look: asyncio.TimerHandle | None = None

    @property
    def capacity(self) -> int:
        return self._capacity()

    def take(self, tenant: str, cost_tokens: int) -> bool:
        """Take a slot if there is one and nobody waits for it."""
        if self.queue.requests or self.in_use >= self._capacity():
            return False
        self.in_use += 1
        self.queue.charge(tenant, cost_tokens)
        return True

    def give_back(self, tenant: str, cost_tokens: int, used_tokens: int, held_seconds: float) -> None:
        """Its request has ended; the slot goes to the next one."""
        self.in_use -= 1
        if used_tokens != cost_tokens:
            self.queue.charge(tenant, used_tokens - cost_tokens)
        if used_tokens:
            # One that failed at once says nothing of how long requests take.
            weight = _WEIGHT if self._held_tokens else 1.0
            off_seconds = abs(held_seconds - self._answer_seconds(cost_tokens)) if self._held_tokens else 0.0
            self._spread_seconds += weight * (off_seconds - self._spread_seconds)
            self._held_seconds += weight * (held_seconds - self._held_seconds)
            self._held_tokens += weight * (cost_tokens - self._held_tokens)
        self._hand_on()

    async def wait(self, tenant: str, cost_tokens: int, body_bytes: int, urgency: int, ends: float) -> None:
        """Wait for a slot, but not beyond `ends` in monotonic seconds.

        Raises: Overloaded when the queue is full or when no slot is expected, or comes, in time.
        """
        now = self._clock()
        # Its own time has to cover its answer, too, and what is begun should be finished.
        answer_seconds = self._answer_seconds(cost_tokens) + 2 * self._spread_seconds
        left_seconds = min(self._wait_seconds, ends - now - answer_seconds)
        expected_seconds = self._wait_for(self.queue.tokens_before(tenant, cost_tokens, urgency))
        # Others may come meanwhile who are served before it, and whoever would wait in vain is to be told at once.
        beyond_seconds = expected_seconds * (1.0 + self._optimism_at(now)) - left_seconds
        if beyond_seconds > 0:
            raise self._refusal("No slot is expected in time. Try again later.", "wait_too_long", beyond_seconds)
        place = Place(tenant, cost_tokens, body_bytes, urgency, now)
        loop = asyncio.get_running_loop()
        place.granted = loop.create_future()
        is_in, left = self.queue.add(place)
        for other in left:
            self._refuse(other, self._full())
        if not is_in:
            raise self._full()
        self._hand_on()
        if self._look is None and self.queue.requests:
            self._look = loop.call_later(LOOK_SECONDS, self._look_for_slots)
        timer = loop.call_later(left_seconds, self._expire, place)
        try:
            await place.granted
        except Overloaded as refusal:
            if expected_seconds and refusal.error_code == IN_VAIN:
                self._doubt()
            raise
        except asyncio.CancelledError:
            if place.is_here:
                self.queue.remove(place)
            elif not place.granted.cancelled() and place.granted.exception() is None:
                self.in_use -= 1
                self.queue.charge(tenant, -cost_tokens)
                self._hand_on()
            raise
        finally:
            timer.cancel()
        self._waited(self._clock() - now)

    def _doubt(self) -> None:
        """Somebody was let wait who got no slot in time."""
        now = self._clock()
        self._optimism, self._doubted_at = min(MOST_OPTIMISM, self._optimism_at(now) + DOUBT), now

    def _optimism_at(self, now: float) -> float:
        return self._optimism * math.exp2((self._doubted_at - now) / FORGET_SECONDS)

    def _hand_on(self) -> None:
        queue = self.queue
        while queue.requests and self.in_use < self._capacity():
            place = queue.take()
            assert isinstance(place, Place)
            if place.granted.done():
                # Its client has left, and its task has not run yet.
                queue.charge(place.tenant, -place.cost_tokens)
                continue
            self.in_use += 1
            place.granted.set_result(None)

    def _look_for_slots(self) -> None:
        self._hand_on()
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_for_slots) if self.queue.requests else None

    def _expire(self, place: Place) -> None:
        if place.is_here:
            self.queue.remove(place)
            words = "No slot became free in time. Try again later."
            self._refuse(place, self._refusal(words, IN_VAIN, self._wait_for(self.queue.tokens)))

    def _refuse(self, waiting: Waiting, error: Overloaded) -> None:
        assert isinstance(waiting, Place)
        if not waiting.granted.done():
            waiting.granted.set_exception(error)

    def _full(self) -> Overloaded:
        return self._refusal(
            "The queue for this model is full. Try again later.", "queue_full", self._wait_for(self.queue.tokens)
        )

    def _refusal(self, words: str, code: str, seconds: float) -> Overloaded:
        return Overloaded(words, code=code, retry_after_seconds=min(max(1, math.ceil(seconds)), LONGEST_RETRY_SECONDS))

    def _wait_for(self, tokens_before: int) -> float:
        """How long it takes until the engines are through with so many tokens and one more slot is free; 0 while nothing is
        known of how long requests take."""
        return self._answer_seconds(tokens_before + self._held_tokens) / max(1, self._capacity())

    def _answer_seconds(self, tokens: float) -> float:
        """How long a request of that size has its slot."""
        return tokens * self._held_seconds / self._held_tokens if self._held_tokens else 0.0
