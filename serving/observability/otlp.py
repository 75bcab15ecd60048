"""Spans to a receiver over OTLP/HTTP: OpenTelemetry's encoding, one POST on a kept connection, called from a thread.

OpenTelemetry's own exporter is left out: it brings another HTTP client, and a dozen variables of the environment would change
what it does.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from serving.core.errors import ConfigurationError

_LATER = (429, 502, 503, 504)
"""Statuses after which OTLP wants the same to be sent again."""


class SendFailed(Exception):
    """The receiver did not take the spans; `retriable` where it may take them later."""

    def __init__(self, why: str, *, retriable: bool) -> None:
        super().__init__(why)
        self.retriable = retriable


class Sink(Protocol):
    """Where spans go. Encodings of several groups may be joined."""

    def encode(self, spans: Sequence[ReadableSpan]) -> bytes: ...

    def send(self, body: bytes) -> None:
        """Send, however long it takes. Raises: SendFailed."""
        ...

    def close(self) -> None: ...


class OtlpHttp:
    """A receiver of traces over HTTP. Raises: ConfigurationError where `ca` is no file of authorities."""

    def __init__(self, endpoint: str, *, headers: Mapping[str, str], ca: Path | None, timeout_seconds: float) -> None:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port
        self._path = parts.path
        self._headers = {"content-type": "application/x-protobuf", **headers}
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=None if ca is None else str(ca))
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"tracing.ca: {ca}: {error}") from None
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_seconds, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)

    def encode(self, spans: Sequence[ReadableSpan]) -> bytes:
        encoded: bytes = encode_spans(spans).SerializeToString()
        return encoded

    def send(self, body: bytes) -> None:
        try:
            self._connection.request("POST", self._path, body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise SendFailed(f"{type(error).__name__}: {error}", retriable=True) from None
        if not 200 <= answer.status < 300:
            raise SendFailed(f"it answered {answer.status}", retriable=answer.status in _LATER)

    def close(self) -> None:
        self._connection.close()
