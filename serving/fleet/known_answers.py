"""Prompts whose answers are known, and how far an engine's answer is from the known one.

Greedy answers of two honest runs differ where two tokens are nearly as likely, as with another batch. So the reference's own
tokens are compared by their log-probability, up to where the answers part: nearly as likely is near, whichever came first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.core.context import UNKNOWN_USAGE, Usage
from serving.core.errors import ConfigurationError
from serving.core.routes import COMPLETIONS
from serving.fleet.token_request import TokenRequest

PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return",
    "Monday, Tuesday, Wednesday, Thursday,",
)
"""With continuations that any model is sure of, in digits, prose and code."""
PROMPTS_DIGEST = hashlib.sha256("\0".join(PROMPTS).encode()).hexdigest()
ANSWER_TOKENS = 8
LIKELIEST = 5
QUALITY_HEADER = (b"x-serving-probe", b"quality")
ABSENT_NATS = 10.0
"""What an answer that is not there counts."""
STRANGE_SHARE = 0.5
"""Of the prompts: where the known token is not among the likeliest of more of them, the answers are wrong, however flat."""


class Position(BaseModel):
    """One generated token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str
    logprob: float
    likeliest: dict[str, float]
    """By token, itself included."""


Answer = tuple[tuple[Position, ...], ...]
"""One for each prompt."""


class Reference(BaseModel):
    """The known answers of a model on a target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["serving probes 1"] = "serving probes 1"
    model: str
    target: str
    engine: str
    """The engine's version where it told one."""
    prompts: str
    """SHA-256 of the prompts that were asked."""
    answer: Answer
    repeats: Annotated[int, Field(ge=2)]
    floor_nats: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How far the farthest of the repeats, in batches of other sizes, was from the first."""
    band_nats: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    made: str


class NoAnswer(Exception):
    """An engine's answer holds no tokens with log-probabilities; the message says what is there in place."""


@dataclass(frozen=True, slots=True)
class Apart:
    """How far an answer is from the known one."""

    nats: float
    """Mean difference of the log-probabilities of known tokens; infinite for numbers that are none."""
    strange: float
    """Share of the prompts at which the known token was not even among the likeliest."""
    tokens: int

    def inside(self, band_nats: float) -> bool:
        return self.nats <= band_nats and self.strange <= STRANGE_SHARE


def probe_request(model: str) -> TokenRequest:
    body = {
        "model": model,
        "prompt": list(PROMPTS),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logprobs": LIKELIEST,
        # Texts of several tokens may be one.
        "return_tokens_as_token_ids": True,
    }
    return TokenRequest(COMPLETIONS.path, b"application/json", orjson.dumps(body))


def read_answer(body: bytes) -> tuple[Answer, Usage]:
    """Raises: NoAnswer."""
    try:
        document = json.loads(body)  # the library's own reads NaN, which an engine may well write
        choices = sorted(document["choices"], key=lambda choice: choice["index"])
        answer = tuple(_positions(choice["logprobs"]) for choice in choices)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NoAnswer(f"the answer has no log-probabilities: {type(error).__name__} {error}"[:200]) from None
    return answer, _usage(document.get("usage"))


def _positions(found: dict[str, Any]) -> tuple[Position, ...]:
    rows = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    return tuple(
        Position.model_construct(token=str(token), logprob=_number(logprob), likeliest={t: _number(p) for t, p in top.items()})
        for token, logprob, top in rows
    )


def _number(value: Any) -> float:
    """Null is how JSON writes what is no number."""
    return math.nan if value is None else float(value)


def _usage(found: Any) -> Usage:
    if not isinstance(found, dict):
        return UNKNOWN_USAGE
    prompt, output = found.get("prompt_tokens"), found.get("completion_tokens")
    return Usage(prompt if type(prompt) is int else None, None, output if type(output) is int else None)


def apart(known: Answer, answer: Answer) -> Apart:
    """How far an answer is from the known one; an answer to fewer prompts is far."""
    differences: list[float] = []
    strange = 0
    for index, expected in enumerate(known):
        found = answer[index] if index < len(answer) else ()
        if expected and not found:
            differences.append(ABSENT_NATS)
            strange += 1
            continue
        row, is_strange = _differences(expected, found)
        differences += row
        strange += is_strange
    if not all(map(math.isfinite, differences)):
        return Apart(math.inf, 1.0, len(differences))
    mean = sum(differences) / len(differences) if differences else 0.0
    return Apart(mean, strange / max(1, len(known)), len(differences))


def _differences(expected: Sequence[Position], found: Sequence[Position]) -> tuple[list[float], bool]:
    """Of each token up to where the answers part, and whether they part at a token that nobody would expect."""
    row: list[float] = []
    for ours, theirs in zip(expected, found, strict=False):
        numbers = (theirs.logprob, *theirs.likeliest.values())
        if not all(map(math.isfinite, numbers)) or not theirs.likeliest:
            return [math.inf], True
        here = theirs.likeliest.get(ours.token, theirs.logprob if theirs.token == ours.token else None)
        if here is None:
            # It is less likely than the last of those that are told.
            row.append(max(0.0, ours.logprob - min(theirs.likeliest.values())))
            return row, True
        row.append(abs(here - ours.logprob))
        if theirs.token != ours.token:
            break
    return row, False


def read_reference(path: Path) -> Reference:
    """Raises: ConfigurationError."""
    try:
        reference = Reference.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"quality.references: {path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"quality.references: {path}: {field}: {problem['msg']}") from None
    if reference.prompts != PROMPTS_DIGEST:
        raise ConfigurationError(
            f"quality.references: {path}: prompts: it was made with other prompts; make it anew with `serving gate probes`"
        )
    return reference
