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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one family of APIs speaks. The marks of `done` and `error` are looked for at the beginning of a line of a stream."""

    name: Literal["openai", "responses", "anthropic"]
    """Also how errors look."""
    done: tuple[bytes, ...]
    """A stream is whole when one of these has come."""
    done_has_data: bool = False
    """Whether that is only so when the rest of the event has come too: the usage stands in it."""
    error: tuple[bytes, ...]
    """A stream has failed when one of these has come."""
    token: bytes
    """Comes once with each event that holds tokens."""
    plain: bytes
    """How the plainest event that holds tokens begins; most events of a stream do."""
    plain_lines: int
    """How many line ends such an event has, the empty line included."""
    tail_bytes: int = 128 * 1024
    """How far from a stream's end its usage and finish reason may stand."""
    prompt_keys: tuple[str, ...]
    """Where in `usage` the prompt's tokens stand, to be added up; all but the first may be missing."""
    cached_path: tuple[str, ...]
    """Where in `usage` the cached tokens stand."""
    output_key: str
    usage_before_done: Literal["running", "prompt", "none"]
    """What the usage in a stream that is not whole is worth: the tokens so far, the prompt alone, or nothing."""
    finish_key: bytes
    key_header: bytes | None = None
    """Where a key may stand beside `Authorization: Bearer`."""
    request_id_header: bytes | None = None
    """Where this family's clients look for the request's id, beside `x-request-id`."""


OPENAI = Dialect(
    name="openai",
    done=(b"data: [DONE]",),
    error=(b'data: {"error"',),
    token=b"\ndata:",
    plain=b'data: {"id":',
    plain_lines=2,
    tail_bytes=16 * 1024,
    prompt_keys=("prompt_tokens",),
    cached_path=("prompt_tokens_details", "cached_tokens"),
    output_key="completion_tokens",
    usage_before_done="running",
    finish_key=b'"finish_reason":"',
)
RESPONSES = Dialect(
    name="responses",
    done=(b"event: response.completed", b"event: response.incomplete"),
    done_has_data=True,
    error=(b"event: error", b"event: response.failed"),
    token=b".delta\ndata:",
    plain=b"event: response.output_text.delta\n",
    plain_lines=3,
    prompt_keys=("input_tokens",),
    cached_path=("input_tokens_details", "cached_tokens"),
    output_key="output_tokens",
    # Each event repeats the client's own tools: a schema in them may hold a `usage` that is none.
    usage_before_done="none",
    finish_key=b'"status":"',
)
ANTHROPIC = Dialect(
    name="anthropic",
    done=(b"event: message_stop",),
    done_has_data=True,
    error=(b"event: error",),
    token=b"\nevent: content_block_delta\n",
    plain=b"event: content_block_delta\n",
    plain_lines=3,
    prompt_keys=("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    cached_path=("cache_read_input_tokens",),
    output_key="output_tokens",
    # `message_start` tells the prompt, and an output of 0 whatever is to come.
    usage_before_done="prompt",
    finish_key=b'"stop_reason":"',
    key_header=b"x-api-key",
    request_id_header=b"request-id",
)


@dataclass(frozen=True, slots=True)
class Route:
    """A published route that engines answer."""

    name: str
    """Label in metrics and logs."""
    path: str
    dialect: Dialect
    required: tuple[Field, ...]
    refused: tuple[str, ...] = ()
    """Fields that may only be null or false."""
    refused_words: str = ""
    """Why, for the error."""
    forced: tuple[tuple[str, bytes], ...] = ()
    """Fields that the gateway sets whatever the client said, as JSON."""
    generates: bool = True
    """Whether the model works on it: what does not has no stream, no usage and no cached prefix."""
    usage_option: bool = False
    """Whether a stream tells its usage only when `stream_options.include_usage` asks for it."""
    silent_events: int = 0
    """Events at a stream's start that look as if they held a token and do not."""
    tells_reasoning: bool = False
    """Whether the text of a model's reasoning stands in a field that clients know by two names."""
    path_bytes: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path_bytes", self.path.encode())


_MESSAGES = Field("messages", (list,), "an array of messages")

CHAT_COMPLETIONS = Route(
    "chat_completions",
    "/v1/chat/completions",
    OPENAI,
    required=(_MESSAGES,),
    usage_option=True,
    silent_events=1,
    tells_reasoning=True,
)
COMPLETIONS = Route(
    "completions",
    "/v1/completions",
    OPENAI,
    required=(Field("prompt", (str, list), "a string or an array"),),
    usage_option=True,
)
RESPONSES_ROUTE = Route(
    "responses",
    "/v1/responses",
    RESPONSES,
    required=(Field("input", (str, list), "a string or an array of items"),),
    refused=("previous_response_id", "conversation", "background"),
    refused_words="responses are not kept here, so there is none to go on from or to come back for",
    forced=(("store", b"false"),),
)
MESSAGES = Route(
    "messages",
    "/v1/messages",
    ANTHROPIC,
    required=(_MESSAGES, Field("max_tokens", (int,), "an integer of at least 1")),
)
COUNT_TOKENS = Route(
    "count_tokens",
    "/v1/messages/count_tokens",
    ANTHROPIC,
    required=(_MESSAGES,),
    generates=False,
)
ROUTES = {route.path: route for route in (CHAT_COMPLETIONS, COMPLETIONS, RESPONSES_ROUTE, MESSAGES, COUNT_TOKENS)}
