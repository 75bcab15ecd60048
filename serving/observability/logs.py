"""JSON lines on standard output, written by a thread so that a slow reader delays no request.

Never a prompt, an answer or a key: only what is listed in `request_line` and the messages of our own loggers.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from serving.core.clock import wall_seconds
from serving.core.context import RequestContext
from serving.core.money import UNPRICED

_QUEUE_LINES = 20_000
_GATHER_SECONDS = 0.05
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LineWriter:
    """Takes lines from any thread and writes them to a file descriptor from one of its own; drops when 20,000 lines wait."""

    def __init__(self, descriptor: int, on_drop: Callable[[], None] = lambda: None) -> None:
        self._descriptor = descriptor
        self.on_drop = on_drop
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue a line; it has no newline yet."""
        if len(self._lines) >= _QUEUE_LINES:
            self.on_drop()
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Write what is queued, for at most this long, and stop."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            # The first line wakes the thread, those that follow it share its write: a thread that woke for each line would
            # fight the event loop for the interpreter.
            self._closing.wait(_GATHER_SECONDS)
            self._wake.clear()
            while self._lines:
                batch = [self._lines.popleft() for _ in range(min(len(self._lines), 500))]
                try:
                    _write_all(self._descriptor, b"\n".join(batch) + b"\n")
                except OSError:
                    # Whoever read the log is gone; requests go on.
                    for _ in batch:
                        self.on_drop()
            if self._closing.is_set():
                return


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class JsonLines(logging.Handler):
    """Renders records of the standard library's loggers; fields given as `extra` stand beside the message."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                line[key] = value
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        self._writer.write(_rendered(line))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # A format that does not fit its arguments still says more than nothing.
        return f"{record.msg} {record.args!r}"


def _rendered(line: dict[str, Any]) -> bytes:
    try:
        # Nearly all lines; the options cost half as much again.
        return orjson.dumps(line)
    except TypeError:
        pass
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        # Lone surrogates and numbers beyond 64 bits: the slower library escapes them.
        pass
    try:
        return json.dumps(line, default=str, skipkeys=True).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return json.dumps({str(key): repr(value)[:1000] for key, value in line.items()}).encode("ascii")


class RequestLog:
    """One line for each request that has ended."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def settle(self, ctx: RequestContext, ended: float, written: str) -> None:
        self._writer.write(_rendered(request_line(ctx, ended, written)))


def request_line(ctx: RequestContext, ended: float, written: str) -> dict[str, Any]:
    """The fields of an ended request; `ended` in monotonic seconds, `written` as `stamp_now` gives it."""
    usage = ctx.usage
    line = {
        "time": written,
        "level": "info",
        "logger": "serving.request",
        "request_id": ctx.request_id,
        "route": ctx.route.name,
        "tenant": ctx.tenant,
        "model": ctx.model,
        "asked_model": ctx.asked_model,
        "pool": ctx.pool,
        "target": ctx.target,
        "endpoint": ctx.endpoint,
        "attempts": ctx.attempts,
        "stream": ctx.stream,
        "status": ctx.status,
        "outcome": ctx.outcome,
        "error_code": ctx.error_code,
        "finish_reason": ctx.finish_reason,
        "ttft_seconds": round((ctx.first_token or ctx.first_byte) - ctx.arrived, 6) if ctx.first_byte else None,
        "duration_seconds": round(ended - ctx.arrived, 6),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "usage_estimated": ctx.usage_estimated,
        "machine_dollars": None if ctx.machine is UNPRICED else ctx.machine.total,
    }
    if usage.audio_seconds is not None:
        line["audio_seconds"] = usage.audio_seconds
    if ctx.trace is not None:
        line["trace_id"] = ctx.trace.trace_id
    return line


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _stamp(seconds: float) -> str:
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


def stamp_now() -> str:
    """The wall clock's time to the millisecond, for any number of lines that are written at once."""
    return _stamp(wall_seconds())


def set_up_logging(level: str, writer: LineWriter) -> None:
    """Send all loggers of the process through `writer`."""
    root = logging.getLogger()
    root.handlers[:] = [JsonLines(writer)]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.error").addFilter(_expected_end)
    # It warns of what is wrong with a client's form, which the client is told.
    logging.getLogger("python_multipart").setLevel("ERROR")


def _expected_end(record: logging.LogRecord) -> bool:
    """An answer that is cut on purpose, since its engine broke off, is in the request log already."""
    return "without completing response" not in record.getMessage()
