"""Finds a decision of routing in what an operator has kept: the header's value, an answer's head, or spans as OTLP JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

HEADER = b"x-serving-decision"
ATTRIBUTE = "serving.decision"
TEXTS = ("endpoint", "pool")
COST_NUMBERS = ("own_dollars", "others_dollars", "machine_dollars", "late_dollars")
NUMBERS = ("cached_tokens", "wait_seconds", "ttft_seconds", "latency_seconds", "busy_seconds", "dollars", *COST_NUMBERS)
"""What is told of each candidate."""


class NoDecision(ValueError):
    """The message says what is missing, and what would be right."""


def read_decision(text: bytes, trace: str = "") -> dict[str, Any]:
    """The decision in a text; of several that of the trace, else the last. Raises: NoDecision."""
    documents = _documents(_header_of(text))
    found = [decision for document in documents for decision in _spans(document, trace)]
    if found:
        return _checked(found[-1])
    if trace:
        raise NoDecision(f"holds no decision of a trace {trace!r}")
    if len(documents) != 1:
        raise NoDecision("is not a decision; it must be what the header x-serving-decision said, or spans as OTLP JSON")
    return _checked(documents[0])


def _header_of(text: bytes) -> bytes:
    """The header's value, where the text is an answer's head; else all of it."""
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == HEADER:
            return value
    return text


def _documents(text: bytes) -> list[Any]:
    """One document, or one a line, as collectors write them."""
    try:
        return [orjson.loads(text)]
    except orjson.JSONDecodeError as error:
        first = error
    try:
        return [orjson.loads(line) for line in text.splitlines() if line.strip()]
    except orjson.JSONDecodeError:
        raise NoDecision(f"is not a decision: {first}") from None


def _spans(document: Any, trace: str) -> Iterator[Any]:
    """The decisions of all spans of a trace in an export, of all where none is named."""
    if not isinstance(document, dict):
        return
    for resource in _list(document, "resourceSpans"):
        for scope in _list(resource, "scopeSpans"):
            for span in _list(scope, "spans"):
                if trace and str(span.get("traceId", "")).lower() != trace.lower():
                    continue
                for attribute in _list(span, "attributes"):
                    value = attribute.get("value")
                    if attribute.get("key") == ATTRIBUTE and isinstance(value, dict):
                        yield from _documents(str(value.get("stringValue", "")).encode())


def _list(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = document.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _checked(decision: Any) -> dict[str, Any]:
    if not isinstance(decision, dict) or not {"chosen", "reason"} <= decision.keys():
        raise NoDecision("is not a decision; it must be the JSON object of the header x-serving-decision")
    _check_texts(decision, ("chosen", "reason"), "")
    candidates = decision.get("candidates", [])
    if not isinstance(candidates, list):
        raise NoDecision("candidates: must be a list of objects")
    for number, row in enumerate(candidates):
        place = f"candidates.{number}"
        if not isinstance(row, dict):
            raise NoDecision(f"{place}: must be an object with the endpoint, its pool and figures")
        _check_texts(row, TEXTS, f"{place}.")
        for name in NUMBERS:
            if name in row and (isinstance(row[name], bool) or not isinstance(row[name], int | float)):
                raise NoDecision(f"{place}.{name}: must be a number")
    if not isinstance(decision.get("record", {}), dict):
        raise NoDecision("record: must be an object, as `x-serving-explain: KEY; record` brings it")
    return decision


def _check_texts(fields: dict[str, Any], names: Iterable[str], place: str) -> None:
    for name in names:
        if not isinstance(fields.get(name, ""), str):
            raise NoDecision(f"{place}{name}: must be a text")
