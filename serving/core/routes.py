"""The routes that engines answer, as data: what each wants, how its streams end, where its usage stands, how its errors look."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Task = Literal["generate", "embed", "score", "transcription"]
"""What an engine does with its model, in vLLM's words; an endpoint may do several."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a body must have."""

    name: str
    kinds: tuple[type, ...]
    words: str
    """What it must be, for the error."""
    instead: tuple[str, ...] = ()
    """Fields that may stand in its place, which the engine then judges."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A field whose items each cost an engine work."""

    name: str
    limit: Literal["prompts", "inputs", "documents"]
    """Which of the ceilings of `limits.parameters` holds for them."""


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
    output_key: str | None
    """None: these answers hold no tokens, so that there are 0."""
    usage_first: bool = False
    """Whether the usage stands in the first bytes of an answer, before what may be long."""
    usage_before_done: Literal["running", "prompt", "none"]
    """What the usage in a stream that is not whole is worth: the tokens so far, the prompt alone, or nothing."""
    finish_key: bytes
    given_up: bytes | None = None
    """How an engine says in an answer that it gave it up, as vLLM does while it stops; None where it has no word for that, or
    where answers repeat what clients said, so that a client could say it."""
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
    given_up=b'"finish_reason":"abort"',
)
POOLING = replace(OPENAI, output_key=None, given_up=None)
RERANKING = replace(POOLING, usage_first=True)
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
    task: Task | None = "generate"
    """What an engine must do to answer it; None: every engine does."""
    counted: tuple[Counted, ...] = ()
    refused: tuple[str, ...] = ()
    """Fields that may only be null or false."""
    refused_words: str = ""
    """Why, for the error."""
    forced: tuple[tuple[str, bytes], ...] = ()
    """Fields that the gateway sets whatever the client said, as JSON."""
    runs_model: bool = True
    """Whether the model works on it: what does not has no usage and no cached prefix."""
    streams: bool = True
    """Whether a client may ask for a stream."""
    form: bool = False
    """Whether the body is a multipart form with a file in place of JSON."""
    usage_header: bytes | None = None
    """A header of the answer that tells the usage where the body cannot, and belongs to the client."""
    usage_option: bool = False
    """Whether a stream tells its usage only when `stream_options.include_usage` asks for it."""
    length_fields: tuple[str, ...] = ()
    """Fields that say how many tokens an answer may have; of those that are given the first holds. Engines heed no others."""
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
    length_fields=("max_completion_tokens", "max_tokens"),
    silent_events=1,
    tells_reasoning=True,
)
COMPLETIONS = Route(
    "completions",
    "/v1/completions",
    OPENAI,
    required=(Field("prompt", (str, list), "a string or an array"),),
    counted=(Counted("prompt", "prompts"),),
    usage_option=True,
    length_fields=("max_tokens",),
)
RESPONSES_ROUTE = Route(
    "responses",
    "/v1/responses",
    RESPONSES,
    required=(Field("input", (str, list), "a string or an array of items"),),
    refused=("previous_response_id", "conversation", "background"),
    refused_words="responses are not kept here, so there is none to go on from or to come back for",
    forced=(("store", b"false"),),
    length_fields=("max_output_tokens",),
)
MESSAGES = Route(
    "messages",
    "/v1/messages",
    ANTHROPIC,
    required=(_MESSAGES, Field("max_tokens", (int,), "an integer of at least 1")),
    length_fields=("max_tokens",),
)
COUNT_TOKENS = Route(
    "count_tokens",
    "/v1/messages/count_tokens",
    ANTHROPIC,
    required=(_MESSAGES,),
    runs_model=False,
    streams=False,
)
EMBEDDINGS = Route(
    "embeddings",
    "/v1/embeddings",
    POOLING,
    required=(Field("input", (str, list), "a string or an array", instead=("messages",)),),
    task="embed",
    counted=(Counted("input", "inputs"), Counted("messages", "inputs")),
    streams=False,
    usage_header=b"metadata",
)


def _rerank(name: str, path: str) -> Route:
    query = Field("query", (str, dict), "a string or an object with 'content'")
    documents = Field("documents", (str, list, dict), "an array of documents")
    counted = (Counted("documents", "documents"),)
    return Route(name, path, RERANKING, required=(query, documents), task="score", counted=counted, streams=False)


RERANK = _rerank("rerank", "/v1/rerank")
RERANK_V2 = _rerank("rerank_v2", "/v2/rerank")
_LEFT = ("text_1", "queries", "data_1")
_RIGHT = ("text_2", "documents", "items", "data_2")
SCORE = Route(
    "score",
    "/v1/score",
    POOLING,
    required=(
        Field("text_1", (str, list, dict), "a text or an array of texts", instead=_LEFT[1:]),
        Field("text_2", (str, list, dict), "a text or an array of texts", instead=_RIGHT[1:]),
    ),
    task="score",
    counted=tuple(Counted(name, "documents") for name in (*_LEFT, *_RIGHT)),
    streams=False,
)


def _audio(name: str, path: str) -> Route:
    return Route(name, path, OPENAI, required=(), task="transcription", usage_option=True, form=True)


TRANSCRIPTIONS = _audio("transcriptions", "/v1/audio/transcriptions")
TRANSLATIONS = _audio("translations", "/v1/audio/translations")
TOKENIZE = Route(
    "tokenize",
    "/tokenize",
    OPENAI,
    required=(Field("prompt", (str,), "a string", instead=("messages",)),),
    task=None,
    runs_model=False,
    streams=False,
)
DETOKENIZE = Route(
    "detokenize",
    "/detokenize",
    OPENAI,
    required=(Field("tokens", (list,), "an array of token ids"),),
    task=None,
    runs_model=False,
    streams=False,
)
ROUTES = {
    route.path: route
    for route in (
        CHAT_COMPLETIONS,
        COMPLETIONS,
        RESPONSES_ROUTE,
        MESSAGES,
        COUNT_TOKENS,
        EMBEDDINGS,
        RERANK,
        RERANK_V2,
        SCORE,
        TRANSCRIPTIONS,
        TRANSLATIONS,
        TOKENIZE,
        DETOKENIZE,
    )
}


def supported(tasks: tuple[Task, ...]) -> list[str]:
    """The paths that a model with these tasks answers."""
    return [route.path for route in ROUTES.values() if route.task is None or route.task in tasks]
