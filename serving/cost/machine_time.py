"""Whose time it was: the time of each machine is shared among the requests that are under way there, moment by moment.

While nothing is under way a machine is idle and nobody pays. Else each moment is shared as the engine's step of that moment is
made up: so much of it computes prompts, and so much writes the next tokens of all that are being written. Prompts share their
part in proportion to the work that they are, those that are being written share theirs evenly. So the shares of all requests and
the idle time together are exactly the time that went by, over any window.

Each account keeps two numbers: what a second of prompt work and what one answer that is being written would have been charged so
far. A request remembers them when its phase begins and pays the difference when it ends: nothing is done per second or per token.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from serving.cost.totals import PoolTotals

CHUNK_TOKENS = 8192.0
"""At most so many tokens of prompts are in one step (--max-num-batched-tokens)."""
LEAST_WORK_SECONDS = 1e-6
HEARING = 0.2
"""Weight of the newest of what an engine says of itself; each of them is some requests too old or too new."""
LEAST_FOREIGN_SHARE = 0.15
LEAST_FOREIGN = 0.5
"""Fewer requests of others than that are the difference between an engine's clock and ours."""
STALE_SECONDS = 10.0


class Rates(Protocol):
    """How long an engine is believed to take, in seconds: for a token of a prompt, for a step, and for each request in it."""

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def step(self) -> float: ...

    @property
    def step_slope(self) -> float: ...


class Account:
    """The time of one endpoint, as far as this gateway's requests used it."""

    __slots__ = (
        "_engine_requests",
        "_heard_at",
        "_others",
        "_prefilled_at",
        "_silent",
        "changed",
        "foreign",
        "output_charged",
        "outputs",
        "pool",
        "prompt_charged",
        "prompts",
        "rates",
        "streams",
        "work",
        "written_seconds",
    )

    def __init__(self, pool: PoolTotals, rates: Rates, now: float) -> None:
        self.pool = pool
        self.rates = rates
        self.changed = self._prefilled_at = self._heard_at = now
        self.prompt_charged = self.output_charged = 0.0
        self.written_seconds = 0.0
        """That went into writing, whoever's answers they were."""
        self.prompts = 0
        """Sequences under way whose prompt is being computed, or waits for that."""
        self.work = 0.0
        """How long their prompts should take, in seconds."""
        self.outputs = 0
        """Sequences that are being written."""
        self.streams = 0
        """Those of them whose first token was seen."""
        self._silent: deque[Stay] = deque()
        """Stays whose first token will not be seen, in the order in which it should come."""
        self.foreign = 0.0
        """Requests that others have under way there, as far as the engine says so."""
        self._others = self._engine_requests = 0.0

    def advance(self, now: float) -> None:
        """Bring everything up to now."""
        silent = self._silent
        if silent and (silent[0].due <= now or not silent[0].is_prompt):
            self._begin_writing(now)
        passed = now - self.changed
        if passed <= 0.0:
            return
        self.changed = now
        prompts, outputs = self.prompts, self.outputs
        if not prompts and not outputs:
            return
        if self.foreign:
            passed *= self._own_share(now)
        if not outputs:
            self.prompt_charged += passed / self.work
            return
        if prompts:
            rates, work = self.rates, self.work
            computing = CHUNK_TOKENS * rates.prefill_seconds
            if work < computing:
                computing = work
            writing = rates.step + rates.step_slope * outputs
            each = passed / (computing + writing)
            self.prompt_charged += each * computing / work
            passed = each * writing
        self.written_seconds += passed
        passed /= outputs
        self.output_charged += passed
        if self.streams:
            self.pool.output_seconds += passed * self.streams

    def _begin_writing(self, now: float) -> None:
        """Let those be written whose first token cannot be seen and should be there."""
        silent = self._silent
        while silent and (silent[0].due <= now or not silent[0].is_prompt):
            stay = silent.popleft()
            if stay.is_prompt:
                later, self._silent = self._silent, _NOBODY
                self.advance(stay.due)
                self._silent = later
                stay.write()

    def _own_share(self, now: float) -> float:
        if now - self._heard_at > STALE_SECONDS:
            self.foreign = self._others = self._engine_requests = 0.0
        ours = self.prompts + self.outputs
        return ours / (ours + self.foreign)

    def expect(self, stay: Stay, now: float) -> None:
        """A stay begins whose first token will not be seen."""
        begins = self._prefilled_at if self._prefilled_at > now else now
        stay.due = self._prefilled_at = begins + stay.work
        self._silent.append(stay)

    def leave_prompts(self, stay: Stay) -> None:
        """A prompt is computed, or given up."""
        self.prompts -= stay.sequences
        # Nothing is left of what rounding leaves.
        self.work = self.work - stay.work if self.prompts else 0.0

    def done_early(self, stay: Stay, now: float) -> None:
        """A stay ended before its first token should have come: those behind it come earlier, too."""
        self.prompts -= stay.sequences
        if not self.prompts:
            self.work, self._prefilled_at = 0.0, now
            self._silent.clear()
            return
        self.work -= stay.work
        if stay.due:
            self._prefilled_at = max(now, self._prefilled_at - stay.work)

    def hear(self, requests: float, now: float) -> None:
        """The engine said how many requests are under way there, whoever sent them."""
        self.advance(now)
        self._heard_at = now
        self._engine_requests += HEARING * (requests - self._engine_requests)
        self._others += HEARING * (requests - self.prompts - self.outputs - self._others)
        others = self._others
        self.foreign = others if others > max(LEAST_FOREIGN, LEAST_FOREIGN_SHARE * self._engine_requests) else 0.0


