"""The way of a request, on one page.

    identify → read → admit → route → relay → settle

A stage takes the request context and returns or raises; only this module knows their order. Everything taken for a request is
given back in `_settle`, which every path runs through exactly once, before the answer's last byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from serving.core.clock import Clock, monotonic
from serving.core.context import UNKNOWN_USAGE, Incoming, Outgoing, RequestContext, Write
from serving.core.deadlines import ends_of
from serving.core.errors import (
    BodyTooLarge,
    ClientGone,
    DeadlineExceeded,
    EngineFailed,
    EngineTimedOut,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    Overloaded,
    RequestError,
    Unavailable,
    UnsupportedMedia,
)
from serving.core.money import SEVERAL
from serving.core.outcomes import AttemptResult, Outcome, RetryDenied
from serving.core.routes import supported
from serving.cost.costs import Costs
from serving.cost.machine_time import Stay
from serving.engines.body import is_repeatable, prepare, understand
from serving.engines.exchange import (
    AnswerTimedOut,
    ConnectTimedOut,
    NoResources,
    RequestTimedOut,
    StaleConnection,
    Unreachable,
    WireError,
)
from serving.engines.form_body import begin_form
from serving.engines.passing import Passing
from serving.engines.reasoning import with_reasoning
from serving.engines.relay import Answer, EngineRefused, Relay
from serving.engines.stand_in import address_to, bound_to_model
from serving.engines.view import AnswerView, WholeView, view_of, view_of_whole
from serving.fleet.health import Health
from serving.fleet.probe import Probe
from serving.fleet.store import Endpoint, Fleet
from serving.observability.last_errors import LastErrors
from serving.observability.logs import RequestLog, stamp_now
from serving.observability.metrics import Metrics
from serving.routing.choose import STANDARD, Chooser
from serving.routing.explain import Explain
from serving.routing.models import PublicModel
from serving.routing.objectives import Objectives
from serving.routing.question import Question, question_of
from serving.routing.retries import RetryBudget
from serving.routing.work import Ticket
from serving.settings import RelaySettings
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.identities import Identities
from serving.tenancy.ledger import Ledger
from serving.tenancy.limits import Admission, Lease
from serving.tenancy.prices import NANODOLLARS, Prices
from serving.tenancy.tenants import Identity, Tenant

if TYPE_CHECKING:
    # Loaded only where tracing is on: its libraries are large.
    from serving.observability.tracing import Tracing

log = logging.getLogger("serving.pipeline")

RETRY_AFTER_SECONDS = 5
"""How long a client is asked to wait for a model whose engines are all away: a probe period and a little of a restart."""


SERVED_MODEL_HEADER = b"x-served-model"
"""Names the model that answered, where the client called it something else."""
_HEADER_SAFE = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}~"
"""Of the visible ASCII characters all but the sign that escapes the others."""
MOST_ATTEMPTS = 3
"""Of one request at one model, with those at connections that had ended already or were never made."""
PUBLISH_SECONDS = 0.02
PUBLISH_REQUESTS = 200
"""How long, and how many, ended requests wait to be published; the most that are then a burst of about 3 ms."""


class AnswerCut(Exception):
    """The engine's answer broke off after its first byte had gone out: the edge must not let it look complete."""

    def __init__(self, error: RequestError, *, in_band: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.in_band = in_band
        """The answer is a stream, which can say so itself."""


class Pipeline:
    """Serves requests, one call each."""

    def __init__(
        self,
        *,
        identities: Identities,
        admission: Admission,
        models: Mapping[str, PublicModel],
        fleet: Fleet,
        probe: Probe,
        health: Health,
        chooser: Chooser,
        relay: Relay,
        metrics: Metrics,
        request_log: RequestLog | None,
        estimates: TokenEstimates,
        retry_budget: RetryBudget,
        settings: RelaySettings,
        objectives: Objectives,
        explain: Explain,
        costs: Costs,
        prices: Prices | None = None,
        tracing: Tracing | None = None,
        ledger: Ledger | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._identities = identities
        self._admission = admission
        self._models = models
        self._fleet = fleet
        self._probe = probe
        self._health = health
        self._chooser = chooser
        self._relay = relay
        self._metrics = metrics
        self._request_log = request_log
        self._estimates = estimates
        self._retry_budget = retry_budget
        self.objectives = objectives
        self._explain = explain
        self._costs = costs
        self._prices = prices
        self._max_attempts = settings.max_attempts
        self._request_timeout_seconds = settings.request_timeout_seconds
        self._form_buffer_bytes = settings.form_buffer_bytes
        self._tracing = tracing
        self._ledger = ledger
        self._clock = clock
        self.in_flight = 0
        self.last_errors = LastErrors()
        self._unpublished: list[Passage] = []

    async def serve(self, ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        """Take one request from its head to the last byte of its answer.

        Raises: RequestError before the first byte, AnswerCut after it. The request is settled in either case.
        """
        passage = Passage(ctx)
        self.in_flight += 1
        try:
            if self._tracing is not None:
                self._tracing.begin(ctx)
            identity = passage.identity = self._identities.identify(ctx.credential)
            tenant = identity.tenant
            ctx.tenant = tenant.name
            if ctx.asked_timeout is not None:
                ctx.ends = ends_of(ctx.asked_timeout, ctx.arrived, self._request_timeout_seconds)
            if ctx.route.form:
                name = await begin_form(ctx, incoming.upload(), tenant.parameters, self._form_buffer_bytes, self._served)
                model = self._find_model(ctx, tenant, name)
            else:
                ctx.body = await incoming.body()
                ctx.body_bytes = len(ctx.body)
                model = self._find_model(ctx, tenant, understand(ctx, tenant.parameters))
                passage.isolation = self._identities.cache_salt(tenant.isolation_group, ctx.document.get("cache_salt"))
                prepare(ctx, passage.isolation)
            objective = passage.objective = self.objectives.of(
                ctx.asked_class if tenant.may_use_class_header else None, tenant.priority, model
            )
            if ctx.trace is not None:
                ctx.trace.admit_began = self._clock()
            lease = passage.lease = self._admission.admit()
            if self._admission.counts(ctx, tenant):
                await self._admission.enter(lease, ctx, tenant, objective.name)
            if ctx.trace is not None:
                ctx.trace.admit_ended = self._clock()
            self._retry_budget.request()
            try:
                answer = await self._in_time(ctx, self._first_byte(passage, self._max_attempts))
            except RETRIED as error:
                answer = await self._in_time(ctx, self._fall_back(passage, model, error))
            if lease.reservation is not None:
                answer.headers += self._admission.headers(lease, ctx)
            if ctx.model != ctx.asked_model:
                answer.headers.append((SERVED_MODEL_HEADER, quote(ctx.model, safe=_HEADER_SAFE).encode("ascii")))
            await self._relay_answer(passage, answer, outgoing)
        except RequestError as error:
            ctx.status, ctx.outcome, ctx.error_code = error.status, Outcome(error.outcome), error.error_code or ""
            if not ctx.attempts and not isinstance(error, ClientGone):
                self._metrics.rejections.add((error.error_code or "invalid_request",))
            if passage.lease is not None and passage.lease.reservation is not None:
                error.headers |= self._admission.error_fields(passage.lease, ctx)
            raise
        except AnswerCut as cut:
            ctx.outcome = _CUT_BY.get(type(cut.error), Outcome.TRUNCATED)
            ctx.error_code = cut.error.error_code or ""
            raise
        except asyncio.CancelledError:
            if not passage.settled:
                # Else the whole answer is out, as far as it matters: its client leaves while the engine's last bytes come.
                ctx.outcome = ctx.interruption or Outcome.SHUTDOWN
            raise
        except BaseException:
            ctx.outcome = Outcome.INTERNAL_ERROR
            raise
        finally:
            self._settle(passage)
            if passage.answer is not None:
                self._relay.close(passage.answer.exchange)

    def _in_time(self, ctx: RequestContext, answer: Coroutine[Any, Any, Answer]) -> Coroutine[Any, Any, Answer]:
        """The same, but over when the time is that the client gave its request; the gateway's own is the relay's business."""
        return answer if not ctx.ends else self._until_its_end(ctx, answer)

    async def _until_its_end(self, ctx: RequestContext, answer: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            async with asyncio.timeout(ctx.ends - self._clock()):
                return await answer
        except TimeoutError:
            raise self._deadline_exceeded(ctx) from None

    def _find_model(self, ctx: RequestContext, tenant: Tenant, name: str) -> PublicModel:
        model = self._models.get(name)
        if model is None or (tenant.models is not None and not tenant.may_use(name)):
            raise ModelNotFound(
                f"The model {_shown(name)} does not exist here. GET /v1/models lists those that do.", param="model"
            )
        ctx.asked_model, ctx.model = model.name, model.served
        if ctx.route.tells_reasoning and model.reasoning_field != "reasoning":
            ctx.reasoning_field = model.reasoning_field
        tasks = self._fleet.snapshot.tasks(model.served)
        if tasks and ctx.route.task is not None and ctx.route.task not in tasks:
            raise self._not_supported(ctx)
        return model

    def _served(self, name: str) -> str:
        """The name by which engines know a model; unknown ones are refused later."""
        model = self._models.get(name)
        return name if model is None else model.served

    def _not_supported(self, ctx: RequestContext) -> RequestError:
        tasks = self._fleet.snapshot.tasks(ctx.model)
        if ctx.route.task is None or ctx.route.task in tasks:
            # An engine that is older than the route, or whose endpoint promises a task that it does not do.
            log.warning("endpoint %s does not know %s", ctx.endpoint, ctx.route.path, extra={"request_id": ctx.request_id})
            can = ""
        else:
            can = f" It answers {', '.join(supported(tasks))}."
        words = f"The model {_shown(ctx.asked_model)} does not support {ctx.route.path}.{can}"
        return NotFound(words, param="model", code="route_not_supported")

    async def _fall_back(self, passage: Passage, model: PublicModel, error: RequestError) -> Answer:
        """Let another model answer, where the settings name one and the request can be understood by it.

        All of them together add one attempt at most to those of the asked model. Raises: `error` when none of them answers:
        what a model that nobody asked for says about the request is not the client's.
        """
        ctx = passage.ctx
        if not model.fallbacks or bound_to_model(ctx):
            raise error
        ctx.fell_back = True
        for name in model.fallbacks:
            snapshot = self._fleet.snapshot
            if not snapshot.candidates(name) or ctx.route.task not in (None, *snapshot.tasks(name)):
                continue
            if ctx.attempts > self._max_attempts or (ctx.attempts and not self._may_repeat(ctx, True)):
                break
            assert passage.lease is not None and passage.identity is not None
            if not self._admission.move(passage.lease, ctx, passage.identity.tenant, name):
                continue
            try:
                address_to(ctx, name)
                return await self._first_byte(passage, self._max_attempts + 1)
            except (EngineTimedOut, DeadlineExceeded):
                break
            except RequestError as failure:
                log.warning("fallback %s: %s", name, failure, extra={"request_id": ctx.request_id})
        ctx.fell_back, ctx.model = False, model.served
        raise error

    async def _first_byte(self, passage: Passage, limit: int) -> Answer:
        """Try endpoints of the model, another one each time, until one answers. Nothing has gone to the client yet.

        `limit` holds for all attempts of the request, those at other models included.
        """
        ctx = passage.ctx
        # A kept connection may end without a word on whether the request was read: what must not be repeated gets a new one.
        repeatable = is_repeatable(ctx)
        error: RequestError | None = None
        tried: set[str] = set()
        again = untaken = False
        ticket = self._choose(passage, tried)
        while ticket is not None:
            endpoint = ticket.endpoint
            tried.add(endpoint.name)
            self._begin_attempt(passage, ticket)
            taken = True
            try:
                passage.answer = await self._relay.ask(endpoint.url, ctx, fresh=again or not repeatable or ctx.rest is not None)
            except StaleConnection:
                # Most likely the engine closed an idle connection just as it was taken: the same engine again, on a new one.
                self._end_attempt(passage, AttemptResult.STALE)
                error, again = EngineFailed("The engine's connection ended before it answered."), True
            except WireError as failure:
                error, again = self._attempt_failed(passage, endpoint, failure), False
                taken = not isinstance(failure, Unreachable)
            except EngineRefused as refusal:
                error, again = self._attempt_refused(passage, refusal), False
            else:
                if passage.answer.is_stream:
                    self._chooser.first_token(ticket)
                    if passage.stay is not None:
                        self._costs.first_token(passage.stay)
                return passage.answer
            if not again:
                if not isinstance(error, MENDED_ELSEWHERE):
                    break
                ticket = self._choose(passage, tried)
            if ctx.rest is not None and ctx.rest.begun:
                repeatable = False
            untaken = untaken or again or not taken
            # A connection that had ended already, or was never made, was no try of an engine: of what follows it one is free.
            most = max(limit, min(limit + 1, MOST_ATTEMPTS)) if untaken else limit
            if ticket is None or ctx.attempts >= most or not self._may_repeat(ctx, repeatable or not taken):
                break
        raise error or Unavailable(
            "No engine for this model is ready. Try again shortly.", retry_after_seconds=RETRY_AFTER_SECONDS
        )

    def _choose(self, passage: Passage, tried: set[str]) -> Ticket | None:
        ctx = passage.ctx
        if ctx.trace is not None:
            ctx.trace.route_began = self._clock()
        candidates = self._fleet.snapshot.candidates(ctx.model)
        explained = (ctx.trace is not None and ctx.trace.sampled) or (
            ctx.explain_key is not None and self._explain.allows(ctx.explain_key)
        )
        ticket = self._chooser.choose(
            ctx.model,
            candidates,
            tried,
            passage.question,
            objective=passage.objective,
            size_bytes=ctx.body_bytes,
            explained=explained,
        )
        if explained and ticket is not None:
            self._explain.note(ctx, ticket)
        return ticket

    def _may_repeat(self, ctx: RequestContext, repeatable: bool) -> bool:
        """Whether a failed attempt may be followed by another one; the last to be asked, since it takes from the budget."""
        if not repeatable:
            denied = RetryDenied.NOT_REPEATABLE
        elif self._clock() >= (ctx.ends or ctx.arrived + self._request_timeout_seconds):
            denied = RetryDenied.DEADLINE
        elif not self._retry_budget.take():
            denied = RetryDenied.BUDGET
        else:
            self._metrics.retries.add(())
            return True
        self._metrics.retries_denied.add((denied,))
        return False

    def _begin_attempt(self, passage: Passage, ticket: Ticket) -> None:
        ctx, endpoint = passage.ctx, ticket.endpoint
        ctx.attempts += 1
        ctx.endpoint, ctx.pool, ctx.target = endpoint.name, endpoint.pool, endpoint.target
        passage.ticket = ticket
        if self._tracing is not None:
            self._tracing.begin_attempt(ctx, self._clock())
        self._chooser.begin(ticket)
        passage.stay = self._costs.begin(endpoint, ticket.work.rates, ticket.prefill_seconds, ctx)

    def _attempt_failed(self, passage: Passage, endpoint: Endpoint, failure: WireError) -> RequestError:
        log.warning("endpoint %s: %s", endpoint.name, failure, extra={"request_id": passage.ctx.request_id})
        if isinstance(failure, Unreachable):
            if not isinstance(failure, NoResources):
                self._blame(passage, AttemptResult.UNREACHABLE)
                self._probe.suspect(endpoint, str(failure), certain=not isinstance(failure, ConnectTimedOut))
            self._end_attempt(passage, AttemptResult.UNREACHABLE)
            return Unavailable(
                "The engine for this model cannot be reached. Try again shortly.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        if isinstance(failure, AnswerTimedOut):
            self._blame(passage, AttemptResult.TIMEOUT)
            self._end_attempt(passage, AttemptResult.TIMEOUT)
            return EngineTimedOut("The engine did not begin to answer in time.")
        if isinstance(failure, RequestTimedOut):
            self._end_attempt(passage, AttemptResult.CANCELLED)
            return self._deadline_exceeded(passage.ctx)
        self._blame(passage, AttemptResult.BROKEN)
        self._end_attempt(passage, AttemptResult.BROKEN)
        return EngineFailed("The engine's connection ended before it answered.")

    def _deadline_exceeded(self, ctx: RequestContext) -> DeadlineExceeded:
        seconds = ctx.ends - ctx.arrived if ctx.ends else self._request_timeout_seconds
        return DeadlineExceeded(f"The request was not done within {seconds:g} s.")

    def _attempt_refused(self, passage: Passage, refusal: EngineRefused) -> RequestError:
        """What an engine's error means to the caller: its own words for the caller's faults, ours for the engine's."""
        ctx, status, words = passage.ctx, refusal.status, refusal.message
        if ctx.trace is not None:
            ctx.trace.attempts[-1].status = status
        if status in (429, 503):
            self._end_attempt(passage, AttemptResult.BUSY)
            seconds = min(max(refusal.retry_after_seconds or 1, 1), 30)
            return Overloaded("The engines are full. Try again in a moment.", retry_after_seconds=seconds)
        if status == 501 or (status == 404 and not words):
            # vLLM says 501, or has no such route and says so without an error object, where the model's task is another one.
            self._end_attempt(passage, AttemptResult.REFUSED)
            return self._not_supported(ctx)
        if status == 404:
            ticket = passage.ticket
            self._end_attempt(passage, AttemptResult.REFUSED)
            if refusal.param not in (None, "model"):
                # The request names something else that is not there, as an answer that was never kept.
                return NotFound(words, param=refusal.param)
            # The engine's own words list all names it serves.
            if ticket is not None and ticket.endpoint.model != ctx.model:
                self._fleet.forget_adapter(ticket.endpoint.name, ctx.model)
                return Unavailable(
                    "The adapter has just left its engine. Try again shortly.", retry_after_seconds=RETRY_AFTER_SECONDS
                )
            # This gateway knows the model: what is behind the address is another engine by now.
            if ticket is not None:
                self._probe.suspect(ticket.endpoint, f"does not know {ticket.endpoint.model} any more", certain=False)
            return Unavailable(
                f"The engine does not serve {_shown(ctx.asked_model)} any more. Try again shortly.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        if status in _CALLERS_FAULT:
            self._end_attempt(passage, AttemptResult.REFUSED)
            code = "context_length_exceeded" if "maximum context length" in words else None
            return _CALLERS_FAULT[status](words or "The engine refused the request.", param=refusal.param, code=code)
        log.warning("endpoint answered %d: %s", status, words[:500], extra={"request_id": ctx.request_id})
        if words == DRAINING and passage.ticket is not None:
            self._health.draining(passage.ticket.endpoint)
        self._blame(passage, AttemptResult.ERROR)
        self._end_attempt(passage, AttemptResult.ERROR)
        return EngineFailed("The engine failed to answer.")

    def _blame(self, passage: Passage, result: AttemptResult) -> None:
        """Tell how the attempt under way ends to whoever judges endpoints."""
        ticket = passage.ticket
        if ticket is not None:
            passage.failed = self._health.ended(ticket.endpoint, result, passage.ctx.arrived, failed_before=passage.failed)

    async def _relay_answer(self, passage: Passage, answer: Answer, outgoing: Outgoing) -> None:
        """Pass the answer's bytes on as they come. There is no way back from the first one."""
        ctx = passage.ctx
        ctx.status = answer.status
        if answer.complete and not answer.is_stream:
            passage.view = view_of_whole(ctx.route.dialect, answer.first, told=answer.told)
            ctx.first_byte = ctx.last_byte = self._clock()
            self._settle(passage)
            body = with_reasoning(answer.first, ctx.reasoning_field) if ctx.reasoning_field else answer.first
            await outgoing.start(answer.status, answer.headers)
            await outgoing.send(body, last=True)
            return
        view = passage.view = view_of(ctx.route.dialect, is_stream=answer.is_stream, told=answer.told)
        passing = Passing(ctx, view, bounds_seconds=self._metrics.inter_chunk.bounds_seconds, clock=self._clock)
        complete = answer.complete
        data = passing.take(answer.first, last=complete)
        ctx.first_byte = ctx.last_byte
        await outgoing.start(answer.status, answer.headers)
        while True:
            if view.done or (complete and passing.whole):
                self._settle(passage)
            if data or (complete and passing.whole):
                await outgoing.send(data, last=complete and passing.whole)
            if complete:
                break
            try:
                if view.is_stream and outgoing.write is not None:
                    await self._divert(passage, passing, answer, outgoing.write)
                data, complete = await answer.exchange.piece()
            except WireError as failure:
                if view.done:
                    data, complete = passing.take(b"", last=True), True
                    continue
                raise AnswerCut(self._broken_off(ctx, failure), in_band=view.is_stream) from None
            data = passing.take(data, last=complete)
        if not passing.whole:
            raise AnswerCut(EngineFailed("The engine's answer ended before it was complete."), in_band=view.is_stream)

    def _broken_off(self, ctx: RequestContext, failure: WireError) -> RequestError:
        if isinstance(failure, RequestTimedOut):
            return self._deadline_exceeded(ctx)
        return (EngineTimedOut if isinstance(failure, AnswerTimedOut) else EngineFailed)("The engine's answer broke off.")

    async def _divert(self, passage: Passage, passing: Passing, answer: Answer, write: Write) -> None:
        """Let the engine's connection write to the client's without waking this task for each piece.

        Comes back when the client's buffer is full, or when the answer has ended in whatever way.
        """

        await answer.exchange.divert(passing.to(write, lambda: self._settle(passage)))

    def _count(self, passage: Passage) -> None:
        """Read off the answer what it was; only the first call does anything."""
        ctx, view = passage.ctx, passage.view
        if view is not None and not passage.counted:
            passage.counted = True
            ctx.usage, ctx.finish_reason, ctx.events = view.usage(), view.finish_reason(), view.choice_events()
            self._count_usage(ctx)

    def _count_usage(self, ctx: RequestContext) -> None:
        """Learn from what the engine said; where an answer ended too early for that, charge the best guess and say so."""
        if not ctx.route.runs_model:
            return
        if ctx.usage.prompt_tokens is not None and ctx.usage.output_tokens is not None:
            self._estimates.learn(ctx)
        elif ctx.outcome is not None and ctx.outcome is not Outcome.OK:
            ctx.usage, ctx.usage_estimated = self._estimates.estimate(ctx), True

    def _end_attempt(self, passage: Passage, result: AttemptResult) -> None:
        ticket, passage.ticket = passage.ticket, None
        if ticket is not None:
            endpoint, trace = ticket.endpoint, passage.ctx.trace
            if trace is not None:
                attempt = trace.attempts[-1]
                attempt.result, attempt.ended = result, self._clock()
            self._chooser.end(ticket)
            if passage.answer is not None:
                passage.answered = ticket
            else:
                self._chooser.drop(ticket, gone=result is AttemptResult.UNREACHABLE)
            self._metrics.attempt(endpoint.pool, endpoint.name, result)
        if passage.stay is not None:
            self._leave(passage, passage.stay)

    def _leave(self, passage: Passage, stay: Stay) -> None:
        """The machine has no more to do for the request."""
        if passage.answer is not None:
            self._costs.end(stay)
            return
        passage.stay = None
        passage.failed_dollars += self._costs.fail(stay)
        ctx = passage.ctx
        here = (ctx.pool, ctx.target)
        ctx.failed_at = here if ctx.failed_at is None or ctx.failed_at == here else SEVERAL

    def _settle(self, passage: Passage) -> None:
        """Give back what the request holds, then publish how it ended; only the first call does anything."""
        if passage.settled:
            return
        passage.settled = True
        ctx, view = passage.ctx, passage.view
        if view is not None and ctx.outcome is not None:
            ctx.next_event = view.next_number()
        elif view is not None:
            whole = view.done or not view.is_stream
            ctx.outcome = Outcome.ENGINE_ERROR if view.failed else Outcome.OK if whole else Outcome.TRUNCATED
        assert ctx.outcome is not None
        result = _RESULTS.get(ctx.outcome, AttemptResult.CANCELLED)
        if result is not AttemptResult.OK or self._health.troubled:
            self._blame(passage, result)
        self._end_attempt(passage, result)
        if passage.lease is not None:
            if passage.lease.is_counted:
                self._count(passage)
            passage.lease.close(ctx)
        self.in_flight -= 1
        passage.ended = self._clock()
        ctx.body, ctx.document, ctx.rest = b"", {}, None
        unpublished = self._unpublished
        unpublished.append(passage)
        if len(unpublished) >= PUBLISH_REQUESTS:
            self.publish()
        elif len(unpublished) == 1:
            asyncio.get_running_loop().call_later(PUBLISH_SECONDS, self.publish)

    def publish(self) -> None:
        """Tell metrics and log of all requests that have ended since the last time.

        Together, because the same work costs about half of what it costs spread among requests, and because none of them waits.
        """
        unpublished, self._unpublished = self._unpublished, []
        now = stamp_now()
        for passage in unpublished:
            try:
                self._publish(passage, now)
            except Exception:
                # Whatever an engine's answer holds, telemetry about it fails alone.
                log.exception("request could not be published", extra={"request_id": passage.ctx.request_id})

    def _publish(self, passage: Passage, now: str) -> None:
        ctx, answered = passage.ctx, passage.answered
        try:
            self._count(passage)
        except Exception:
            if answered is not None:
                self._chooser.drop(answered)
            raise
        if answered is not None and passage.view is None:
            self._chooser.drop(answered)
        elif answered is not None:
            self._chooser.learn(answered, UNKNOWN_USAGE if ctx.usage_estimated else ctx.usage, passage.ended)
            self._metrics.routed(ctx, answered)
        if passage.stay is not None or passage.failed_dollars:
            ctx.machine = self._costs.settle(passage.stay, passage.failed_dollars, ctx, answered=passage.answer is not None)
        self._metrics.settle(ctx, passage.ended, passage.objective)
        if ctx.outcome is not Outcome.OK:
            self.last_errors.add(ctx, passage.ended)
        if self._prices is not None and ctx.first_byte and ctx.tenant and ctx.route.runs_model:
            charged = self._prices.cost(ctx.model, ctx.pool, ctx.usage)
            self._metrics.charge(ctx.tenant, sum(filter(None, charged)) / NANODOLLARS)
        if self._ledger is not None and passage.identity is not None:
            self._ledger.add(ctx, passage.identity, passage.ended)
        if self._request_log is not None:
            self._request_log.settle(ctx, passage.ended, now)
        if self._tracing is not None:
            self._tracing.settle(ctx, passage.ended, b"" if passage.answer is None else passage.answer.first)


class Passage:
    """What one request holds on its way, beside its context."""

    __slots__ = (
        "answer",
        "answered",
        "counted",
        "ctx",
        "ended",
        "failed",
        "failed_dollars",
        "identity",
        "isolation",
        "lease",
        "objective",
        "settled",
        "stay",
        "ticket",
        "view",
    )

    def __init__(self, ctx: RequestContext) -> None:
        self.ctx = ctx
        self.identity: Identity | None = None
        """Whose request it is, once that is known."""
        self.lease: Lease | None = None
        self.isolation: str | None = None
        """What keeps the engine's cache of this request apart from others'."""
        self.objective = STANDARD
        self.ticket: Ticket | None = None
        """Of the attempt that is under way."""
        self.answered: Ticket | None = None
        """Of the attempt whose answer the client got, once that is over."""
        self.failed: Endpoint | None = None
        """Where the last attempt failed in a way that may be the request's own."""
        self.stay: Stay | None = None
        """At the machine of the attempt that is under way, or of the one that answered; None where that has no price."""
        self.failed_dollars = 0.0
        """What attempts cost that gave no answer."""
        self.answer: Answer | None = None
        self.view: AnswerView | WholeView | None = None
        self.counted = self.settled = False
        self.ended = 0.0
        """When it was settled, in monotonic seconds."""

    def question(self) -> Question:
        return question_of(self.ctx, self.isolation)


RETRIED = (Unavailable, Overloaded, EngineFailed)
"""What another model may do better. A time-out is not among them: it would be asked for what took too long already."""
MENDED_ELSEWHERE = (*RETRIED, EngineTimedOut)
"""What another engine of the model may do better, while the request has time left."""
DRAINING = "cannot schedule new futures after shutdown"
"""What vLLM 0.32 answers with a 500 to new requests between SIGTERM and its end, while its /health is green."""

_CALLERS_FAULT: dict[int, type[RequestError]] = {
    400: InvalidRequest,
    413: BodyTooLarge,
    415: UnsupportedMedia,
    422: InvalidRequest,
}

_CUT_BY: dict[type[RequestError], Outcome] = {
    EngineTimedOut: Outcome.ENGINE_TIMEOUT,
    DeadlineExceeded: Outcome.DEADLINE_EXCEEDED,
}

_RESULTS = {
    Outcome.OK: AttemptResult.OK,
    Outcome.TRUNCATED: AttemptResult.BROKEN,
    Outcome.ENGINE_ERROR: AttemptResult.ERROR,
    Outcome.ENGINE_TIMEOUT: AttemptResult.TIMEOUT,
    Outcome.INTERNAL_ERROR: AttemptResult.CANCELLED,
}


def _shown(name: str) -> str:
    """A client's word in one of our messages: bounded, quoted, without control characters."""
    return repr(name[:100] + "…" if len(name) > 100 else name)
