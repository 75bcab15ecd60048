"""What is learned about engines and tenants from the requests that went through, to say how long the next one will take.

Everything begins at a prior and moves with what is observed; a prior that is wrong by two times is forgotten within some ten
requests. Times are seconds, sizes tokens unless the name says otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

TOKENS_PER_BYTE = 0.25
"""English text has about four bytes a token."""
LEARNING = 0.15
"""Weight of the newest observation once there are some."""
LEAST_PREFILL_TOKENS = 256
"""Fewer say more about the engine's step than about its rate of prefill."""
MOST_TENANTS = 4096
OWN_AFTER = 4.0
"""How many observations of one engine weigh as much as what its pool says."""
PRIOR_WEIGHT = 0.3
"""What a prior is worth beside the first observation."""
SURE_AFTER = 10.0
"""How many observations it takes to tell a pool's own speed from that of one of its engines."""
FORGET_SECONDS = 120.0
"""After so long without requests half of what was seen of one engine alone is forgotten, so that it is tried again; and once a
whole pool had none for so long, half of what makes it slower than its prior."""
EVEN_BATCHES = 4.0
ADAPTER_SECONDS = 0.3
"""What loading a LoRA adapter is taken to last before one was seen: some hundred megabytes from the host's memory or a disk."""
FARTHEST = 20.0
"""An observation may be at most this many times more or less than what is believed; beyond that something else is at work."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What is believed of an engine before it was observed."""

    prefill_tokens_per_second: float = 10_000.0
    step_seconds: float = 0.012
    step_seconds_per_sequence: float = 0.0002
    sequences: int = 256
    """Requests that run at once; more wait."""
    cache_tokens: int = 400_000


class Mean:
    """A running mean that counts its first observations fully, the prior being worth `prior_weight` of them."""

    __slots__ = ("count", "value")

    def __init__(self, prior: float, prior_weight: float = 1.0) -> None:
        self.value = prior
        self.count = prior_weight

    def learn(self, value: float, weight: float = 1.0) -> None:
        self.count += weight
        share = weight / self.count
        self.value += (share if share > LEARNING * weight else LEARNING * weight) * (value - self.value)

    @property
    def faith(self) -> float:
        """From 0 to 1: how much there is behind it."""
        return min(1.0, self.count / SURE_AFTER)


class PoolRates:
    """The rates of the engines of one pool, learned online from all of them together."""

    __slots__ = (
        "_faded_at",
        "_n",
        "_nn",
        "_nt",
        "_t",
        "_weight",
        "adapter_seconds",
        "learned_at",
        "prefill_seconds",
        "prior",
        "step",
        "step_slope",
    )

    def __init__(self, prior: Rates) -> None:
        self.prior = prior
        self.learned_at = self._faded_at = 0.0
        """When a request said something last, and up to when what was said long ago has faded."""
        self.prefill_seconds = Mean(1.0 / prior.prefill_tokens_per_second, PRIOR_WEIGHT)
        """Of one token of a prompt that is not cached."""
        self.adapter_seconds = Mean(ADAPTER_SECONDS, PRIOR_WEIGHT)
        """Of loading a LoRA adapter."""
        self.step = prior.step_seconds
        self.step_slope = prior.step_seconds_per_sequence
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    @property
    def steps_seen(self) -> float:
        return self._weight

    def learn_step(self, sequences: float, seconds: float) -> None:
        """A line through all steps: how long they take over how many are in them."""
        keep = 1.0 - max(LEARNING / 10, 1.0 / (self._weight + 1.0))
        self._weight = keep * self._weight + 1.0
        self._n = keep * self._n + sequences
        self._t = keep * self._t + seconds
        self._nn = keep * self._nn + sequences * sequences
        self._nt = keep * self._nt + sequences * seconds
        n, t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - n * n
        covariance = self._nt / self._weight - n * t
        # The slope is as uncertain as the batches were even: what is believed of it counts like a spread of two sequences.
        believed = self.prior.step_seconds_per_sequence * t / (self.prior.step_seconds + self.prior.step_seconds_per_sequence * n)
        slope = (covariance + EVEN_BATCHES * believed) / (variance + EVEN_BATCHES)
        self.step_slope = min(max(slope, 0.0), t / (n + 1.0))
        self.step = max(t - self.step_slope * n, 0.05 * t)

    def fade(self, now: float) -> None:
        """What made all of these engines slower than the prior may be over, and only a request can tell: while none has gone to
        them for long, half of the difference is forgotten, as a factor, in each such time."""
        since = max(self._faded_at, self.learned_at + FORGET_SECONDS)
        if now <= since:
            return
        self._faded_at = now
        part = 0.5 ** ((now - since) / FORGET_SECONDS) - 1.0
        prefill = self.prefill_seconds
        if (slower := prefill.value * self.prior.prefill_tokens_per_second) > 1.0:
            prefill.value *= slower**part
        if (slower := self.step / self.prior.step_seconds) > 1.0:
            factor = slower**part
            self.step, self.step_slope = self.step * factor, self.step_slope * factor
            self._t, self._nt = self._t * factor, self._nt * factor


