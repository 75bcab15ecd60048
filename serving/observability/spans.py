"""A request's spans, made from its facts when it is over: one for the request, one below it for each attempt at an engine.

Names and attributes are OpenTelemetry's conventions for HTTP and generative AI. Never a prompt, an answer or a key.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from serving import __version__
from serving.core.context import RequestContext
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.trace import Attempt, Trace

Attributes = dict[str, str | bool | int | float | tuple[str, ...]]

SCOPE = InstrumentationScope("serving", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OPERATIONS = {"chat_completions": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion"}
"""What the conventions call the work of a route, where they have a word for it."""
_CALLERS = (Outcome.OK, Outcome.INVALID, Outcome.UNAUTHORIZED, Outcome.NOT_FOUND, Outcome.OVERLOADED)
"""Outcomes that are no error of a server's, by the conventions."""
_CANCELLED = (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_SLOW, Outcome.DEADLINE_EXCEEDED, Outcome.SHUTDOWN)


def spans_of(ctx: RequestContext, ended: float, resource: Resource) -> list[ReadableSpan]:
    """The spans of a request that ended at `ended` monotonic seconds, its own first."""
    trace = ctx.trace
    assert trace is not None
    spans = [_request_span(ctx, trace, ended, resource)]
    spans += [_attempt_span(ctx, trace, number, resource) for number in range(len(trace.attempts))]
    return spans


def _request_span(ctx: RequestContext, trace: Trace, ended: float, resource: Resource) -> ReadableSpan:
    failed = ctx.outcome not in _CALLERS
    return ReadableSpan(
        name=f"POST {ctx.route.path}",
        context=_context(trace, trace.span_id),
        parent=_context(trace, trace.parent_id, is_remote=True) if trace.parent_id else None,
        resource=resource,
        attributes=_request_attributes(ctx, trace),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, str(ctx.outcome)) if failed else Status(StatusCode.UNSET),
        start_time=trace.began_nanoseconds,
        end_time=_wall(ctx, trace, ended),
        instrumentation_scope=SCOPE,
    )


def _attempt_span(ctx: RequestContext, trace: Trace, number: int, resource: Resource) -> ReadableSpan:
    attempt = trace.attempts[number]
    failed = attempt.result is not AttemptResult.OK
    attributes: Attributes = {
        "gen_ai.operation.name": _operation(ctx),
        "gen_ai.request.model": ctx.model,
        "http.request.method": "POST",
        "serving.endpoint": attempt.endpoint,
        "serving.pool": attempt.pool,
        "serving.attempt.result": str(attempt.result),
    }
    if status := _attempt_status(ctx, attempt, is_last=attempt is trace.attempts[-1]):
        attributes["http.response.status_code"] = status
    if attempt.decision:
        attributes["serving.decision"] = attempt.decision.decode("ascii")
    if number:
        attributes["http.request.resend_count"] = number
    if failed:
        attributes["error.type"] = str(attempt.result)
    return ReadableSpan(
        name=f"{_operation(ctx)} {ctx.model}",
        context=_context(trace, attempt.span_id),
        parent=_context(trace, trace.span_id),
        resource=resource,
        attributes=attributes,
        kind=SpanKind.CLIENT,
        status=Status(StatusCode.ERROR, str(attempt.result)) if failed else Status(StatusCode.UNSET),
        start_time=_wall(ctx, trace, attempt.began),
        end_time=_wall(ctx, trace, attempt.ended),
        instrumentation_scope=SCOPE,
    )


def _attempt_status(ctx: RequestContext, attempt: Attempt, *, is_last: bool) -> int:
    return attempt.status or (ctx.status if is_last and ctx.first_byte else 0)


def _request_attributes(ctx: RequestContext, trace: Trace) -> Attributes:
    """Only what is known: a missing attribute is unknown, not 0."""
    usage = ctx.usage
    known: dict[str, str | int | None] = {
        "http.response.status_code": ctx.status or None,
        "gen_ai.request.model": ctx.model or None,
        "gen_ai.response.model": trace.response_model or None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "serving.tenant": ctx.tenant or None,
        "serving.pool": ctx.pool or None,
        "serving.endpoint": ctx.endpoint or None,
    }
    attributes: Attributes = {name: value for name, value in known.items() if value is not None}
    attributes |= {
        "http.request.method": "POST",
        "http.route": ctx.route.path,
        "gen_ai.operation.name": _operation(ctx),
        "gen_ai.request.stream": ctx.stream,
        "serving.request_id": ctx.request_id,
        "serving.outcome": str(ctx.outcome),
        "serving.attempts": ctx.attempts,
    }
    if ctx.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = (ctx.finish_reason,)
    if ctx.first_byte:
        attributes["gen_ai.response.time_to_first_chunk"] = (ctx.first_token or ctx.first_byte) - ctx.arrived
    if ctx.usage_estimated:
        attributes["serving.usage_estimated"] = True
    if ctx.outcome in _CANCELLED:
        attributes["serving.cancel_reason"] = str(ctx.outcome)
    if ctx.outcome is not Outcome.OK:
        attributes["error.type"] = str(ctx.outcome)
    return attributes


def _operation(ctx: RequestContext) -> str:
    return _OPERATIONS.get(ctx.route.name, ctx.route.name)


def _context(trace: Trace, span_id: str, *, is_remote: bool = False) -> SpanContext:
    """Without the caller's `tracestate`: the engine gets it as it is, and reading it would put a client's text into the log."""
    return SpanContext(int(trace.trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


def _wall(ctx: RequestContext, trace: Trace, seconds: float) -> int:
    return trace.began_nanoseconds + round((seconds - ctx.arrived) * 1e9)
