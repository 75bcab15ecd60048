"""Where spans go in tests: kept in memory, or over a real socket to a receiver of OTLP."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind


class MemorySink:
    """OpenTelemetry's in-memory exporter; `on_send` may block or raise as a receiver would."""

    def __init__(self, on_send: Callable[[], None] = lambda: None) -> None:
        self._exporter = InMemorySpanExporter()
        self._on_send = on_send

    def encode(self, spans: Sequence[ReadableSpan]) -> bytes:
        self._exporter.export(spans)
        return b""

    def send(self, body: bytes) -> None:
        self._on_send()

    def close(self) -> None:
        self._exporter.shutdown()

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is kind]


class OtlpReceiver:
    """`with OtlpReceiver() as receiver: … receiver.url`; `statuses` are given one a request, then 200."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self.statuses: list[int] = []
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        receiver = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1
                receiver._open.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                message = ExportTraceServiceRequest.FromString(body)
                receiver.requests.append((self.path, dict(self.headers), message))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/v1/traces"

    @property
    def spans(self) -> list[tuple[str, Span]]:
        """What has come, each with the name of the service that it is from."""
        return [
            (_service_of(resource.resource), span)
            for _, _, message in list(self.requests)
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def span_names(self) -> list[str]:
        return [span.name for _, span in self.spans]

    def drop_connections(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _service_of(resource: Resource) -> str:
    names = [each.value.string_value for each in resource.attributes if each.key == "service.name"]
    return names[0] if names else ""
