"""What was collected of one engine: distributions, answers and counts, as one file that needs the engine no more.

A saved one is a reference, so that the machine of a reference need not stay up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from serving.catalog.records import Record, Text
from serving.core.errors import ConfigurationError
from serving.gate.digest import Configuration
from serving.gate.verdict import Cost

FORMAT = "serving gate collected 1"
TroubleKind = Literal["refused", "silent", "garbage"]


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


class Passage(Record):
    """A text with what the engine thinks of each of its tokens. The four columns are equally long; a first token has no `top`."""

    name: str
    kind: str
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """Of the token itself."""
    tops: tuple[Top | None, ...]
    words: dict[str, str] = Field(default_factory=dict)
    """Texts of the tokens that are the passage's own, or the likeliest somewhere, by id."""

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
    """Raises: ConfigurationError for a file that is none, or of another format."""
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
        return Collected.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{path}: {field}: {problem['msg']}") from None
