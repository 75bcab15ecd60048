"""What a request is going to take, guessed before it runs; and what it took, by rule, when it has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from serving.core.context import RequestContext, Usage
from serving.core.errors import InvalidRequest
from serving.core.outcomes import Outcome
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.prices import NANODOLLARS, Cost, Prices
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
            return Guess(_fitting_prompt(ctx, prompt, 0, limits), 0)
        document = ctx.document
        answers = _answers(document)
        most = _most_tokens(ctx.route.length_fields, document)
        prompt = _fitting_prompt(ctx, prompt, 0 if most is None else most * answers, limits)
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

    def claim(self, ctx: RequestContext, guess: Guess, limits: Limits | None = None) -> Claim:
        """Raises: InvalidRequest when what the request asks for costs more than the tenant may spend in a day."""
        prompt, output = guess
        dollars = 0
        if self._prices is not None:
            dollars = self._dearest(ctx, prompt, output)
            if limits is not None and limits.nano_dollars is not None and dollars > limits.nano_dollars:
                dollars = self._fitting_dollars(ctx, guess, limits.nano_dollars)
        return Claim(1, prompt + output, dollars)

    def _dearest(self, ctx: RequestContext, prompt_tokens: int, output_tokens: int) -> int:
        """Nano-dollars of so many tokens at the dearest of the model's pools."""
        assert self._prices is not None
        usage = Usage(prompt_tokens, None, output_tokens)
        return max(_sum(self._prices.cost(ctx.model, pool, usage)) for pool in self._pools.get(ctx.model, ("",)))

    def _fitting_dollars(self, ctx: RequestContext, guess: Guess, most: int) -> int:
        """The whole day's, where only what nobody asked for is more. Raises: InvalidRequest."""
        prompt = min(guess.prompt_tokens, _most_prompt_tokens(ctx))
        asked = _most_tokens(ctx.route.length_fields, ctx.document)
        output = 0 if asked is None else min(asked * _answers(ctx.document), guess.output_tokens)
        for output_tokens, is_asked in ((0, False), (output, True)):
            dollars = self._dearest(ctx, prompt, output_tokens)
            if dollars > most:
                raise _never_fits(
                    f"may cost about {dollars / NANODOLLARS:.6g} dollars",
                    f"{most / NANODOLLARS:.6g} dollars a day",
                    _length_field(ctx.route.length_fields, ctx.document) if is_asked else None,
                )
        return most

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


def _most_prompt_tokens(ctx: RequestContext) -> int:
    """What its prompt can be at most, if it is text: a token has a byte or more. What a picture is worth is not in its bytes."""
    return ctx.body_bytes or len(ctx.body)


def _fitting_prompt(ctx: RequestContext, prompt_tokens: int, output_tokens: int, limits: Limits | None) -> int:
    """The guess of a prompt, but no more than the limit where only the guess is. Raises: InvalidRequest."""
    if limits is None or limits.tokens is None or prompt_tokens + output_tokens <= limits.tokens:
        return prompt_tokens
    surely = min(prompt_tokens, _most_prompt_tokens(ctx))
    if surely + output_tokens > limits.tokens:
        raise _never_fits(
            f"asks for about {surely + output_tokens} tokens",
            f"{limits.tokens} a minute",
            _length_field(ctx.route.length_fields, ctx.document) if surely <= limits.tokens else None,
        )
    return limits.tokens - output_tokens


def _never_fits(what: str, most: str, field: str | None) -> InvalidRequest:
    advice = "Send a shorter prompt" + ("." if field is None else f" or a smaller {field}.")
    return InvalidRequest(
        f"The request {what} and can never fit: {most} are allowed. {advice}", param=field, code="request_exceeds_limit"
    )


def _most_tokens(fields: tuple[str, ...], document: dict[str, Any]) -> int | None:
    """The output that the request allows at most, for each of its answers."""
    field = _length_field(fields, document)
    return None if field is None else int(document[field])


def _length_field(fields: tuple[str, ...], document: dict[str, Any]) -> str | None:
    """The field by which the request says how long an answer may be."""
    for name in fields:
        if isinstance(document.get(name), int | float):
            return name
    return None


def _answers(document: dict[str, Any]) -> int:
    """How many answers are made for it."""
    if document.keys().isdisjoint(_MULTIPLE):
        return 1
    prompt = document.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    choices = [int(value) for name in ("n", "best_of") if isinstance(value := document.get(name), int | float)]
    return prompts * max(choices, default=1)
