"""What an endpoint has to do, as this gateway knows it: who waits for a first token, who is being written, and until when."""

from __future__ import annotations

from collections.abc import Sequence

from serving.fleet.store import Endpoint
from serving.routing.adapters import AdapterSlots
from serving.routing.decision import Decision
from serving.routing.others import Others
from serving.routing.peer_load import NOTHING, PeerLoad
from serving.routing.predict import EngineRates, PoolRates
from serving.routing.prefix import Cache, Hold
from serving.routing.question import Question

OVERDUE_SHARE = 0.25
"""Of the work whose time is over and which is not done, this part is taken to be left."""
ROOM_MARGIN = 1.5
"""An engine is taken to have so much more room than was said, since requests are rarely as long as they may be."""
MUCH_SLOWER = 3.0
NO_SLOTS = 2**31
"""More than any engine has."""
NEWS_SECONDS = 0.25
"""How long it takes at most until something that another gateway did is known here, if it is told at all."""
HORIZON_SECONDS = 30.0
"""Over which arrivals and the share of time that goes to prefill are averaged."""


def horizon_seconds(age_seconds: float) -> float:
    """The same for what has not been watched for so long."""
    return age_seconds + 1.0 if age_seconds < HORIZON_SECONDS - 1.0 else HORIZON_SECONDS


class Ticket:
    """One attempt at one endpoint, from its choice to its end. Where there was nothing to choose it is a count and no more."""

    __slots__ = ("endpoint", "work")

    began: float = 0.0
    question: Question | None = None
    ttft_seconds: float | None = None
    cached_tokens: float = 0.0
    prefill_seconds: float = 0.0
    decision: Decision | None = None

    def __init__(self, endpoint: Endpoint, work: Work) -> None:
        self.endpoint = endpoint
        self.work = work


class Choice(Ticket):
    """A ticket with everything that was predicted for it, so that it can be learned from."""

    __slots__ = (
        "adapter",
        "adapter_seconds",
        "alone",
        "area",
        "began",
        "cached_bytes",
        "cached_tokens",
        "context_tokens",
        "decision",
        "first",
        "hold",
        "loads_adapter",
        "news",
        "news_from",
        "output_tokens",
        "prefill_area",
        "prefill_seconds",
        "question",
        "ttft_seconds",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        work: Work,
        question: Question,
        *,
        prefill_seconds: float,
        ttft_seconds: float,
        output_tokens: float,
        context_tokens: float,
        cached_bytes: int,
        cached_tokens: float,
        decision: Decision | None,
    ) -> None:
        self.endpoint = endpoint
        self.work = work
        self.question: Question = question
        self.prefill_seconds: float = prefill_seconds
        """Predicted, as all of these."""
        self.ttft_seconds: float = ttft_seconds
        self.output_tokens = output_tokens
        self.context_tokens = context_tokens
        """What it takes of the cache while it runs."""
        self.cached_bytes = cached_bytes
        self.cached_tokens: float = cached_tokens
        self.decision = decision
        self.hold: Hold | None = None
        self.news = 0
        """The number by which other gateways are told of it; 0: they are not."""
        self.news_from = 0
        """From which piece of its chain on they are told what is cached there."""
        self.began = 0.0
        self.first = 0.0
        """When the first token came; 0: it did not, or could not be seen."""
        self.adapter = ""
        """The LoRA adapter that it asks for."""
        self.adapter_seconds = 0.0
        """Predicted, of the wait for that."""
        self.loads_adapter = False
        """The adapter is loaded for it, with nothing else ahead."""
        self.alone = False
        """Nobody else was waiting for a first token meanwhile."""
        self.area = 0.0
        self.prefill_area = 0.0


