"""Traces: ids while a request runs, spans when it is over, and a thread that sends them. None of it can hold up a request."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource

from serving import __version__
from serving.core.clock import wall_nanoseconds
from serving.core.context import RequestContext
from serving.core.trace import Attempt, Trace
from serving.observability.metrics import Metrics
from serving.observability.otlp import SendFailed, Sink
from serving.observability.spans import spans_of

log = logging.getLogger("serving.tracing")

_GROUP_REQUESTS = 16
_PAUSE_SECONDS = 0.0005
"""Spans are made in groups of about 2 ms, with a pause in between in which the event loop gets the interpreter."""
_BATCH_REQUESTS = 512
_CLOSE_SECONDS = 2.0
_MODEL = b'"model":"'
_ID = b'"id":"'
_WITHIN_BYTES = 2048
_VALUE_BYTES = 256
_PARAMETERS = {
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}
"""Members of bodies that are numbers, and what the conventions call them; of several names the first that is there."""
_MOST = 2**53
"""What a body may say beyond that is no attribute."""


class Tracing:
    """Decides which requests are traced, and hands the ended ones to its thread."""

    def __init__(
        self,
        sink: Sink,
        metrics: Metrics,
        *,
        service_name: str,
        sample_ratio: float,
        queue_requests: int,
        interval_seconds: float,
    ) -> None:
        self.sink = sink
        self._traces = metrics.traces
        self._queue_requests = queue_requests
        self._interval_seconds = interval_seconds
        self._resource = Resource({"service.name": service_name, "service.version": __version__})
        self._random = random.Random()
        self._sampled_below = round(sample_ratio * 2**64)
        self._ended: deque[tuple[RequestContext, float]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="trace-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send what waits, for at most two seconds, and stop. Blocks."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    # On the event loop

    def begin(self, ctx: RequestContext) -> None:
        """Continue the caller's trace, with its decision, or begin one."""
        given = ctx.traceparent
        if given is None:
            number = self._random.getrandbits(128) or 1
            trace_id, parent_id, sampled = f"{number:032x}", "", number & (2**64 - 1) < self._sampled_below
        else:
            trace_id, parent_id, sampled = given[3:35], given[36:52], bool(int(given[53:55], 16) & 1)
        ctx.trace = Trace(trace_id, parent_id, self._span_id(), sampled, wall_nanoseconds())

    def begin_attempt(self, ctx: RequestContext, now: float) -> None:
        """The attempt's span is what the engine gets as its parent."""
        assert ctx.trace is not None
        if ctx.trace.sampled and not ctx.trace.attempts:
            ctx.trace.parameters = _parameters_of(ctx.document)
        ctx.traceparent = ctx.trace.begin_attempt(Attempt(self._span_id(), ctx.endpoint, ctx.pool, now, decision=ctx.decision))

    def settle(self, ctx: RequestContext, ended: float, first: bytes) -> None:
        """Queue a request that has ended; `first` is the beginning of its answer, where the engine names its model."""
        trace = ctx.trace
        if trace is None or not trace.sampled:
            return
        if len(self._ended) >= self._queue_requests:
            self._traces.add(("dropped",))
            return
        trace.response_model, trace.response_id = _text_of(_MODEL, first), _text_of(_ID, first)
        self._ended.append((ctx, ended))
        if not self._wake.is_set():
            self._wake.set()

    def _span_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"

    # On the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            # The first request wakes the thread, those that follow it share its message.
            self._closing.wait(self._interval_seconds)
            self._wake.clear()
            while self._ended:
                self._deliver(*self._batch())
        self.sink.close()

    def _batch(self) -> tuple[bytes, int]:
        body, requests = b"", 0
        while self._ended and requests < _BATCH_REQUESTS:
            group = [self._ended.popleft() for _ in range(min(len(self._ended), _GROUP_REQUESTS))]
            try:
                body += self.sink.encode([span for ctx, ended in group for span in spans_of(ctx, ended, self._resource)])
                requests += len(group)
            except Exception:
                log.exception("the spans of %d requests could not be made", len(group))
                self._traces.add(("refused",), len(group))
            time.sleep(_PAUSE_SECONDS)
        return body, requests

    def _deliver(self, body: bytes, requests: int) -> None:
        """Send until it is taken, or refused for good; meanwhile the queue fills and then drops."""
        while requests:
            try:
                self.sink.send(body)
            except SendFailed as failure:
                if not self._failing:
                    log.warning("traces cannot be sent: %s", failure)
                self._failing = True
                if failure.retriable and not self._closing.wait(self._interval_seconds):
                    continue
                self._traces.add(("refused",), requests)
                return
            if self._failing:
                log.info("traces are sent again")
            self._failing = False
            self._traces.add(("sent",), requests)
            return


def _parameters_of(document: Mapping[str, Any]) -> dict[str, int | float]:
    """What a body wants of the answer, as far as it is numbers."""
    found: dict[str, int | float] = {}
    for member, name in _PARAMETERS.items():
        value: Any = document.get(member)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) <= _MOST and (member, value) != ("n", 1):
            found.setdefault(name, value)
    return found


def _text_of(key: bytes, first: bytes) -> str:
    """What an answer's beginning says behind a key; quotes inside of JSON strings are escaped, so only a key can match."""
    start = first.find(key, 0, _WITHIN_BYTES)
    if start < 0:
        return ""
    start += len(key)
    end = first.find(b'"', start, start + _VALUE_BYTES)
    return first[start:end].decode("utf-8", "replace") if end > 0 else ""
