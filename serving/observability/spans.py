"""A request's spans, made from its facts when it is over: one for the request, and below it, in the order of the pipeline, those
for its admission, for each choice of an engine and the attempt that followed it, and for the answer on its way to the client.

Names and attributes are OpenTelemetry's conventions for HTTP and generative AI. Never a prompt, an answer or a key.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from serving import __version__
from serving.core.context import RequestContext
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.trace import Attempt, Trace

AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, AttributeValue]

SCOPE = InstrumentationScope("serving", __version__)
PROVIDER = "vllm"
_PREDICTED = ("ttft_seconds", "wait_seconds", "latency_seconds", "busy_seconds", "cached_tokens", "dollars")
_random = random.Random()
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
    if trace.admit_began:
        spans.append(_stage_span("admit", ctx, trace, trace.admit_began, trace.admit_ended, ended, resource))
    for number, attempt in enumerate(trace.attempts):
        if attempt.asked:
            about = _decision_attributes(attempt)
            spans.append(_stage_span("route", ctx, trace, attempt.asked, attempt.began, ended, resource, about))
        spans.append(_attempt_span(ctx, trace, number, resource))
    if trace.route_began and not trace.attempts:
        spans.append(_stage_span("route", ctx, trace, trace.route_began, 0.0, ended, resource))
    if ctx.first_byte:
        about = {"serving.stream.events": ctx.events} if ctx.stream else {}
        spans.append(_stage_span("relay", ctx, trace, ctx.first_byte, ended, ended, resource, about))
    return spans


def _stage_span(
    stage: str,
    ctx: RequestContext,
    trace: Trace,
    began: float,
    left: float,
    ended: float,
    resource: Resource,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> ReadableSpan:
    """A stage of the pipeline that the request left at `left`; 0.0: never, so that it ended there."""
    failed = not left
    return ReadableSpan(
        name=stage,
        context=_context(trace, f"{_random.getrandbits(64) or 1:016x}"),
        parent=_context(trace, trace.span_id),
        resource=resource,
        attributes={**(attributes or {}), **({"error.type": str(ctx.outcome)} if failed else {})},
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, str(ctx.outcome)) if failed and ctx.outcome not in _CALLERS else Status(StatusCode.UNSET),
        start_time=_wall(ctx, trace, began),
        end_time=_wall(ctx, trace, left or ended),
        instrumentation_scope=SCOPE,
    )


def _decision_attributes(attempt: Attempt) -> Attributes:
    """What was chosen and why, and what was predicted for it; the decision as a whole beside that."""
    about: Attributes = {"serving.endpoint": attempt.endpoint, "serving.pool": attempt.pool}
    if not attempt.decision:
        return about
    decision = orjson.loads(attempt.decision)
    about |= {"serving.decision": attempt.decision.decode(), "serving.decision.reason": decision["reason"]}
    rows = decision.get("candidates", ())
    about["serving.decision.candidates"] = len(rows) or 1
    if rows:
        about["serving.predicted.prompt_tokens"] = decision["prompt_tokens"]
        about["serving.predicted.output_tokens"] = decision["output_tokens"]
    for row in rows:
        if row["endpoint"] == attempt.endpoint:
            about |= {f"serving.predicted.{figure}": row[figure] for figure in _PREDICTED}
    return about


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
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": ctx.model,
        "http.request.method": "POST",
        "serving.endpoint": attempt.endpoint,
        "serving.pool": attempt.pool,
        "serving.attempt.result": str(attempt.result),
    }
    if status := _attempt_status(ctx, attempt, is_last=attempt is trace.attempts[-1]):
        attributes["http.response.status_code"] = status
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
        "gen_ai.response.id": trace.response_id or None,
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
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.stream": ctx.stream,
        "serving.request_id": ctx.request_id,
        "serving.outcome": str(ctx.outcome),
        "serving.attempts": ctx.attempts,
    }
    if ctx.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = (ctx.finish_reason,)
    for kind, dollars in ctx.machine._asdict().items():
        if dollars is not None:
            attributes[f"serving.machine_dollars.{kind}"] = dollars
    attributes |= trace.parameters
    if ctx.stream and ctx.first_byte:
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
