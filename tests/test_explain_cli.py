"""`serving explain` on what an operator has kept of a decision, and on what would have been decided otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import Result
from typer.testing import CliRunner

from serving.cli import app
from serving.decision_file import NoDecision
from serving.explain_cli import _asked_again
from serving.routing.choose import Chooser
from serving.routing.cost import Machine
from serving.routing.decision import Decision
from serving.routing.others import Others
from serving.routing.work import Choice
from tests.routing.asking import Clock, endpoint, question, text

DECISION = {
    "chosen": "e1",
    "reason": "cost",
    "candidates": [{"endpoint": "e1", "pool": "default", "cached_tokens": 4711, "wait_seconds": 0.25, "dollars": 0.001}],
}


def test_a_recorded_decision_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "decision"
    file.write_bytes(b"x-serving-decision: " + orjson.dumps(DECISION))
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 0
    assert "e1 was chosen: cost" in shown.output
    assert "4711" in shown.output


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_what_is_no_decision_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "decision"
    file.write_text(text)
    shown = CliRunner().invoke(app, ["explain", str(file)])
    assert shown.exit_code == 2
    assert "decision" in shown.output


FIXED, SPOT = endpoint("fixed-1", "fixed"), endpoint("spot-1", "spot")


def decided(model: str = "m") -> Decision:
    """A choice between a busy endpoint that is paid anyway and an idle one that is not."""
    clock = Clock()
    chooser = Chooser(clock=clock, seed=1, machine=lambda e: Machine(0.01 if e.pool == "spot" else 0.0))
    for number in range(3):
        busy = question(text(60_000, number))
        other = chooser.choose("m", (FIXED, FIXED), (), lambda busy=busy: busy, size_bytes=60_000)  # type: ignore[misc]
        assert other is not None
        chooser.begin(other)
    chooser._works[FIXED.name].others = Others(3.0, 1.0, 1000.0)
    for number in range(2):
        asked = question(text(60_000, number))
        asked.model = model
        ticket = chooser.choose(model, (FIXED, SPOT), (), lambda asked=asked: asked, size_bytes=60_000, explained=True)  # type: ignore[misc]
        assert isinstance(ticket, Choice)
        chooser.begin(ticket)
        clock.now += 0.1
    assert ticket.decision is not None
    return ticket.decision


def as_kept(decision: Decision) -> dict[str, Any]:
    kept: dict[str, Any] = orjson.loads(orjson.dumps(decision.as_data() | {"record": decision.record}))
    return kept


def explained(path: Path, kept: Any, *options: str) -> Result:
    path.write_bytes(orjson.dumps(kept))
    return CliRunner().invoke(app, ["explain", str(path), *options])


def words_of(shown: Result) -> str:
    """Without the frame around an error."""
    return " ".join(shown.output.replace("│", " ").split())


@pytest.mark.parametrize("model", ["m", "adapter"])
def test_the_same_costs_follow_from_a_record(tmp_path: Path, model: str) -> None:
    kept = as_kept(decided(model))
    shown = explained(tmp_path / "d", kept, "--json")
    assert shown.exit_code == 0, shown.output
    again = orjson.loads(shown.output)
    for row, before in zip(again["candidates"], kept["candidates"], strict=True):
        assert row["endpoint"] == before["endpoint"]
        for name in ("dollars", "ttft_seconds", "wait_seconds", "latency_seconds", "busy_seconds"):
            assert row[name] == pytest.approx(before[name], rel=2e-3, abs=2e-4), name
        parts = sum(row[f"{name}_dollars"] for name in ("own", "others", "machine", "late"))
        assert parts == pytest.approx(row["dollars"], rel=0.01, abs=1e-6)
    spot = next(row for row in again["candidates"] if row["pool"] == "spot")
    assert spot["machine_dollars"] > 0
    assert "would_be_chosen" not in again


def test_what_would_have_been_otherwise(tmp_path: Path) -> None:
    kept = as_kept(decided())
    for options, expected in (
        (("--without", SPOT.name), FIXED.name),
        (("--price", "spot=0", "--price", "fixed=100000"), SPOT.name),
        (("--price", "spot=100000", "--class", "batch"), FIXED.name),
    ):
        shown = explained(tmp_path / "d", kept, "--json", *options)
        assert shown.exit_code == 0, shown.output
        assert orjson.loads(shown.output)["would_be_chosen"] == expected
    assert "would cost least" in explained(tmp_path / "d", kept, "--without", SPOT.name).output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--without", "e9"), "'e9' is none of fixed-1, spot-1"),
        (("--without", "fixed-1", "--without", "spot-1"), "no candidate would be left"),
        (("--price", "spot"), "must be POOL=DOLLARS"),
        (("--price", "cpu=1"), "'cpu' is none of fixed, spot"),
    ],
)
def test_what_is_asked_wrongly_is_named(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    shown = explained(tmp_path / "d", as_kept(decided()), *options)
    assert shown.exit_code == 2
    assert words in words_of(shown)


def test_without_a_record_nothing_is_made_up(tmp_path: Path) -> None:
    shown = explained(tmp_path / "d", DECISION, "--without", "e1")
    assert shown.exit_code == 2 and "no record" in words_of(shown)
    kept = as_kept(decided())
    kept["record"]["version"] = 9
    assert "version" in words_of(explained(tmp_path / "d", kept))
    del kept["record"]["fleet"][0]["step_seconds"]
    kept["record"]["version"] = 1
    shown = explained(tmp_path / "d", kept)
    assert shown.exit_code == 2 and "step_seconds" in words_of(shown)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"candidates": 0}, "candidates: must be a list"),
        ({"candidates": "e1"}, "candidates: must be a list"),
        ({"candidates": None}, "candidates: must be a list"),
        ({"candidates": {"e1": {}}}, "candidates: must be a list"),
        ({"candidates": [1]}, "candidates.0: must be an object"),
        ({"candidates": [{}, None]}, "candidates.1: must be an object"),
        ({"candidates": [{"endpoint": 1}]}, "candidates.0.endpoint: must be a text"),
        ({"candidates": [{"dollars": "1"}]}, "candidates.0.dollars: must be a number"),
        ({"chosen": ["e1"]}, "chosen: must be a text"),
        ({"reason": None}, "reason: must be a text"),
        ({"record": None}, "record: must be an object"),
        ({"record": [1]}, "record: must be an object"),
    ],
)
def test_a_broken_decision_is_refused_by_its_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    shown = explained(tmp_path / "d", DECISION | change)
    assert shown.exit_code == 2, shown.exception
    assert field in words_of(shown)


def every_place(data: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of each value inside, with that of what it is in."""
    for name, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*place, name)
        yield from every_place(value, (*place, name))


