"""Faults on command: what a simulated engine does wrong, as one record that replaces the one before."""

from __future__ import annotations

import json
import random
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError

from serving.catalog.load import nearest
from serving.catalog.model import Record
from serving.core.errors import ConfigurationError

Stop = Literal["die", "out_of_memory", "drain", "abort", "abort_silently"]


class Faults(Record):
    """An empty record is a healthy engine. The faults of single requests hit a `share` of them, chosen by the seed."""

    refuse: bool = False
    """Close the port; open connections go on."""
    hang: bool = False
    """Accept and answer nothing on the routes that generate; running requests get no more tokens; /health stays green."""
    slow_factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Steps take so many times as long."""
    reset_after_events: Annotated[int, Field(ge=0)] | None = None
    """Reset the connection after so many events of a stream; an answer that is no stream is reset before its first byte."""
    garbage: bool = False
    """Answer 200 and bytes that are neither JSON nor events."""
    wrong_answers: bool = False
    """Answer as always, with another text: what only a quality check finds."""
    error_status: Annotated[int, Field(ge=400, le=599)] | None = None
    """Answer with an error object of this status."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the requests, that the faults from `reset_after_events` on hit."""
    stop: Stop | None = None
    """die: as kill -9. out_of_memory: running requests fail, new ones get 500, then it dies. drain, abort: as SIGTERM;
    abort_silently: as SIGTERM when vLLM forgets its streams, which stay open and say nothing until their clients leave."""
    restart_after_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """After `stop` or `refuse`, come back by itself, healthy and with an empty cache; seconds of the wall clock."""

    def hits(self, chance: random.Random) -> bool:
        return self.share >= 1.0 or chance.random() < self.share


def read_faults(text: str | bytes) -> Faults:
    """The record in a JSON object.

    Raises:
        ConfigurationError: naming the field and what would be right
    """
    try:
        return Faults.model_validate_json(text)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            name = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                fields = sorted(Faults.model_fields)
                problems.append(f"{name}: is not a fault{nearest(name, fields)}; there are: {', '.join(fields)}")
            elif problem["type"] == "json_invalid":
                problems.append("faults: must be a JSON object of faults")
            else:
                problems.append(f"{name or 'faults'}: {problem['msg']}, not {problem['input']!r}")
        raise ConfigurationError("\n".join(problems)) from None


def parse_faults(words: list[str]) -> Faults:
    """The record in words of a command line: `hang`, `slow_factor=3`, `stop=die`.

    Raises:
        ConfigurationError: naming the word and what would be right
    """
    record: dict[str, object] = {}
    for word in words:
        name, given, value = word.partition("=")
        if name == "stop" and given:
            if value not in get_args(Stop):
                raise ConfigurationError(f"--fault {word}: stop is one of {', '.join(get_args(Stop))}")
            record[name] = value
            continue
        try:
            record[name] = json.loads(value) if given else True
        except json.JSONDecodeError:
            raise ConfigurationError(f"--fault {word}: {value!r} is no number, true or false") from None
    try:
        return read_faults(json.dumps(record))
    except ConfigurationError as error:
        raise ConfigurationError(f"--fault {error}") from None
