"""What the Python programs share, as `node/steps.mjs` does for Node."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

MODEL = "tiny"
KEY = "sk-test"
QUESTION = "What is the capital of France?"
TOO_LONG = "x" * 5000
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
CHOICE = {
    "title": "answer",
    "description": "An answer",
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["yes", "size"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    return f"rain in {city}"


def run(steps: Mapping[str, Callable[[str], Any]]) -> None:
    """Take lines of JSON, [the gateway's address, the name of a step], and answer each with one: what the step saw."""
    answers, sys.stdout = sys.stdout, sys.stderr  # some clients print for people
    for line in sys.stdin:
        url, step = json.loads(line)
        try:
            answer = {"seen": steps[step](url)}
        except Exception:  # noqa: BLE001 the test shows it
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def failure(call: Callable[[], object], describe: Callable[[Any], dict[str, object]]) -> dict[str, object]:
    """The error that a call ends with, as the client shows it."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 which one it is is what the test asks
        return {"kind": type(error).__name__, **describe(error)}
    raise RuntimeError("the call did not fail")