class Work:
    """The load and the learned rates of one endpoint."""

    __slots__ = (
        "adapters",
        "area",
        "began",
        "cache",
        "cache_tokens",
        "cold_at",
        "context_tokens",
        "decoding_tokens",
        "dollars_per_second",
        "endpoint",
        "free_at",
        "heard",
        "heard_at",
        "in_flight",
        "last_change",
        "last_first",
        "last_used",
        "learned_at",
        "least",
        "most",
        "name",
        "number",
        "others",
        "others_requests",
        "own_prefilled",
        "peers",
        "plain",
        "prefill_area",
        "prefill_share",
        "queued",
        "rates",
        "recent",
        "refreshed_at",
        "sequences",
        "waiting",
        "waiting_seconds",
    )

    def __init__(self, endpoint: Endpoint, pool: PoolRates, cache: Cache, now: float, dollars_per_second: float = 0.0) -> None:
        self.endpoint = endpoint
        self.name = endpoint.name.encode()
        self.plain = Ticket(endpoint, self)
        self.rates = EngineRates(pool)
        self.cache = cache
        self.adapters = AdapterSlots(pool.adapter_seconds)
        self.cache_tokens = ROOM_MARGIN * pool.prior.cache_tokens
        self.sequences = pool.prior.sequences
        self.dollars_per_second = dollars_per_second
        self.in_flight = 0
        """Requests that are under way there, those of other gateways among them as far as these are known."""
        self.peers = NOTHING
        """Of all that follows, the part of other gateways."""
        self.number = 0
        """By which gateways name it to each other."""
        self.recent: list[Choice] = []
        """First tokens of the last moments, as long as others may still say that they were waiting, too."""
        self.most = NO_SLOTS if endpoint.slots is None else endpoint.slots
        """Requests that all gateways that are known may have there at a time."""
        self.least = 1
        """Of these, as many are this gateway's in any case."""
        self.others: Others | None = None
        """What it has to do for others of which no gateway tells, as far as that is known; None: nothing shows."""
        self.others_requests = 0
        """The same as a number, without the margin for what is on its way: slots are not given twice."""
        self.heard: Others | None = None
        """The same as the engine said it last, at `heard_at`."""
        self.heard_at = float("-inf")
        self.refreshed_at = now
        self.learned_at = now
        """When something was seen of its rates."""
        self.last_used = 0
        """The turn of the chooser in which it was taken last."""
        self.cold_at = float("-inf")
        """When it was taken last for a prompt that nobody had cached."""
        self.waiting: dict[Choice, None] = {}
        """Attempts without a first token, in the order in which they began."""
        self.queued = 0
        """How many they are, and of other gateways."""
        self.waiting_seconds = 0.0
        """Of prefill, all of them together."""
        self.free_at = now
        """When their prefill should be done."""
        self.decoding_tokens = 0.0
        self.context_tokens = 0.0
        self.area = 0.0
        """Requests that are being written, summed over time."""
        self.prefill_area = 0.0
        """Seconds of prefill done since the beginning."""
        self.own_prefilled = 0.0
        """The same, of this gateway's requests."""
        self.last_first = now
        """When the last first token came."""
        self.prefill_share = 0.0
        """Of the last time, the part that prefill took."""
        self.last_change = self.began = now

    def begin(self, choice: Choice, now: float) -> None:
        self.advance(now)
        seconds = choice.prefill_seconds
        choice.began, choice.area, choice.prefill_area = now, self.area, self.prefill_area
        self.context_tokens += choice.context_tokens
        choice.alone = not self.queued and (self.others is None or not self.others.waiting)
        if choice.adapter and not self._begin_adapter(choice):
            return
        if self.waiting:
            for other in self.waiting:
                other.alone = False
        self.waiting[choice] = None
        self.queued += 1
        self.waiting_seconds += seconds
        self.free_at = (self.free_at if self.free_at > now else now) + seconds

    def first_token(self, choice: Choice, now: float) -> None:
        """Prompts are taken in order, so that what is left is what began later."""
        if choice not in self.waiting:
            return
        self.advance(now)
        choice.first, choice.area = now, self.area
        took = now - max(choice.began, self.last_first)
        self.last_first = now
        rates = self.rates
        expected = choice.prefill_seconds + rates.step + rates.step_slope * self.in_flight + choice.adapter_seconds
        if choice.loads_adapter:
            self.adapters.load_seconds.learn(max(0.0, took - expected + choice.adapter_seconds))
        elif choice.news:
            # Others may have been ahead that are not known yet, so that what it took says nothing before its answer ends.
            self.recent = [each for each in self.recent if now - each.first < NEWS_SECONDS] + [choice]
        elif took > MUCH_SLOWER * expected:
            # Not to be waited for until the answer's end says it exactly.
            self.learned(now)
            rates.learn_prefill(choice.prefill_seconds / rates.prefill_seconds, took)
        self._leaves(choice)
        choice.prefill_area = self.prefill_area
        self._written(choice)
        self.free_at = now + self.waiting_seconds

    def _begin_adapter(self, choice: Choice) -> bool:
        """Returns whether it has a slot for its adapter. One that has none waits aside, and holds up nobody's prefill."""
        adapters = self.adapters
        was_there = adapters.has(choice.adapter)
        adapters.begin(choice.adapter)
        is_there = adapters.has(choice.adapter)
        # What the first token says of the load says nothing of the prefill.
        choice.loads_adapter = choice.alone and not was_there and is_there
        choice.alone = choice.alone and was_there
        return is_there

    def end(self, choice: Choice, now: float) -> None:
        self.advance(now)
        if choice.adapter:
            self.adapters.end(choice.adapter)
        if choice in self.waiting:
            self._leaves(choice)
            self.free_at = max(now, min(self.free_at, now + self.waiting_seconds))
        elif choice.first:
            self.decoding_tokens -= choice.context_tokens
        self.context_tokens -= choice.context_tokens

    def learned(self, now: float) -> None:
        """A request says how fast the engine is."""
        self.learned_at = now
        self.rates.learned(now)

    def refresh(self, now: float) -> None:
        """Take up what was learned at other endpoints of the pool, and forget what was learned long ago."""
        idle_seconds = now - max(self.refreshed_at, self.learned_at)
        self.refreshed_at = now
        self.rates.fade(now)
        self.rates.refresh(max(idle_seconds, 0.0))

    def share_slots(self, gateways: int) -> None:
        """Leave to others what they use of its slots; this gateway has one in any case, or an even part of several."""
        if self.endpoint.slots is not None:
            self.most = self.endpoint.slots - self.others_requests
            self.least = max(1, self.endpoint.slots // gateways) if gateways > 1 else 1

    @property
    def has_slot(self) -> bool:
        """Whether this gateway may send one more request there."""
        return self.in_flight < self.most or self.in_flight - self.peers.requests < self.least

    def wait_seconds(self, now: float) -> float:
        """Until the prefill that is ahead of a new request is done."""
        if not self.queued:
            return 0.0
        left = self.free_at - now
        least = OVERDUE_SHARE * self.waiting_seconds
        if left < 0.0:
            # The engine is slower than it is taken to be, or hangs: what has been late for long stays so for as long.
            return least - left
        return left if left > least else least

    def advance(self, now: float) -> None:
        """Bring the averages up to now, and let those be written whose first token cannot be seen and should be there."""
        passed = now - self.last_change
        if passed <= 0.0:
            return
        self.area += (self.in_flight - self.queued) * passed
        if self.others is not None:
            self.area += self.others.running * passed
        horizon = horizon_seconds(now - self.began)
        self.prefill_share *= horizon / (horizon + passed)
        self.last_change = now
        if self.waiting and self.free_at <= now:
            self._unseen(now)

    def _unseen(self, now: float) -> None:
        done = [choice for choice in self.waiting if choice.question.silent]
        for choice in done:
            self._leaves(choice)
            choice.first = now
            self._written(choice)

    def _written(self, choice: Choice) -> None:
        """A request is being written; all that are at once prove that the engine has room for them."""
        self.decoding_tokens += choice.context_tokens
        batch = self.in_flight - self.queued
        if batch > self.sequences:
            self.sequences = batch
        if self.decoding_tokens > self.cache_tokens:
            self.cache_tokens = self.decoding_tokens

    def _leaves(self, choice: Choice) -> None:
        del self.waiting[choice]
        self.queued -= 1
        self.waiting_seconds = self.waiting_seconds - choice.prefill_seconds if self.waiting else self.peers.waiting_seconds
        self.own_prefilled += choice.prefill_seconds
        self.prefill_area += choice.prefill_seconds
        self.prefill_share += choice.prefill_seconds / horizon_seconds(self.last_change - self.began)

    # Several gateways

    @property
    def own_requests(self) -> int:
        """Under way there from this gateway."""
        return self.in_flight - self.peers.requests

    def own_load(self) -> PeerLoad:
        """What others are to know."""
        peers = self.peers
        return PeerLoad(
            self.own_requests,
            len(self.waiting),
            self.waiting_seconds - peers.waiting_seconds if self.waiting else 0.0,
            self.context_tokens - peers.context_tokens,
            self.decoding_tokens - peers.decoding_tokens,
            self.own_prefilled,
        )

    def hear(self, before: PeerLoad, after: PeerLoad, now: float, *, begun: float = 0.0, done: float = 0.0) -> None:
        """What another gateway has under way here was so and is so now. `begun` and `done` are seconds of prefill between."""
        self.advance(now)
        change = [new - old for new, old in zip(after, before, strict=True)]
        self.peers = PeerLoad._make(old + new for old, new in zip(self.peers, change, strict=True))
        self.in_flight += int(change[0])
        self.queued += int(change[1])
        self.waiting_seconds += change[2]
        self.context_tokens += change[3]
        self.decoding_tokens += change[4]
        if not begun and not done:
            return
        for other in (*self.waiting, *self.recent):
            if not other.first or now - other.first < NEWS_SECONDS:
                other.alone = False
        if done:
            self.prefill_area += done
            self.prefill_share += done / horizon_seconds(now - self.began)
            self.last_first = now
            self.free_at = now + self.waiting_seconds
        else:
            self.free_at = (self.free_at if self.free_at > now else now) + begun


Works = Sequence[Work]
