"""A real collector of traces, rotel, as a process of its own; what it gets it hands on to a receiver in the test."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.doubles.real_engine import free_port
from tests.doubles.span_sink import OtlpReceiver
from tests.doubles.tools import tool

START_SECONDS = 180.0
STOP_SECONDS = 60.0


@dataclass
class Collector:
    """`url` takes traces over HTTP. What arrives in `receiver` has gone through it."""

    url: str
    receiver: OtlpReceiver
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes]

    def hang(self) -> None:
        """It keeps its connections and answers nothing, until `wake`."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def die(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """At the same address."""
        self.process = _started(self.command, self.url, self.log)


@contextlib.contextmanager
def running_collector(log: Path) -> Iterator[Collector]:
    """The test is skipped where there is no rotel."""
    program = tool("rotel", "rotel-agent")
    port, unused = free_port(), free_port()
    with OtlpReceiver() as receiver:
        target = urlsplit(receiver.url)
        command = [
            *(str(program), "start"),
            *("--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{unused}"),
            *("--exporter", "otlp", "--otlp-exporter-protocol", "http"),
            *("--otlp-exporter-endpoint", f"http://{target.netloc}", "--batch-timeout", "50ms"),
        ]
        url = f"http://127.0.0.1:{port}/v1/traces"
        collector = Collector(url, receiver, command, log, _started(command, url, log))
        try:
            yield collector
        finally:
            collector.wake()
            collector.process.terminate()
            try:
                collector.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                collector.die()


def _started(command: list[str], url: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    address = ("127.0.0.1", urlsplit(url).port or 0)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, f"the collector did not start: {log.read_text()}"
            time.sleep(0.05)
        else:
            return process