class EngineRates:
    """The rates of one endpoint's engine: those of its pool, and by how much it is slower than these."""

    __slots__ = ("_pool", "_prefill_ratio", "_step_ratio", "cache_trust", "prefill_seconds", "step", "step_slope")

    def __init__(self, pool: PoolRates) -> None:
        self._pool = pool
        self._prefill_ratio = Mean(1.0, OWN_AFTER)
        self._step_ratio = Mean(1.0, OWN_AFTER)
        self.cache_trust = Mean(1.0, OWN_AFTER)
        """What part of the tokens that should be cached are."""
        self.refresh(0.0)

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Of tokens that are not cached; None while nothing of the pool was seen, so that there is but a prior."""
        return 1.0 / self.prefill_seconds if self._pool.prefill_seconds.count > PRIOR_WEIGHT else None

    def decode_tokens_per_second(self, sequences: int) -> float | None:
        """Of so many running requests together; None as above."""
        return sequences / (self.step + self.step_slope * sequences) if self._pool.steps_seen else None

    def learned(self, now: float) -> None:
        """A request says something, now."""
        self._pool.learned_at = now

    def fade(self, now: float) -> None:
        self._pool.fade(now)

    def refresh(self, idle_seconds: float) -> None:
        """Take up what the pool has learned. What was seen of this engine alone is forgotten while nothing new is seen:
        `idle_seconds` since the last time that this was done, or since something was."""
        pool, keep = self._pool, 0.5 ** (idle_seconds / FORGET_SECONDS)
        for ratio in (self._prefill_ratio, self._step_ratio):
            ratio.value = 1.0 + (ratio.value - 1.0) * keep
        step_ratio = self._step_ratio.value
        self.prefill_seconds = pool.prefill_seconds.value * self._prefill_ratio.value
        self.step = pool.step * step_ratio
        self.step_slope = pool.step_slope * step_ratio

    def learn_prefill(self, tokens: float, seconds: float) -> None:
        """A request had the engine's prefill for itself: `tokens` that were not cached took so long, steps included."""
        if tokens < LEAST_PREFILL_TOKENS:
            return
        pool = self._pool.prefill_seconds
        each = max(seconds - self.step, 0.0) / tokens
        if each <= pool.value / FARTHEST:
            return
        each = min(each, pool.value * FARTHEST)
        pool.learn(each / self._prefill_ratio.value)
        self._prefill_ratio.learn(each / pool.value, pool.faith)

    def learn_step(self, sequences: float, seconds: float) -> None:
        """A token of a running request took `seconds` on average while about `sequences` were running, prefills left out."""
        pool = self._pool
        expected = pool.step + pool.step_slope * sequences
        if not expected / FARTHEST < seconds < FARTHEST * expected:
            return
        pool.learn_step(sequences, seconds / self._step_ratio.value)
        self._step_ratio.learn(seconds / (pool.step + pool.step_slope * sequences), min(1.0, pool.steps_seen / SURE_AFTER))


class OutputLengths:
    """How long answers are, by tenant and model: of those that ended by themselves a mean, of the others a part of the limit."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Outputs] = OrderedDict()

    def predict(self, tenant: str, model: str, limit: int | None) -> float:
        known = self._known.get((tenant, model))
        if known is None:
            return min(256.0, float(limit)) if limit is not None else 256.0
        if limit is None:
            return known.tokens.value
        by_share = known.share.value * limit
        if known.share_error.value <= known.tokens_error.value:
            return max(1.0, by_share)
        return min(float(limit), known.tokens.value)

    def learn(self, tenant: str, model: str, limit: int | None, tokens: int) -> None:
        key = (tenant, model)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Outputs(float(tokens))
            if len(self._known) > MOST_TENANTS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        guess = known.tokens.value
        if limit is not None and limit > 0:
            known.share_error.learn(abs(known.share.value * limit - tokens))
            known.tokens_error.learn(abs(min(guess, limit) - tokens))
            known.share.learn(min(1.0, tokens / limit))
        known.tokens.learn(float(tokens))


class _Outputs:
    __slots__ = ("share", "share_error", "tokens", "tokens_error")

    def __init__(self, tokens: float) -> None:
        self.tokens = Mean(tokens)
        self.share = Mean(0.5)
        self.share_error = Mean(0.0, 0.0)
        self.tokens_error = Mean(0.0, 0.0)