class Stay:
    """One request at one endpoint, from the begin of its attempt to its end."""

    __slots__ = (
        "account",
        "began",
        "charged",
        "due",
        "ended",
        "is_prompt",
        "output_seconds",
        "prompt_seconds",
        "seen",
        "sequences",
        "work",
        "written_seconds",
    )

    def __init__(self, account: Account, now: float, work_seconds: float, sequences: int, *, silent: bool) -> None:
        self.account = account
        self.began = now
        self.work = work = work_seconds if work_seconds > LEAST_WORK_SECONDS else LEAST_WORK_SECONDS
        self.sequences = sequences
        self.is_prompt = True
        self.seen = False
        """Its first token was: what is being computed and what is being written are known apart."""
        self.written_seconds = 0.0
        """What steps took that wrote it and others, where it was seen."""
        self.due = 0.0
        """When its first token should be there, where it will not be seen; 0.0 where it will."""
        self.ended = 0.0
        self.prompt_seconds = self.output_seconds = 0.0
        account.advance(now)
        self.charged = account.prompt_charged
        account.prompts += sequences
        account.work += work
        if silent:
            account.expect(self, now)

    def write(self) -> None:
        """From the moment up to which the account is, the request is being written."""
        account = self.account
        self.prompt_seconds = (account.prompt_charged - self.charged) * self.work
        self.charged = account.output_charged
        self.is_prompt = False
        account.leave_prompts(self)
        account.outputs += self.sequences

    def first_token(self, now: float) -> None:
        """The prompt is computed. Only the first call does anything."""
        if self.seen or self.ended:
            return
        self.seen = True
        account = self.account
        account.advance(now)
        if self.is_prompt:
            self.write()
        self.written_seconds = account.written_seconds
        account.streams += self.sequences

    def end(self, now: float) -> None:
        """The attempt is over. Only the first call does anything."""
        if self.ended:
            return
        self.ended = now
        account = self.account
        account.advance(now)
        if self.is_prompt:
            self.prompt_seconds = (account.prompt_charged - self.charged) * self.work
            self.is_prompt = False
            account.done_early(self, now)
            return
        self.output_seconds = (account.output_charged - self.charged) * self.sequences
        account.outputs -= self.sequences
        if self.seen:
            account.streams -= self.sequences
            self.written_seconds = account.written_seconds - self.written_seconds


_NOBODY: deque[Stay] = deque()
