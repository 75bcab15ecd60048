"""The routes that engines answer, as data: what each wants, how its streams end, where its usage stands, how its errors look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a body must have."""

    name: str
    kinds: tuple[type, ...]
    words: str
    """What it must be, for the error."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of APIs speaks. Marks are looked for at the beginning of a line of a stream."""

    name: Literal["openai"]
    done: tuple[bytes, ...]
    """A stream is whole when one of these has come."""
    error: tuple[bytes, ...]
    """A stream has failed when one of these has come."""
    prompt_key: str
    cached_path: tuple[str, ...]
    """Where in `usage` the cached tokens stand."""
    output_key: str


OPENAI = Dialect(
    name="openai",
    done=(b"data: [DONE]",),
    error=(b'data: {"error"',),
    prompt_key="prompt_tokens",
    cached_path=("prompt_tokens_details", "cached_tokens"),
    output_key="completion_tokens",
)


@dataclass(frozen=True, slots=True)
class Route:
    """A published route that engines answer."""

    name: str
    """Label in metrics and logs."""
    path: str
    dialect: Dialect
    required: tuple[Field, ...]
    usage_option: bool = False
    """Whether a stream tells its usage only when `stream_options.include_usage` asks for it."""
    silent_events: int = 0
    """Events at a stream's start that hold no token."""
    path_bytes: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path_bytes", self.path.encode())


CHAT_COMPLETIONS = Route(
    "chat_completions",
    "/v1/chat/completions",
    OPENAI,
    required=(Field("messages", (list,), "an array of messages"),),
    usage_option=True,
    silent_events=1,
)
COMPLETIONS = Route(
    "completions",
    "/v1/completions",
    OPENAI,
    required=(Field("prompt", (str, list), "a string or an array"),),
    usage_option=True,
)
ROUTES = {route.path: route for route in (CHAT_COMPLETIONS, COMPLETIONS)}
