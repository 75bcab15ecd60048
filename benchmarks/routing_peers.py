"""Other people's policies, imitated on the simulated engines, and a router that can look inside of them."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from typing import Any

from benchmarks.routing_engine import Engine, Job
from benchmarks.routing_traces import Turn
from serving.routing.chain import START


class _Counting:
    """Knows how many requests are under way at each engine."""

    def __init__(self, engines: int) -> None:
        self.active = [0] * engines
        self.last = [0.0] * engines

    def choose(self, turn: Turn, now: float) -> int:
        raise NotImplementedError

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        chosen = self.choose(turn, now)
        self.active[chosen] += 1
        self.last[chosen] = now
        return chosen, chosen

    def first(self, ticket: Any, now: float) -> None:
        pass

    def end(self, ticket: Any, turn: Turn, job: Job, now: float) -> None:
        self.active[ticket] -= 1


class RoundRobin(_Counting):
    turn = -1

    def choose(self, turn: Turn, now: float) -> int:
        self.turn += 1
        return self.turn % len(self.active)


class LeastLoaded(_Counting):
    def choose(self, turn: Turn, now: float) -> int:
        return min(range(len(self.active)), key=lambda e: (self.active[e], self.last[e]))


class SessionHash(_Counting):
    """nginx with a consistent hash of the session's id."""

    def choose(self, turn: Turn, now: float) -> int:
        return random.Random(turn.session).randrange(len(self.active))


class CacheAware(_Counting):
    """The tree policy of the Rust routers: the longest match above a threshold unless the counts are far apart."""

    def __init__(self, engines: int, threshold: float = 0.3, absolute: int = 64, relative: float = 1.5) -> None:
        super().__init__(engines)
        self._seen: list[dict[int, None]] = [{} for _ in range(engines)]
        self._threshold, self._absolute, self._relative = threshold, absolute, relative

    def choose(self, turn: Turn, now: float) -> int:
        active = self.active
        if max(active) - min(active) > self._absolute and max(active) > self._relative * min(active):
            chosen = active.index(min(active))
        else:
            depth = [_depth(seen, turn.chain) for seen in self._seen]
            best = max(range(len(active)), key=lambda e: (depth[e], -active[e]))
            enough = depth[best] > self._threshold * max(1, len(turn.chain))
            chosen = best if enough else min(range(len(active)), key=lambda e: (active[e], len(self._seen[e])))
        self._seen[chosen].update(dict.fromkeys(turn.chain))
        return chosen


def _depth(seen: Any, chain: list[int]) -> int:
    low, high = 0, len(chain)
    while low < high:
        middle = (low + high + 1) // 2
        if chain[middle - 1] in seen:
            low = middle
        else:
            high = middle - 1
    return low


class Reference:
    """The harness's 100-line reference policy: a fixed weight for a miss, a model of each cache as large as the engine's."""

    def __init__(self, engines: int, miss: float, rate: float = 16_000.0, cache_tokens: int = 640_000) -> None:
        self._miss, self._rate, self._cap = miss, rate, cache_tokens * 4
        self._orders: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(engines)]
        self._sizes = [0] * engines
        self._backlog = [0.0] * engines
        self._active = [0] * engines
        self._last = [0.0] * engines

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        best: tuple[tuple[float, float], int, float] | None = None
        for engine, order in enumerate(self._orders):
            need = (turn.prompt.size - START[_depth(order, turn.chain)]) / 4
            active = self._active[engine]
            cost = (self._miss * need + self._backlog[engine]) / self._rate + 0.01 * active * (1 + (active / 64) ** 2)
            key = (round(cost, 3), self._last[engine])
            if best is None or key < best[0]:
                best = (key, engine, need)
        assert best is not None
        _, engine, need = best
        order = self._orders[engine]
        for place in range(len(turn.chain) - 1, -1, -1):
            digest = turn.chain[place]
            if digest not in order:
                order[digest] = START[place + 1] - START[place]
                self._sizes[engine] += order[digest]
            order.move_to_end(digest)
        while self._sizes[engine] > self._cap:
            self._sizes[engine] -= order.popitem(last=False)[1]
        self._last[engine] = now
        self._backlog[engine] += need
        self._active[engine] += 1
        return engine, [engine, need]

    def first(self, ticket: Any, now: float) -> None:
        self._backlog[ticket[0]] = max(0.0, self._backlog[ticket[0]] - ticket[1])

    def end(self, ticket: Any, turn: Turn, job: Job, now: float) -> None:
        self._active[ticket[0]] -= 1


class Clairvoyant:
    """Knows all caches, all work and all lengths, and weighs a miss as it is told."""

    def __init__(self, engines: list[Engine], miss: float, decode: float) -> None:
        self._engines = engines
        self._miss, self._decode = miss, decode
        self.chosen: Counter[int] = Counter()

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        costs = []
        for engine in self._engines:
            spec = engine.spec
            tokens = turn.prompt_tokens - engine.cached(turn.blocks, turn.prompt_tokens)
            seconds = tokens / spec.prefill_tokens_per_second
            batch = len(engine.decoding) + len(engine.prefilling) + len(engine.waiting)
            cost = engine.work_ahead(now) + self._miss * seconds
            cost += self._decode * turn.output_tokens * spec.step_seconds_per_sequence * batch
            if engine.running >= spec.sequences:
                cost += 10.0 * len(engine.waiting)
            needed = (turn.prompt_tokens + turn.output_tokens) / 16
            if engine.free < needed + sum((j.prompt_tokens + j.output_tokens) / 16 for j in engine.waiting):
                cost += 1.0 + len(engine.waiting)
            costs.append((cost, self.chosen[engine.number], engine.number))
        chosen = min(costs)[2]
        self.chosen[chosen] += 1
        return chosen, None

    def first(self, ticket: Any, now: float) -> None:
        pass

    def end(self, ticket: Any, turn: Turn, job: Job, now: float) -> None:
        pass
