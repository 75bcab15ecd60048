"""What a request is going to take, guessed before it runs; and what it took, by rule, when it has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from serving.core.context import RequestContext, Usage
from serving.core.errors import InvalidRequest
from serving.core.outcomes import Outcome
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.prices import Cost, Prices
from serving.tenancy.quotas import NOTHING, Claim, Limits
from serving.tenancy.tenants import Tenant

UNKNOWN_OUTPUT_TOKENS = 1000
"""Where neither the request nor the tenant's cap nor its last answers say how long the answer will be."""
_ANSWERS = 128
"""Of one tenant and model that are remembered."""
_LEAST_ANSWERS = 8
"""Fewer say nothing of how long the next one will be."""
_KNOWN = 4096
"""Pairs of tenant and model of which answers are remembered."""
_PERCENTILE = 0.95
_MULTIPLE = frozenset(("n", "best_of", "prompt"))
"""Members by which a request may ask for several answers."""
_LEFT = frozenset((Outcome.CLIENT_CANCELLED, Outcome.CLIENT_SLOW, Outcome.DEADLINE_EXCEEDED))
"""The request was given up by its client, or by the time that was given to it."""


class Guess(NamedTuple):
    """Tokens of a request before it runs."""

    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class _Outputs:
    """The last answers of one tenant and model."""

    __slots__ = ("_new", "_tokens", "percentile")

    def __init__(self) -> None:
        self._tokens: deque[int] = deque(maxlen=_ANSWERS)
        self._new = 0
        self.percentile: int | None = None
        """In tokens of one answer; None while too little is known."""

    def add(self, tokens: int) -> None:
        self._tokens.append(tokens)
        self._new += 1
        if self._new >= _LEAST_ANSWERS:
            self._new = 0
            ranked = sorted(self._tokens)
            self.percentile = ranked[min(len(ranked) - 1, int(len(ranked) * _PERCENTILE))]


class Claims:
    """Guesses, and learns from how it was."""

    def __init__(
        self, estimates: TokenEstimates, prices: Prices | None = None, pools: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """Without `prices` nothing costs dollars. `pools` by the model that they serve: of them the dearest is reserved."""
        self._estimates = estimates
        self._prices = prices
        self._pools = pools or {}
        self._outputs: dict[tuple[str, str], _Outputs] = {}

    def guess(self, ctx: RequestContext, tenant: Tenant, limits: Limits | None) -> Guess:
        """Raises: InvalidRequest when what the request asks for is more than the tenant's limit, so that it can never fit."""
        if not ctx.route.runs_model:
            return Guess(0, 0)
        prompt = round(self._estimates.prompt_tokens(ctx, ctx.body_bytes or len(ctx.body)))
        if ctx.route.dialect.output_key is None:
            _refuse_what_never_fits(prompt, None, limits)
            return Guess(prompt, 0)
        document = ctx.document
        answers = _answers(document)
        most = _most_tokens(ctx.route.length_fields, document)
        _refuse_what_never_fits(prompt, None if most is None else most * answers, limits)
        known = self._outputs.get((tenant.name, ctx.model))
        output = None if known is None else known.percentile
        cap = tenant.parameters.max_tokens
        if most is not None and (output is None or most < output):
            output = most
        if cap is not None and (output is None or cap < output):
            output = cap
        output = (UNKNOWN_OUTPUT_TOKENS if output is None else output) * answers
        if limits is not None and limits.tokens is not None:
            # What nobody asked for must not shut a request out.
            output = min(output, max(0, limits.tokens - prompt))
        return Guess(prompt, output)

    def claim(self, ctx: RequestContext, guess: Guess) -> Claim:
        prompt, output = guess
        dollars = 0
        if self._prices is not None:
            usage = Usage(prompt, None, output)
            pools = self._pools.get(ctx.model, ("",))
            dollars = max(_sum(self._prices.cost(ctx.model, pool, usage)) for pool in pools)
        return Claim(1, prompt + output, dollars)

    def used(self, ctx: RequestContext, guess: Guess) -> Claim:
        """What an ended request counts for.

        A whole answer: what the engine says of it; where it says nothing, the guess. A request that its client left, or whose
        own time was over, after an engine had it: its prompt and what was delivered. All others, which the gateway or an engine
        refused or failed: nothing.
        """
        if ctx.outcome is not Outcome.OK and not (ctx.outcome in _LEFT and ctx.attempts):
            return NOTHING
        usage = ctx.usage
        prompt = guess.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        output = usage.output_tokens
        if output is None:
            output = guess.output_tokens if ctx.outcome is Outcome.OK else 0
        dollars = 0
        if self._prices is not None:
            dollars = _sum(self._prices.cost(ctx.model, ctx.pool, Usage(prompt, usage.cached_tokens, output)))
        return Claim(1, prompt + output, dollars)

    def learn(self, ctx: RequestContext) -> None:
        """Take an ended request whose output the engine said."""
        output = ctx.usage.output_tokens
        if output is None or ctx.usage_estimated or ctx.outcome is not Outcome.OK:
            return
        key = (ctx.tenant, ctx.model)
        known = self._outputs.get(key)
        if known is None:
            if len(self._outputs) >= _KNOWN:
                self._outputs.pop(next(iter(self._outputs)))
            known = self._outputs[key] = _Outputs()
        known.add(-(-output // _answers(ctx.document)))


def _sum(cost: Cost) -> int:
    """In nano-dollars; what is unknown is not counted, and the settings see to it that nothing is where dollars are limited."""
    return sum(each for each in cost if each is not None)


def _refuse_what_never_fits(prompt_tokens: int, output_tokens: int | None, limits: Limits | None) -> None:
    if limits is None or limits.tokens is None:
        return
    asked_tokens = prompt_tokens + (output_tokens or 0)
    if asked_tokens > limits.tokens:
        raise InvalidRequest(
            f"The request asks for about {asked_tokens} tokens and can never fit: {limits.tokens} a minute are allowed. "
            "Send a shorter prompt or a smaller max_tokens.",
            param="max_tokens" if prompt_tokens <= limits.tokens else None,
            code="request_exceeds_limit",
        )


def _most_tokens(fields: tuple[str, ...], document: dict[str, Any]) -> int | None:
    """The output that the request allows at most, for each of its answers."""
    for name in fields:
        value = document.get(name)
        if isinstance(value, int | float):
            return int(value)
    return None


def _answers(document: dict[str, Any]) -> int:
    """How many answers are made for it."""
    if document.keys().isdisjoint(_MULTIPLE):
        return 1
    prompt = document.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    choices = [int(value) for name in ("n", "best_of") if isinstance(value := document.get(name), int | float)]
    return prompts * max(choices, default=1)
