"""What an answer cost that ended before the engine could say so."""

from __future__ import annotations

from typing import TypeVar

from serving.core.context import RequestContext, Usage

_Key = TypeVar("_Key")
KNOWN = 4096
"""Pairs of tenant and model of which something is remembered, the newest."""
_WEIGHT = 0.05
"""Of the newest request in the running means."""
_TOKENS_PER_BYTE = 0.25
"""Before anything is known of a model: English text has about four bytes a token."""
_TOKENS_PER_FILE_BYTE = 0.003
"""The same for a form with a sound file: 50 tokens a second, and between 8 and 32 kB."""


class TokenEstimates:
    """Learns, for each tenant and model, how many tokens a byte of a request and an event of a stream are worth.

    With speculative decoding an event holds several tokens, so both are learned from answers whose usage is known. From a
    tenant's own answers only: what others send must neither shut it out of its limits nor be on its bill.
    """

    def __init__(self) -> None:
        self._tokens_per_byte: dict[tuple[str, str, bool], float] = {}
        """Apart for forms, too: a byte of sound is worth far less than one of text."""
        self._tokens_per_event: dict[tuple[str, str], float] = {}

    @property
    def known(self) -> int:
        """Of how many tenants and models something is remembered."""
        return len(self._tokens_per_byte)

    def learn(self, ctx: RequestContext) -> None:
        """Take an ended request whose usage the engine said."""
        usage = ctx.usage
        if usage.prompt_tokens is None or usage.output_tokens is None:
            return
        if ctx.body_bytes:
            _mix(self._tokens_per_byte, (ctx.tenant, ctx.model, ctx.route.form), usage.prompt_tokens / ctx.body_bytes)
        if ctx.stream and (events := _token_events(ctx)) > 0:
            _mix(self._tokens_per_event, (ctx.tenant, ctx.model), usage.output_tokens / events)

    def estimate(self, ctx: RequestContext) -> Usage:
        """The best guess for a request whose answer broke off: its prompt, unless the engine told it, and what was delivered."""
        prompt: float | None = ctx.usage.prompt_tokens
        if prompt is None:
            prompt = self.prompt_tokens(ctx, ctx.body_bytes)
        output = _token_events(ctx) * self._tokens_per_event.get((ctx.tenant, ctx.model), 1.0) if ctx.stream else 0.0
        return Usage(round(prompt), None, round(output))

    def prompt_tokens(self, ctx: RequestContext, body_bytes: int) -> float:
        """The best guess for a prompt of which the engine has said nothing."""
        default = _TOKENS_PER_FILE_BYTE if ctx.route.form else _TOKENS_PER_BYTE
        return body_bytes * self._tokens_per_byte.get((ctx.tenant, ctx.model, ctx.route.form), default)


def _mix(means: dict[_Key, float], key: _Key, value: float) -> None:
    before = means.get(key)
    if before is None:
        if len(means) >= KNOWN:
            means.pop(next(iter(means)))
        means[key] = value
    else:
        means[key] = before + _WEIGHT * (value - before)


def _token_events(ctx: RequestContext) -> int:
    return max(0, ctx.events - ctx.route.silent_events)
