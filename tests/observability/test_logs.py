"""Logs are JSON lines that delay no request, fail none, and hold neither a prompt nor a key."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from serving.core.context import RequestContext, Usage
from serving.core.money import MachineDollars
from serving.core.outcomes import Outcome
from serving.core.routes import CHAT_COMPLETIONS
from serving.core.trace import Trace
from serving.observability.logs import JsonLines, LineWriter, RequestLog, request_line, set_up_logging


class Lines:
    """Keeps lines instead of writing them."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    @property
    def only(self) -> dict[str, Any]:
        (line,) = self.lines
        assert b"\n" not in line
        return dict(json.loads(line))


class Drops:
    """Counts, and says when a number is reached."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            assert descriptor == reading, "only a test closes the reading end"


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines: Lines) -> Iterator[logging.Logger]:
    """A logger whose records become lines and go nowhere else."""
    found = logging.getLogger("tests.observability")
    handler = JsonLines(lines)  # type: ignore[arg-type]
    found.addHandler(handler)
    found.propagate = False
    found.setLevel("DEBUG")
    yield found
    found.removeHandler(handler)
    found.propagate = True


def read_lines(descriptor: int, count: int) -> list[bytes]:
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        return [stream.readline().removesuffix(b"\n") for _ in range(count)]


# Writing


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    for number in range(1000):
        writer.write(b"line %d" % number)
    assert read_lines(reading, 1000) == [b"line %d" % number for number in range(1000)]
    writer.close()


def test_closing_writes_what_waits(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    for number in range(100):
        writer.write(b"%d" % number)
    writer.close()
    os.set_blocking(reading, False)
    assert os.read(reading, 65536).split() == [b"%d" % number for number in range(100)]


def test_a_reader_that_stalls_blocks_nobody_and_what_is_dropped_is_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    drops = Drops()
    writer = LineWriter(writing, drops)
    total, line = 60_000, b"x" * 100
    for _ in range(total):
        writer.write(line)
    assert drops.count > 0
    writer.close(timeout_seconds=0.01)
    assert len(read_lines(reading, total - drops.count)) == total - drops.count
    writer.close()


def test_a_reader_that_is_gone_stops_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    drops = Drops()
    writer = LineWriter(writing, drops)
    os.close(reading)
    for _ in range(10):
        writer.write(b"lost")
    writer.close()
    assert drops.count == 10


def test_a_closed_writer_leaves_no_thread(pipe: tuple[int, int]) -> None:
    before = set(threading.enumerate())
    writer = LineWriter(pipe[1])
    assert set(threading.enumerate()) > before
    writer.close()
    assert set(threading.enumerate()) == before


# Records


def test_a_record_is_one_json_object(lines: Lines, logger: logging.Logger) -> None:
    logger.info("endpoint %s is %s", "e1", "ready\nor so", extra={"endpoint": "e1", "count": 3})
    line = lines.only
    assert line["time"].endswith("Z")
    assert {key: line[key] for key in ("level", "logger", "message", "endpoint", "count")} == {
        "level": "info",
        "logger": "tests.observability",
        "message": "endpoint e1 is ready\nor so",
        "endpoint": "e1",
        "count": 3,
    }


def test_a_record_has_its_exception_in_the_same_line(lines: Lines, logger: logging.Logger) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("request failed", extra={"request_id": "r1"})
    line = lines.only
    assert (line["level"], line["message"], line["request_id"]) == ("error", "request failed", "r1")
    assert "ValueError: broken" in line["exception"]
    assert "Traceback" in line["exception"]


def test_what_is_not_json_is_shown_as_text(lines: Lines, logger: logging.Logger) -> None:
    logger.info("x", extra={"path": Outcome, "raw": b"bytes", "number": float("nan")})
    assert isinstance(lines.only["path"], str)


@pytest.mark.parametrize(
    "value", [{1: 2}, 2**70, "\ud800", {"a": {2: "\ud800"}}], ids=["key", "large number", "surrogate", "nested"]
)
def test_no_value_makes_logging_fail(lines: Lines, logger: logging.Logger, value: Any) -> None:
    logger.info("x", extra={"value": value})
    assert lines.only["message"] == "x"


def test_no_message_makes_logging_fail(lines: Lines) -> None:
    record = logging.makeLogRecord({"name": "x", "msg": "\ud800", "levelno": logging.INFO, "levelname": "INFO"})
    JsonLines(lines).handle(record)  # type: ignore[arg-type]
    assert lines.only["level"] == "info"


def test_a_message_that_does_not_fit_its_arguments_makes_no_request_fail(
    lines: Lines, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("%d of %d", "one")


# Requests


def ended(**fields: Any) -> RequestContext:
    ctx = RequestContext("r1", CHAT_COMPLETIONS, "sk-secret", 1.0)
    ctx.body = b'{"messages": [{"content": "my prompt"}]}'
    ctx.document = {"messages": [{"content": "my prompt"}]}
    ctx.tenant, ctx.model, ctx.asked_model, ctx.endpoint = "red", "tiny", "small", "e1"
    ctx.pool, ctx.target = "default", "cpu"
    ctx.outcome, ctx.status, ctx.first_byte = Outcome.OK, 200, 1.25
    ctx.usage = Usage(100, 60, 4)
    for name, value in fields.items():
        setattr(ctx, name, value)
    return ctx


def test_a_requests_line_says_how_it_went() -> None:
    line = request_line(ended(), 3.5, "2026-11-30T00:00:00.000Z")
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "serving.request",
        "request_id": "r1",
        "route": "chat_completions",
        "tenant": "red",
        "model": "tiny",
        "asked_model": "small",
        "pool": "default",
        "target": "cpu",
        "endpoint": "e1",
        "attempts": 0,
        "stream": False,
        "status": 200,
        "outcome": "ok",
        "error_code": "",
        "finish_reason": "",
        "ttft_seconds": 0.25,
        "duration_seconds": 2.5,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 4,
        "usage_estimated": False,
        "machine_dollars": None,
    }


def test_a_requests_line_holds_neither_prompt_nor_key(lines: Lines) -> None:
    RequestLog(lines).settle(ended(), 3.5, "2026-11-30T00:00:00.000Z")  # type: ignore[arg-type]
    assert b"my prompt" not in lines.lines[0]
    assert b"sk-secret" not in lines.lines[0]


def test_a_traced_requests_line_names_its_trace() -> None:
    """So that whoever reads one finds the other."""
    line = request_line(ended(trace=Trace("ab" * 16, "", "cd" * 8, True, 0)), 3.5, "")
    assert line["trace_id"] == "ab" * 16
    assert "trace_id" not in request_line(ended(), 3.5, "")


def test_what_a_request_cost_on_its_machine_is_summed_and_unknown_is_not_zero() -> None:
    assert request_line(ended(machine=MachineDollars(0.001, 0.0002, 0.03, 0.0)), 3.5, "")["machine_dollars"] == pytest.approx(
        0.0312
    )
    assert request_line(ended(machine=MachineDollars(failed=0.5)), 3.5, "")["machine_dollars"] == 0.5
    assert request_line(ended(), 3.5, "")["machine_dollars"] is None


def test_an_errors_line_says_which() -> None:
    line = request_line(ended(outcome=Outcome.OVERLOADED, status=429, error_code="queue_full", first_byte=0.0), 3.5, "")
    assert (line["outcome"], line["error_code"]) == ("overloaded", "queue_full")


def test_what_did_not_happen_is_null(lines: Lines) -> None:
    RequestLog(lines).settle(ended(first_byte=0.0, usage=Usage()), 3.5, "2026-11-30T00:00:00.000Z")  # type: ignore[arg-type]
    line = lines.only
    assert [line[name] for name in ("ttft_seconds", "prompt_tokens", "cached_tokens", "output_tokens")] == [None] * 4


def test_no_count_of_an_engine_makes_the_log_fail(lines: Lines) -> None:
    RequestLog(lines).settle(ended(usage=Usage(2**70, 0, 1)), 3.5, "2026-11-30T00:00:00.000Z")  # type: ignore[arg-type]
    assert len(lines.lines) == 1


# The process's loggers


@pytest.fixture
def restored() -> Iterator[None]:
    """The loggers as they were, whatever a test sets up."""
    touched = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(one.handlers[:], one.level, one.propagate, one.filters[:]) for one in touched]
    yield
    for one, (handlers, level, propagate, filters) in zip(touched, before, strict=True):
        one.handlers[:], one.propagate, one.filters[:] = handlers, propagate, filters
        one.setLevel(level)


@pytest.mark.usefixtures("restored")
def test_all_loggers_go_through_the_writer(lines: Lines) -> None:
    set_up_logging("warning", lines)  # type: ignore[arg-type]
    logging.getLogger("any.library").warning("one")
    logging.getLogger("uvicorn.error").warning("two")
    logging.getLogger("any.library").info("too low")
    assert [json.loads(line)["message"] for line in lines.lines] == ["one", "two"]


@pytest.mark.usefixtures("restored")
def test_an_answer_cut_on_purpose_is_not_logged_as_a_fault(lines: Lines) -> None:
    set_up_logging("info", lines)  # type: ignore[arg-type]
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    assert lines.lines == []
