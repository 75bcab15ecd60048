"""Chooses an endpoint for each attempt, and keeps account of what is under way where."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt

from xxhash import xxh3_64_intdigest

from serving.core.clock import Clock, monotonic
from serving.core.context import Usage
from serving.fleet.engine_load import EngineLoad
from serving.fleet.report import SpeedReport
from serving.fleet.store import Endpoint, EndpointStatus
from serving.routing.chain import START
from serving.routing.cost import DEFAULT_WEIGHTS, OBJECTIVES, Machine, Objective, Weights
from serving.routing.decision import Decision, Reason
from serving.routing.learn import Lessons
from serving.routing.news import Desk
from serving.routing.others import faded, others_of
from serving.routing.policies import POLICIES
from serving.routing.predict import TOKENS_PER_BYTE, PoolRates, Rates
from serving.routing.prefix import Cache, PrefixIndex
from serving.routing.question import Question
from serving.routing.record import recorded
from serving.routing.score import Scores, score
from serving.routing.work import Choice, Ticket, Work, horizon_seconds

ERROR_SHARE = 0.05
"""Of its time to first token, a prediction may be wrong by so much; costs that differ by less are the same."""
UNKNOWN_SECONDS = 0.1
"""So long what other gateways have sent is not known yet. All of them see the same endpoint as the least loaded meanwhile."""
LIGHT_ROOTS = 2.0
"""What is known of how many requests an endpoint has may be off by so many times the root of their number."""
COLD_SECONDS = 10.0
"""An endpoint that got a prompt that nobody had cached is not the first for another one within this time."""
MANY = 24
"""Of more candidates than this only some are looked at: those with the longest cached prefixes and some at random."""
LOOKED_AT = 12
RAMPING_PART = 1.5
"""Of an even part of all requests an endpoint that starts slowly may win at most so many times its share."""
HOLDERS_LOOKED_AT = 8
CAPACITY_MARGIN = 2.0
"""A cache is taken to be so much larger than said at first: what is taken to be there and is not shows itself at once."""
MOST_LIGHT_BYTES = 2048
LIGHT_SECONDS = 0.03
"""A request whose prompt takes no more than this at the slowest engine is small."""
LIGHT_ERROR = 0.2
LIGHT_REQUESTS = 15
LIGHT_LOOK_SECONDS = 0.01
"""Of sixteen small requests one is looked at fully, and learned from; where many come, one in this time."""
LIGHT_LOOKED_AT = 8
MOST_FREE = 256
"""Sets of endpoints with a free slot that are remembered, of each model."""
TYPICAL_WEIGHT = 0.05
"""Of the newest request in what a request takes on average."""
NO_DEPTHS: Mapping[Cache, int] = {}
STANDARD = OBJECTIVES["standard"]


@dataclass(slots=True)
class Group:
    """The candidates of a model as the fleet gave them last; while they are the same, so is this."""

    candidates: Sequence[Endpoint]
    works: list[Work]
    places: dict[Cache, int] = field(default_factory=dict)
    light: dict[str, Light] = field(default_factory=dict)
    """By the name of an objective: how small requests are chosen for."""
    revisions: list[tuple[float, Group]] = field(default_factory=list)
    """Where the candidates are of several revisions: the groups of each, with the sum of their shares up to it."""
    has_slots: bool = False
    """Endpoints take a number of requests at a time."""
    free: dict[int, Group] = field(default_factory=dict)
    """By the places of those that have a slot left, as bits: their groups."""
    has_adapter: bool = False
    """The model is a LoRA adapter of the one that the candidates serve: which of them has it loaded matters for any request."""


class Light:
    """A small request that was looked at fully stands for the next ones like it."""

    __slots__ = ("again_at", "costs", "left", "most_bytes", "worth")

    def __init__(self, costs: list[tuple[Work, float, float]], most_bytes: float, worth: float, again_at: float) -> None:
        self.costs = costs
        """For each endpoint: what such a request costs there, and how much more for each request that is under way."""
        self.most_bytes = most_bytes
        self.worth = worth
        self.left = LIGHT_REQUESTS
        """So many more it stands for in any case, and for all that come before `again_at`."""
        self.again_at = again_at


@dataclass(slots=True)
class Arrivals:
    """How many requests come for a model, averaged over the last time."""

    per_second: float
    began: float
    last: float
    count: float = 0.0
    """Those of this gateway, since the beginning."""
    prefill_seconds: float = 0.0
    """Of a request, on average, where it was sent."""

    def note(self, now: float, requests: float = 1.0) -> None:
        passed = now - self.last
        horizon = horizon_seconds(now - self.began)
        self.per_second = self.per_second * horizon / (horizon + passed) + requests / horizon
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
        policy: str = "cost",
        ramping: Callable[[], Mapping[str, EndpointStatus]] = dict,
        clock: Clock = monotonic,
        seed: int | None = None,
    ) -> None:
        self._weights = weights
        self._prior = prior
        self._machine = machine
        self._clock = clock
        self._random = random.Random(seed)
        self._pick = POLICIES.get(policy)
        self._ramping = ramping
        """Endpoints that are to get less than their part, as after a restart, by name."""
        self.index = PrefixIndex(index_bytes)
        self.lessons = Lessons(self.index)
        self._works: dict[str, Work] = {}
        self._rates: dict[tuple[str, str], PoolRates] = {}
        self._groups: dict[str, Group] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._turn = 0
        self.gateways: Callable[[], int] = lambda: 1
        """How many there are that give requests to the same engines, this one among them."""
        self._slots_changed = 0
        self._desk: Desk | None = None
        self.decisions: dict[Reason, int] = {}
        """How many decisions each reason made; small requests and single candidates are not among them."""

    def know(self, endpoints: Iterable[Endpoint]) -> None:
        """These are there, so that what other gateways say about them counts before they get their first request from here."""
        if self._desk is not None:
            for endpoint in endpoints:
                self._work(endpoint)

    def join(self, *, silence_seconds: float) -> Desk:
        """From now on what happens here is news for other gateways, and theirs counts here."""
        desk = self._desk = Desk(self.index, self._arrivals, self._clock, silence_seconds=silence_seconds)
        for work in self._works.values():
            desk.meet(work)
        self.gateways = lambda: desk.gateways
        return desk

    def choose(
        self,
        model: str,
        candidates: Sequence[Endpoint],
        tried: Collection[str],
        ask: Callable[[], Question],
        *,
        objective: Objective = STANDARD,
        size_bytes: int = MOST_LIGHT_BYTES,
        explained: bool = False,
    ) -> Ticket | None:
        """The best candidate that was not tried yet, or None.

        `ask` is called where there is something to choose and the request, of `size_bytes`, is not small. `explained`: the
        ticket is to say why.
        """
        if len(candidates) == 1 and not tried:
            return self._work(candidates[0]).plain
        group = self._group(model, candidates, tried)
        if group is None:
            return None
        if group.has_slots:
            group = self._free(group)
        is_light = size_bytes < MOST_LIGHT_BYTES and not explained and not group.has_adapter
        if group.revisions:
            ask = partial(_same, ask())
            group = self._revision(group, ask())
        if ramping := self._ramping():
            group = self._group_of(self._shared(group.candidates, ramping))
        if len(group.works) == 1:
            return group.works[0].plain
        if self._pick is not None:
            return self._pick(group.works, ask, self._random).plain
        if not is_light:
            return self._least_cost(group, ask(), objective, explained)
        light = group.light.get(objective.name)
        if light is not None and size_bytes <= light.most_bytes and (light.left > 0 or self._clock() < light.again_at):
            return self._lightly(light)
        choice = self._least_cost(group, ask(), objective, explained)
        group.light[objective.name] = self._light(group, choice, objective)
        return choice

    def _group(self, model: str, candidates: Sequence[Endpoint], tried: Collection[str]) -> Group | None:
        if tried:
            candidates = [endpoint for endpoint in candidates if endpoint.name not in tried]
            return self._group_for(model, candidates) if candidates else None
        known = self._groups.get(model)
        if known is None or known.candidates is not candidates:
            if not candidates:
                return None
            known = self._groups[model] = self._group_for(model, candidates)
        return known

    def _group_for(self, model: str, candidates: Sequence[Endpoint]) -> Group:
        group = self._group_of(candidates)
        group.has_adapter = candidates[0].model != model
        group.has_slots = candidates[0].slots is not None
        return group

    def _free(self, group: Group) -> Group:
        """Those that have a slot left; all, where none has: a retry must not fail by that."""
        places, bit = 0, 1
        for work in group.works:
            if work.has_slot:
                places |= bit
            bit <<= 1
        if not places or places == bit - 1:
            return group
        free = group.free.get(places)
        if free is None:
            if len(group.free) >= MOST_FREE:
                group.free.clear()
            free = self._group_of([each for place, each in enumerate(group.candidates) if places >> place & 1])
            free.has_adapter = group.has_adapter
            group.free[places] = free
        return free

    def _shared(self, candidates: Sequence[Endpoint], ramping: Mapping[str, EndpointStatus]) -> Sequence[Endpoint]:
        """Let endpoints out of a choice as often as they are to have less than their part.

        One that is empty wins nearly every choice that it takes part in, so that part is counted of all requests.
        """
        now, dice, part = self._clock(), self._random.random, RAMPING_PART / len(candidates)
        return [
            e for e in candidates if (status := ramping.get(e.name)) is None or dice() < part * status.share(now)
        ] or candidates

    def _revision(self, group: Group, question: Question) -> Group:
        """All turns of a conversation at the same one."""
        conversation = question.session or question.first_turn
        share = xxh3_64_intdigest(b"revision", conversation) / 2**64 if conversation else self._random.random()
        return next((part for most, part in group.revisions if share < most), group.revisions[-1][1])

    def _lightly(self, light: Light) -> Ticket:
        """What a small request costs differs by the load only; among equals the endpoint that was used longest ago."""
        light.left -= 1
        costs, worth = light.costs, light.worth
        count = len(costs)
        if count > LIGHT_LOOKED_AT:
            begin = self._random.randrange(count)
            costs = costs[begin : begin + LIGHT_LOOKED_AT] or costs
            if len(costs) < LIGHT_LOOKED_AT:
                costs = costs + light.costs[: LIGHT_LOOKED_AT - len(costs)]
        if self._desk is not None:
            return _one_of_several(costs, worth)
        best, least = None, 0.0
        for work, base, more in costs:
            cost = base + more * work.in_flight
            if work.queued:
                cost += worth * work.waiting_seconds
            if best is None or cost < least or (cost == least and work.last_used < best.last_used):
                best, least = work, cost
        assert best is not None
        return best.plain

    def _light(self, group: Group, choice: Choice, objective: Objective) -> Light:
        """Costs as in `score`, for a request whose prompt costs next to nothing."""
        weights, worth, output = self._weights, objective.dollars_per_second, choice.output_tokens
        costs = []
        slowest = 0.0
        for work in group.works:
            rates = work.rates
            slowest = max(slowest, rates.prefill_seconds)
            added = output * rates.step_slope
            base = worth * (rates.step * (1.0 + weights.decode * output)) + work.dollars_per_second * added
            more = worth * ((1.0 + weights.decode * output) * rates.step_slope + added * (weights.decoders + weights.uneven))
            costs.append((work, base, more))
        cost_each = slowest * self.lessons.tokens_per_byte(choice.question.model)
        most_bytes = min(MOST_LIGHT_BYTES, LIGHT_SECONDS / cost_each)
        return Light(_with_others(_evened(costs)), most_bytes, worth, self._clock() + LIGHT_LOOK_SECONDS)

    def _least_cost(self, group: Group, question: Question, objective: Objective, explained: bool) -> Choice:
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
            works = self._some(group, depths, question.conversation)
        # What comes for a model's adapters comes to its engines, too.
        base = group.works[0].endpoint.model
        adapter = model if model != base else ""
        if adapter and base in self._groups:
            total = len(self._groups[base].works)
        arrivals = self._arrivals.get(base)
        if arrivals is None:
            arrivals = self._arrivals[base] = Arrivals(0.0, now, now)
        arrivals.note(now)
        arrivals.count += 1.0
        shared_pieces = 0 if match is None or 0 < question.turn_pieces <= match.known else match.known
        shared_charge = 1.0 if match is None else match.price_of_another(self._weights.shared_uses)
        typical = arrivals.prefill_seconds
        scores = score(
            works,
            depths,
            prompt=prompt,
            output=output,
            tokens_per_byte=per_byte,
            arrivals_per_second=arrivals.per_second / total,
            typical_prefill=typical,
            objective=objective,
            weights=self._weights,
            now=now,
            shared_pieces=shared_pieces,
            shared_charge=shared_charge,
            explained=explained,
            adapter=adapter,
        )
        best, reason = self._best(question, works, scores, objective, now, arrivals.per_second / total)
        self.decisions[reason] = self.decisions.get(reason, 0) + 1
        work = works[best]
        arrivals.prefill_seconds += TYPICAL_WEIGHT * (scores.prefill[best] - typical)
        depth = depths.get(work.cache, 0)
        if not depth and question.chain:
            work.cold_at = now
        decision = None
        if explained:
            record = recorded(
                works,
                depths,
                objective=objective,
                weights=self._weights,
                adapter=adapter,
                now=now,
                prompt=prompt,
                output=output,
                tokens_per_byte=per_byte,
                arrivals_per_second=arrivals.per_second / total,
                typical_prefill=typical,
                shared_pieces=shared_pieces,
                shared_charge=shared_charge,
            )
            decision = Decision(reason, work.endpoint.name, prompt, output, [each.endpoint for each in works], scores, record)
        choice = Choice(
            work.endpoint,
            work,
            question,
            prefill_seconds=scores.prefill[best],
            ttft_seconds=scores.first[best],
            output_tokens=output,
            context_tokens=prompt + output,
            cached_bytes=START[depth],
            cached_tokens=START[depth] * per_byte,
            decision=decision,
        )
        if adapter:
            choice.adapter, choice.adapter_seconds = adapter, scores.adapter[best]
        if match is not None:
            choice.hold = self.index.hold(work.cache, match)
            if self._desk is not None:
                self._desk.begin(choice)
        return choice

    def _best(
        self,
        question: Question,
        works: Sequence[Work],
        scores: Scores,
        objective: Objective,
        now: float,
        arrivals_per_second: float,
    ) -> tuple[int, Reason]:
        """The place of the least cost, or of one that is as good as that."""
        dollars = scores.dollars
        least = min(dollars)
        place = dollars.index(least)
        error = ERROR_SHARE * scores.first[place]
        if self._desk is not None:
            # Requests like this one that may have come there since, give or take their root.
            error += sqrt(arrivals_per_second * UNKNOWN_SECONDS) * scores.prefill[place]
        most = least + error * objective.dollars_per_second
        close = [place for place, cost in enumerate(dollars) if cost <= most]
        if len(close) == 1:
            return place, Reason.COST
        conversation = question.conversation
        if conversation:
            rested = [place for place in close if now - works[place].cold_at > COLD_SECONDS]
            if rested:
                return max(rested, key=lambda place: xxh3_64_intdigest(works[place].name, conversation)), Reason.OWNER
        if self._desk is not None:
            return min(close, key=lambda place: _own_turn(works[place])), Reason.SPREAD
        return min(close, key=lambda place: works[place].last_used), Reason.SPREAD

    def _some(self, group: Group, depths: Mapping[Cache, int], conversation: int) -> list[Work]:
        """Among them always the one that all gateways would give the conversation to."""
        works = group.works
        chosen = dict.fromkeys(self._random.sample(range(len(works)), LOOKED_AT))
        if conversation:
            digests = [xxh3_64_intdigest(work.name, conversation) for work in works]
            chosen[digests.index(max(digests))] = None
        if depths:
            places = group.places
            # Of a prefix that many hold alike, others than the last time.
            dice = self._random.random
            held = sorted(((depth, dice(), places[cache]) for cache, depth in depths.items() if cache in places), reverse=True)
            chosen.update(dict.fromkeys(place for _, _, place in held[:HOLDERS_LOOKED_AT]))
        return [works[place] for place in chosen]

    def begin(self, ticket: Ticket) -> None:
        """A request begins at its endpoint; `end` ends it, and must be called once."""
        work = ticket.work
        self._turn += 1
        work.last_used = self._turn
        if type(ticket) is Choice:
            work.begin(ticket, self._clock())
        work.in_flight += 1

    def first_token(self, ticket: Ticket) -> None:
        """The beginning of a stream is here."""
        if type(ticket) is Choice:
            ticket.work.first_token(ticket, self._clock())

    def end(self, ticket: Ticket) -> None:
        """The attempt is over, however it went. Where something can be learned from it, `learn` follows, else `drop`."""
        work = ticket.work
        if type(ticket) is Choice:
            work.end(ticket, self._clock())
            ticket.area, ticket.prefill_area = work.area - ticket.area, work.prefill_area - ticket.prefill_area
        work.in_flight -= 1

    def learn(self, ticket: Ticket, usage: Usage, ended: float) -> None:
        """The answer came, and this is what its engine said about it."""
        if type(ticket) is Choice:
            rest_bytes = self.lessons.learn(ticket, usage, ended)
            if self._desk is not None and ticket.news:
                self._desk.end(ticket, rest_bytes)

    def drop(self, ticket: Ticket, *, gone: bool = False) -> None:
        """The attempt had no answer. `gone`: nothing listens there, so that whatever it had cached is lost."""
        if type(ticket) is Choice and ticket.hold is not None:
            self.index.release(ticket.hold, 0)
            if self._desk is not None and ticket.news:
                self._desk.end(ticket, 0)
        if gone:
            ticket.work.cache.clear()
            ticket.work.adapters.forget()

    def hear(self, endpoint: Endpoint, load: EngineLoad, in_flight: int) -> None:
        """An engine has said how it is, while this gateway had at most `in_flight` requests there."""
        work, now = self._work(endpoint), self._clock()
        work.advance(now)
        if load.adapter_slots is not None:
            work.adapters.hear(load.adapter_slots, load.adapters_running or ())
        known = max(in_flight, work.own_requests) + work.peers.requests
        work.others_requests = max(0, int((load.running or 0.0) + (load.waiting or 0.0)) - known)
        work.heard = work.others = others_of(
            load,
            known=known,
            known_waiting=work.queued,
            known_tokens=work.context_tokens,
            cache_tokens=work.cache_tokens,
        )
        work.heard_at = now
        # What small requests cost was looked at before this was known.
        for group in self._groups.values():
            for light in group.light.values():
                light.again_at = now
        self._share_slots(work)

    def miss(self, endpoint: Endpoint, stale_seconds: float) -> None:
        """It has said nothing: what it said last is believed less and less, and not at all when it is stale."""
        work = self._works.get(endpoint.name)
        if work is None:
            return
        now = self._clock()
        work.advance(now)
        share = max(0.0, 1.0 - (now - work.heard_at) / stale_seconds)
        mates = (each for each in self._works.values() if each is not work and each.endpoint.pool == endpoint.pool)
        fresh = [mate.others for mate in mates if now - mate.heard_at <= stale_seconds and mate.endpoint.model == endpoint.model]
        others = work.others = faded(work.heard, share, fresh)
        work.others_requests = 0 if others is None else round(others.running + others.waiting)
        self._share_slots(work)

    def slots_at(self, endpoint: Endpoint) -> int | None:
        """How many requests this gateway may have there at a time; None: as many as there are."""
        if endpoint.slots is None:
            return None
        work = self._work(endpoint)
        return max(work.least, work.most - work.peers.requests)

    @property
    def slots_changed(self) -> int:
        """How often `slots_at` may have become another number."""
        return self._slots_changed + (0 if self._desk is None else self._desk.loads_heard)

    def _share_slots(self, work: Work) -> None:
        if work.endpoint.slots is not None:
            work.share_slots(self.gateways())
            self._slots_changed += 1

    def retain(self, names: Collection[str]) -> None:
        """Forget endpoints that are not among `names`, once nothing is under way there."""
        for name in [name for name, work in self._works.items() if name not in names and not work.own_requests]:
            work = self._works.pop(name)
            work.cache.clear()
            if self._desk is not None:
                self._desk.part(work)
        self._groups.clear()

    def in_flight(self, name: str) -> int:
        work = self._works.get(name)
        return 0 if work is None else work.own_requests

    def speed(self, endpoint: Endpoint) -> SpeedReport:
        """What is learned of its engine by now, decoding with the requests that are under way, or with one."""
        work = self._works.get(endpoint.name)
        if work is None or work.endpoint != endpoint:
            return SpeedReport()
        work.refresh(self._clock())
        return SpeedReport(work.rates.prefill_tokens_per_second, work.rates.decode_tokens_per_second(max(work.in_flight, 1)))

    def _group_of(self, candidates: Sequence[Endpoint]) -> Group:
        works = [self._work(endpoint) for endpoint in candidates]
        group = Group(candidates, works, {work.cache: place for place, work in enumerate(works)})
        parts: dict[str, tuple[float, list[Endpoint]]] = {}
        for endpoint in candidates:
            machine = self._machine(endpoint)
            parts.setdefault(machine.revision, (machine.weight, []))[1].append(endpoint)
        total = sum(weight for weight, _ in parts.values())
        if len(parts) > 1 and total > 0:
            most = 0.0
            for weight, members in parts.values():
                if weight:
                    most += weight / total
                    group.revisions.append((most, self._group_of(members)))
        return group

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
        if self._desk is not None:
            if work is not None:
                self._desk.part(work)
            self._desk.meet(new)
            new.last_used = -self._random.randrange(1 << 20)  # each gateway goes round in another order
        return new


def _one_of_several(looked_at: Sequence[tuple[Work, float, float]], worth: float) -> Ticket:
    """The same where other gateways choose at this moment, too: who is a little less loaded than others is so for all of them.

    Among those that are as good, as far as is known, this gateway goes round.
    """
    costs = [base + more * work.in_flight + worth * work.waiting_seconds for work, base, more in looked_at]
    least = min(costs)
    cheapest, _, more = looked_at[costs.index(least)]
    most = least + LIGHT_ROOTS * more * (1.0 + sqrt(cheapest.in_flight))
    best, fewest = None, 0
    for (work, _, _), cost in zip(looked_at, costs, strict=True):
        if cost <= most:
            own = work.own_requests
            if best is None or own < fewest or (own == fewest and work.last_used < best.last_used):
                best, fewest = work, own
    assert best is not None
    return best.plain


def _own_turn(work: Work) -> tuple[int, float]:
    """Round and round with this gateway's own requests: each goes another way, so that none follows the others."""
    return work.own_requests, work.last_used


def _same(question: Question) -> Question:
    return question


def _evened(costs: list[tuple[Work, float, float]]) -> list[tuple[Work, float, float]]:
    """Endpoints whose costs differ by less than the prediction's error get the same ones, so that they take turns."""
    least = min(base for _, base, _ in costs)
    close = [more for _, base, more in costs if base <= least * (1.0 + LIGHT_ERROR)]
    mean = sum(close) / len(close)
    return [(work, least, mean) if base <= least * (1.0 + LIGHT_ERROR) else (work, base, more) for work, base, more in costs]


def _with_others(costs: list[tuple[Work, float, float]]) -> list[tuple[Work, float, float]]:
    """The same with what endpoints have to do for others."""
    return [(work, base + more * (0.0 if work.others is None else work.others.running), more) for work, base, more in costs]
