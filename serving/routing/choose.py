"""Chooses an endpoint for each attempt, and keeps account of what is under way where."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from serving.core.clock import Clock, monotonic
from serving.core.context import Usage
from serving.fleet.store import Endpoint
from serving.routing.chain import START
from serving.routing.cost import DEFAULT_WEIGHTS, OBJECTIVES, Machine, Objective, Weights
from serving.routing.decision import Decision, Reason
from serving.routing.learn import Lessons
from serving.routing.predict import TOKENS_PER_BYTE, PoolRates, Rates
from serving.routing.prefix import Cache, PrefixIndex
from serving.routing.question import Question
from serving.routing.score import Scores, score
from serving.routing.work import HORIZON_SECONDS, Choice, Ticket, Work

ERROR_SHARE = 0.05
"""Of its time to first token, a prediction may be wrong by so much; costs that differ by less are the same."""
COLD_SECONDS = 10.0
"""An endpoint that got a prompt that nobody had cached is not the first for another one within this time."""
MANY = 24
"""Of more candidates than this only some are looked at: those with the longest cached prefixes and some at random."""
LOOKED_AT = 12
HOLDERS_LOOKED_AT = 8
CAPACITY_MARGIN = 2.0
"""A cache is taken to be so much larger than said at first: what is taken to be there and is not shows itself at once."""
NO_DEPTHS: Mapping[Cache, int] = {}
STANDARD = OBJECTIVES["standard"]


@dataclass(slots=True)
class Group:
    """The candidates of a model as the fleet gave them last; while they are the same, so is this."""

    candidates: Sequence[Endpoint]
    works: list[Work]
    places: dict[Cache, int] = field(default_factory=dict)


@dataclass(slots=True)
class Arrivals:
    """How many requests come for a model, averaged over the last time."""

    per_second: float
    last: float

    def note(self, now: float) -> None:
        passed = now - self.last
        self.per_second = self.per_second * HORIZON_SECONDS / (HORIZON_SECONDS + passed) + 1.0 / HORIZON_SECONDS
        self.last = now


class Chooser:
    """Knows the load of each endpoint, what its engine probably has cached, and how fast it is."""

    def __init__(
        self,
        *,
        weights: Weights = DEFAULT_WEIGHTS,
        prior: Callable[[Endpoint], Rates] = lambda endpoint: Rates(),
        machine: Callable[[Endpoint], Machine] = lambda endpoint: Machine(),
        index_bytes: int = 64 * 1024 * 1024,
        explains: bool = False,
        clock: Clock = monotonic,
        seed: int | None = None,
    ) -> None:
        self._weights = weights
        self._prior = prior
        self._machine = machine
        self._clock = clock
        self._random = random.Random(seed)
        self.explains = explains
        """Whether decisions are kept with their tickets."""
        self.index = PrefixIndex(index_bytes)
        self.lessons = Lessons(self.index)
        self._works: dict[str, Work] = {}
        self._rates: dict[tuple[str, str], PoolRates] = {}
        self._groups: dict[str, Group] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._turn = 0

    def choose(
        self,
        model: str,
        candidates: Sequence[Endpoint],
        tried: Collection[str],
        ask: Callable[[], Question],
        objective: Objective = STANDARD,
    ) -> Ticket | None:
        """The best candidate that was not tried yet, or None. `ask` is called where there is something to choose."""
        if len(candidates) == 1 and not tried:
            return self._work(candidates[0]).plain
        if tried:
            candidates = tuple(endpoint for endpoint in candidates if endpoint.name not in tried)
            if not candidates:
                return None
            if len(candidates) == 1:
                return self._work(candidates[0]).plain
            group = self._group_of(candidates)
        else:
            known = self._groups.get(model)
            if known is None or known.candidates is not candidates:
                if not candidates:
                    return None
                known = self._groups[model] = self._group_of(candidates)
            group = known
        return self._least_cost(group, ask(), objective)

    def _least_cost(self, group: Group, question: Question, objective: Objective) -> Choice:
        now = self._clock()
        lessons = self.lessons
        model = question.model
        per_byte = lessons.tokens_per_byte(model)
        prompt = question.text_bytes * per_byte
        limit = question.output_limit
        output = 0.0 if limit == 0 else lessons.outputs.predict(question.tenant, model, limit)
        match = self.index.match(question.chain) if question.chain else None
        depths = match.depths() if match is not None and match.node is not None else NO_DEPTHS
        works = group.works
        total = len(works)
        if total > MANY:
            works = self._some(group, depths)
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            arrivals = self._arrivals[model] = Arrivals(0.0, now)
        arrivals.note(now)
        scores = score(
            works,
            depths,
            prompt=prompt,
            output=output,
            tokens_per_byte=per_byte,
            arrivals_per_second=arrivals.per_second / total,
            objective=objective,
            weights=self._weights,
            now=now,
        )
        best, reason = self._best(question, works, scores, objective, now)
        work = works[best]
        depth = depths.get(work.cache, 0)
        if not depth and question.chain:
            work.cold_at = now
        decision = None
        if self.explains:
            decision = _decision(reason, work, works, prompt, output, scores)
        choice = Choice(
            work.endpoint,
            work,
            question,
            prefill_seconds=scores.prefill[best],
            ttft_seconds=scores.first[best],
            output_tokens=output,
            context_tokens=prompt + output,
            cached_bytes=START[depth],
            decision=decision,
        )
        if match is not None:
            choice.hold = self.index.hold(work.cache, match)
        return choice

    def _best(
        self, question: Question, works: Sequence[Work], scores: Scores, objective: Objective, now: float
    ) -> tuple[int, Reason]:
        """The place of the least cost, or of one that is as good as that."""
        dollars = scores.dollars
        least = min(dollars)
        place = dollars.index(least)
        most = least + ERROR_SHARE * scores.first[place] * objective.dollars_per_second
        close = [place for place, cost in enumerate(dollars) if cost <= most]
        if len(close) == 1:
            return place, Reason.COST
        conversation = question.conversation
        if conversation:
            rested = [place for place in close if now - works[place].cold_at > COLD_SECONDS]
            if rested:
                return max(rested, key=lambda place: xxh3_64_intdigest(works[place].name, conversation)), Reason.OWNER
        return min(close, key=lambda place: works[place].last_used), Reason.SPREAD

    def _some(self, group: Group, depths: Mapping[Cache, int]) -> list[Work]:
        works = group.works
        chosen = dict.fromkeys(self._random.sample(range(len(works)), LOOKED_AT))
        if depths:
            places = group.places
            held = sorted(((depth, places[cache]) for cache, depth in depths.items() if cache in places), reverse=True)
            chosen.update(dict.fromkeys(place for _, place in held[:HOLDERS_LOOKED_AT]))
        return [works[place] for place in chosen]

    def begin(self, ticket: Ticket) -> None:
        """A request begins at its endpoint; `end` ends it, and must be called once."""
        work = ticket.work
        self._turn += 1
        work.last_used = self._turn
        work.in_flight += 1
        if type(ticket) is Choice:
            work.begin(ticket, self._clock())

    def first_token(self, ticket: Ticket) -> None:
        """The beginning of a stream is here."""
        if type(ticket) is Choice:
            ticket.work.first_token(ticket, self._clock())

    def end(self, ticket: Ticket) -> None:
        """The attempt is over, however it went. Where something can be learned from it, `learn` follows, else `drop`."""
        work = ticket.work
        work.in_flight -= 1
        if type(ticket) is Choice:
            work.end(ticket, self._clock())
            ticket.area, ticket.prefill_area = work.area - ticket.area, work.prefill_area - ticket.prefill_area

    def learn(self, ticket: Ticket, usage: Usage, ended: float) -> None:
        """The answer came, and this is what its engine said about it."""
        if type(ticket) is Choice:
            self.lessons.learn(ticket, usage, ended)

    def drop(self, ticket: Ticket, *, gone: bool = False) -> None:
        """The attempt had no answer. `gone`: nothing listens there, so that whatever it had cached is lost."""
        if type(ticket) is Choice and ticket.hold is not None:
            self.index.release(ticket.hold, 0)
        if gone:
            ticket.work.cache.clear()

    def retain(self, names: Collection[str]) -> None:
        """Forget endpoints that are not among `names`, once nothing is under way there."""
        for name in [name for name, work in self._works.items() if name not in names and not work.in_flight]:
            self._works.pop(name).cache.clear()
        self._groups.clear()

    def in_flight(self, name: str) -> int:
        work = self._works.get(name)
        return 0 if work is None else work.in_flight

    def _group_of(self, candidates: Sequence[Endpoint]) -> Group:
        works = [self._work(endpoint) for endpoint in candidates]
        return Group(candidates, works, {work.cache: place for place, work in enumerate(works)})

    def _work(self, endpoint: Endpoint) -> Work:
        work = self._works.get(endpoint.name)
        if work is not None and (work.endpoint is endpoint or work.endpoint == endpoint):
            return work
        rates = self._rates.get((endpoint.model, endpoint.pool))
        if rates is None:
            rates = self._rates[endpoint.model, endpoint.pool] = PoolRates(self._prior(endpoint))
        cache = self.index.cache(CAPACITY_MARGIN * rates.prior.cache_tokens / TOKENS_PER_BYTE)
        if work is not None:
            # Another engine under the same name: what is under way still counts, and nothing else does.
            work.cache.clear()
        new = Work(endpoint, rates, cache, self._clock(), self._machine(endpoint).dollars_per_second)
        self._works[endpoint.name] = new
        return new


def _decision(reason: Reason, work: Work, works: Sequence[Work], prompt: float, output: float, scores: Scores) -> Decision:
    return Decision(
        reason,
        work.endpoint.name,
        prompt,
        output,
        [each.endpoint for each in works],
        scores.cached,
        scores.wait,
        scores.first,
        scores.latency,
        scores.busy,
        scores.dollars,
    )
