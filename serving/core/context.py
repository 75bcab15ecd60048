"""What is known about one request on its way through the pipeline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from serving.core.money import UNPRICED, MachineDollars
from serving.core.outcomes import Outcome
from serving.core.routes import Route
from serving.core.trace import Trace

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""


class Usage(NamedTuple):
    """Tokens of one request; None where the engine did not say. `prompt_tokens` includes `cached_tokens`."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    audio_seconds: int | None = None
    """What an engine tells in place of tokens of a transcription that is no stream."""


UNKNOWN_USAGE = Usage()


class Upload(Protocol):
    """A body that is read as it comes."""

    content_type: bytes

    async def piece(self) -> tuple[bytes, bool]:
        """The next bytes, decoded, and whether the body is whole with them.

        Raises: BodyTooLarge, RequestTimeout, InvalidRequest, ClientGone.
        """
        ...


class Rest(Protocol):
    """The end of a body on its way to an engine."""

    begun: bool
    """Something of it was taken, and is gone."""

    async def piece(self) -> tuple[bytes, bool]:
        """The next bytes for the engine, and whether the body is whole with them. Raises as `Upload.piece` does."""
        ...


@dataclass(slots=True)
class RequestContext:
    """The request context of the pipeline: identity, what was asked, where it went, when, and how it ended.

    All times are monotonic seconds; 0.0 means "has not happened".
    """

    request_id: str
    route: Route
    credential: str | None
    arrived: float
    traceparent: str | None = None
    tracestate: str | None = None
    trace: Trace | None = None
    """Only while tracing is on."""

    asked_timeout: bytes | None = None
    """How many seconds the client gives the request, as it wrote them."""
    asked_class: bytes | None = None
    """How urgent the client says it is."""
    ends: float = 0.0
    """When its own time is used up; 0.0 where only the gateway's holds, which is the longest."""

    explain_key: bytes | None = None
    """What somebody sent who wants to know why the engine was chosen."""
    decision: bytes = b""
    """Why, as JSON, for somebody who may know."""
    tenant: str = ""
    body: bytes = b""
    content_type: bytes = b"application/json"
    """Of the body as the engine gets it."""
    rest: Rest | None = None
    """What of the body comes after `body` while the engine takes it; its size is not known."""
    body_bytes: int = 0
    """Size of the body as the client sent it."""
    document: dict[str, Any] = field(default_factory=dict)
    notable: frozenset[str] = frozenset()
    """Members of the document that have to be looked at more closely."""
    dropped_fields: tuple[str, ...] = ()
    """Members of the body that did not go to the engine."""
    hides_usage: bool = False
    """The stream's usage event was asked for by the gateway and is not the client's."""
    model: str = ""
    """The model whose engines are asked. Empty until it is known to be a model of this fleet, so that it can be a label."""
    asked_model: str = ""
    """What the client calls the model; another name where that is an alias, or where a fallback was taken. Known, too."""
    fell_back: bool = False
    """The model is one that stands in for the one that was asked for."""
    reasoning_field: str = ""
    """Where the client looks for the text of the model's reasoning; empty where the engine's own field is right."""
    stream: bool = False
    pool: str = ""
    target: str = ""
    """The kind of hardware that the attempt under way, or the last one, is at."""
    endpoint: str = ""
    attempts: int = 0

    first_byte: float = 0.0
    first_token: float = 0.0
    """When a stream's first event came that holds a token; some streams begin before the engine does."""
    last_byte: float = 0.0
    events: int = 0
    """Stream events that carried a choice."""
    next_event: int = 0
    """The number that an event would have which the gateway adds to a stream that broke off."""
    usage: Usage = UNKNOWN_USAGE
    usage_estimated: bool = False
    """The answer ended before the engine said its usage."""
    machine: MachineDollars = UNPRICED
    """What it cost on the machines, once it is published; not what its tenant is charged."""
    failed_at: tuple[str, str] | None = None
    """Pool and target of its attempts that gave no answer and cost something; `SEVERAL` where they were at more than one."""
    finish_reason: str = ""
    status: int = 0
    interruption: Outcome | None = None
    """Why the request is being cancelled, set by whoever cancels it."""
    outcome: Outcome | None = None
    error_code: str = ""
    """That of the error which the client got before its answer began, where it has one."""
    chunk_intervals: list[int] | None = None
    """Counts of inter-chunk intervals in the buckets of the histogram; None when not a stream."""


class Incoming(Protocol):
    """The client's side of a request, as the pipeline sees it."""

    def body(self) -> Awaitable[bytes]:
        """The whole decoded body.

        Raises: BodyTooLarge, RequestTimeout, UnsupportedMedia, ClientGone.
        """
        ...

    def upload(self) -> Upload:
        """The same body in pieces. Raises: BodyTooLarge, UnsupportedMedia."""
        ...


Write = Callable[[bytes, bytes | None], bool]
"""Writes bytes at once and returns whether the client's buffer has room for more.

Where the same bytes are at hand as HTTP/1.1 chunks already, those are the second argument and spare the framing.
"""


class Outgoing(Protocol):
    """The answer's side, as the pipeline sees it. Nothing is sent before `start`."""

    started: bool

    @property
    def write(self) -> Write | None:
        """A way to write without waiting, where the server allows one; only between `start` and the last `send`."""
        ...

    def start(self, status: int, headers: Headers) -> Awaitable[None]: ...

    def send(self, data: bytes, *, last: bool) -> Awaitable[None]:
        """Write bytes; returns when the client's buffer has room again."""
        ...