@pytest.mark.parametrize("value", [None, "x", [], [1], {}, True, -1, 1e300, -1e300])
@pytest.mark.parametrize("model", ["m", "adapter"])
def test_whatever_stands_in_a_record_is_shown_or_refused_in_words(tmp_path: Path, model: str, value: Any) -> None:
    whole = as_kept(decided(model))
    for place in every_place(whole["record"]):
        kept = orjson.loads(orjson.dumps(whole))
        inside = kept["record"]
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = value
        with pytest.raises(NoDecision) if value is None else contextlib.suppress(NoDecision):
            _asked_again(kept, None, [], {})


def test_a_field_that_is_missing_in_a_record_or_too_much_is_named(tmp_path: Path) -> None:
    for name, place in (("prompt", "terms.prompt: is missing"), ("x", "weights.x: is none of queue")):
        kept = as_kept(decided())
        kept["record"]["terms"].pop(name, None)
        kept["record"]["weights"] |= {"x": 1} if name == "x" else {}
        shown = explained(tmp_path / "d", kept)
        assert shown.exit_code == 2 and place in words_of(shown)


def test_names_neither_colour_a_terminal_nor_command_it(tmp_path: Path) -> None:
    hostile = "[red]:boom:\x1b[2J\x9b1m\r"
    row = DECISION["candidates"][0] | {"endpoint": hostile, "pool": hostile}  # type: ignore[index]
    shown = explained(tmp_path / "d", DECISION | {"chosen": hostile, "reason": hostile, "candidates": [row]})
    assert shown.exit_code == 0, shown.output
    assert words_of(shown).count("[red]:boom:\\x1b[2J\\x9b1m\\r") == 4
    assert all(each.isprintable() for each in shown.output.replace("\n", ""))
    kept = as_kept(decided())
    kept["record"]["fleet"][0]["endpoint"] = hostile
    refused = explained(tmp_path / "d", kept, "--without", "e9")
    assert "\x9b" not in refused.output and "\x1b[2J" not in refused.output


def test_a_decision_is_found_in_a_head_and_in_spans_and_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    head = tmp_path / "head"
    head.write_bytes(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nX-Serving-Decision: " + orjson.dumps(DECISION) + b"\r\n\r\n"
    )
    shown = CliRunner().invoke(app, ["explain", str(head), "--record", str(kept)])
    assert shown.exit_code == 0, shown.output
    assert orjson.loads(kept.read_bytes()) == DECISION

    def export(trace: str, chosen: str) -> bytes:
        value = {"stringValue": orjson.dumps(DECISION | {"chosen": chosen}).decode()}
        span = {"traceId": trace, "attributes": [{"key": "other"}, {"key": "serving.decision", "value": value}]}
        return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": trace}, span]}]}]})

    spans = tmp_path / "spans"
    spans.write_bytes(export("aa", "e1") + b"\n" + export("bb", "e2") + b"\n")
    assert "e2 was chosen" in CliRunner().invoke(app, ["explain", str(spans)]).output
    assert "e1 was chosen" in CliRunner().invoke(app, ["explain", str(spans), "--trace", "AA"]).output
    assert CliRunner().invoke(app, ["explain", str(spans), "--trace", "cc"]).exit_code == 2
