"""What was collected of one engine: distributions, answers and counts, as one file that needs the engine no more.

A saved one is a reference, so that the machine of a reference need not stay up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from serving.catalog.records import Record, Text
from serving.core.errors import ConfigurationError
from serving.gate.digest import Configuration
from serving.gate.plausible import wrong_top, wrong_values
from serving.gate.verdict import Cost

FORMAT = "serving gate collected 1"
LONG = "long"
"""Kind of the passages behind a long context, whose tokens are not the text's own."""
TroubleKind = Literal["refused", "silent", "garbage"]


def _require_length(field: str, column: Sequence[object], ids: Sequence[int]) -> None:
    """Raises: ValueError."""
    if len(column) != len(ids):
        raise ValueError(f"{field}: has {len(column)} entries for {len(ids)} ids; columns must be equally long")


class EngineFacts(Record):
    """What the engine says of itself."""

    url: str
    model: str
    version: str | None
    max_model_len: int | None


class Top(Record):
    """The most likely tokens at one position, the likeliest first."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        _require_length("logprobs", self.logprobs, self.ids)
        if not self.ids:
            raise ValueError("ids: must have at least one token")
        return self


class Passage(Record):
    """A text with what the engine thinks of each of its tokens. The columns are equally long; a first token has no `top`."""

    name: str
    kind: str
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """Of the token itself."""
    tops: tuple[Top | None, ...]
    words: dict[str, str] = Field(default_factory=dict)
    """Texts of the tokens that are the passage's own, or the likeliest somewhere, by id."""

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        _require_length("logprobs", self.logprobs, self.ids)
        _require_length("tops", self.tops, self.ids)
        return self

    @property
    def wrong(self) -> str | None:
        """What no sound engine says of the text; None where everything can be."""
        for place, (own, top) in enumerate(zip(self.logprobs, self.tops, strict=True)):
            if own is None and top is not None and self.kind != LONG:
                return f"position {place} has no log probability of its own"
            found = wrong_values([own]) if own is not None else None
            found = found or (wrong_top(place, top.logprobs) if top is not None else None)
            if found:
                return found
        return None

    @property
    def scored(self) -> int:
        return sum(top is not None for top in self.tops)

    def text(self, token: int) -> str:
        return self.words.get(str(token), f"<{token}>")


class Rendering(Record):
    """A conversation as the engine's chat template writes it."""

    name: str
    ids: tuple[int, ...]
    texts: tuple[str, ...] = ()


class DecodeRun(Record):
    """Tokens that one engine generated, with their log probabilities, and the same tokens scored as a prompt."""

    name: str
    ids: tuple[int, ...]
    decoded: tuple[float, ...]
    prefilled: tuple[float, ...]
    first_ranks: int
    """How many of the tokens the prefill path finds the likeliest, too."""

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        _require_length("decoded", self.decoded, self.ids)
        _require_length("prefilled", self.prefilled, self.ids)
        if not 0 <= self.first_ranks <= len(self.ids):
            raise ValueError(f"first_ranks: is {self.first_ranks}, and there are {len(self.ids)} tokens")
        return self

    @property
    def wrong(self) -> str | None:
        """As a passage's."""
        return wrong_values((*self.decoded, *self.prefilled))


class Answer(Record):
    """One item of a task."""

    family: str
    name: str
    prompt: str | None
    """None: left out on request."""
    text: str | None
    passed: bool
    well_formed: bool | None = None
    """None: no form was asked for."""
    said: str = ""


class Acceptance(Record):
    """Of speculative decoding, counted by the engine during the tasks."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int

    @property
    def tokens_per_step(self) -> float:
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0


class Trouble(Record):
    """A question that got no answer, or none that a sound engine gives."""

    kind: TroubleKind
    where: str
    said: str


class Collected(Record):
    """Everything of one engine."""

    format: Literal["serving gate collected 1"] = "serving gate collected 1"
    created: Text
    gate_version: Text
    corpus: Text
    """SHA-256 of passages and tasks. Only what has the same corpus can be compared."""
    parts: tuple[str, ...]
    engine: EngineFacts
    configuration: Configuration | None = None
    passages: tuple[Passage, ...] = ()
    renderings: tuple[Rendering, ...] = ()
    decode_runs: tuple[DecodeRun, ...] = ()
    answers: tuple[Answer, ...] = ()
    customer: tuple[Answer, ...] = ()
    acceptance: Acceptance | None = None
    troubles: tuple[Trouble, ...] = ()
    not_seen: tuple[str, ...] = ()
    """Parts that were left out, or that this engine does not offer, each with its reason."""
    cost: Cost = Field(default_factory=Cost)

    @property
    def label(self) -> str:
        return f"{self.engine.model} at {self.engine.url}"


def write_collected(collected: Collected, path: Path) -> None:
    try:
        path.write_text(collected.model_dump_json(), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_collected(path: Path) -> Collected:
    """What holds numbers that are no log probabilities is left out and becomes a trouble, as it would while collecting.

    Raises: ConfigurationError for a file that is none, of another format, or with columns of different lengths.
    """
    try:
        text = path.read_bytes()
        head: JsonValue = json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: is not JSON; `serving gate collect URL -o FILE` writes such a file") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ConfigurationError(f"{path}: is not a file of `serving gate collect`, which says {FORMAT!r} in its field format")
    try:
        return _sound(Collected.model_validate_json(text))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{path}: {field}: {problem['msg'].removeprefix('Value error, ')}") from None


def _sound(collected: Collected) -> Collected:
    """With the engine's wrong numbers as troubles."""
    asked = (("passages", collected.passages), ("decode", collected.decode_runs))
    troubles = tuple(
        Trouble(kind="garbage", where=where, said=f"{one.name}: {wrong}")
        for where, ones in asked
        for one in ones
        if (wrong := one.wrong) is not None
    )
    if not troubles:
        return collected
    return collected.model_copy(
        update={
            "passages": tuple(one for one in collected.passages if one.wrong is None),
            "decode_runs": tuple(one for one in collected.decode_runs if one.wrong is None),
            "troubles": (*collected.troubles, *troubles),
        }
    )
