"""A program under a keeper, as its owner sees it: start, watch, stop, and what its log says."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.engines import keeper

PROBE_TIMEOUT_SECONDS = 1.0
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class Program:
    """What is run, where it answers when it is ready, and how patient its owner is with it."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path
    host: str
    port: int
    ready_path: str
    """Answered with 200 when the program is ready."""
    stop_seconds: float
    """Between SIGTERM and SIGKILL."""
    first_delay_seconds: float
    """Before it is started again when it has died once."""


class Kept:
    """One run of a program. It lives no longer than this process, however this process ends."""

    def __init__(self, program: Program) -> None:
        """Start it; output goes to the end of the log.

        Raises:
            OSError: the log cannot be written or the process not be started.
        """
        self._program = program
        with program.log_path.open("ab") as log:
            self._log_start_bytes = log.tell()
            # The pipe's write end is closed in every other child (close_fds), else one child would keep another alive;
            # the new session keeps the terminal's Ctrl-C away. By path and isolated, it starts without our packages.
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", keeper.__file__, "--", *program.argv),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(program.environment),
                start_new_session=True,
                bufsize=0,
            )
        self.keeper_pid = self._process.pid

    def poll(self) -> int | None:
        """The program's status (128 + n after signal n) once it and all it started are gone; None before."""
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return code if code >= 0 else keeper.SIGNAL_STATUS - code

    @property
    def keeper_was_killed(self) -> bool:
        """Whether the keeper ended before it could clean up: what the program started may be left."""
        return self._process.returncode is not None and self._process.returncode < 0

    def terminate(self) -> None:
        """Ask the program to stop in its own time."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program and all it started now; waits until they are gone."""
        if self._process.poll() is None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.write(b"!")
            try:
                self._process.wait(keeper.KILL_SECONDS + 1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def log_tail(self, lines: int) -> list[str]:
        """The last lines that this run has written, progress bars in their last state."""
        try:
            with self._program.log_path.open("rb") as log:
                log.seek(0, 2)
                log.seek(max(self._log_start_bytes, log.tell() - TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return []
        written = (line.rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
        return [line for line in written if line][-lines:]


def answers_ok(host: str, port: int, path: str) -> bool:
    """Whether a GET is answered with 200 within a second."""
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def rotate_log(path: Path) -> None:
    """Make `path` ready for a new log; the one before is kept as `.1`, the one before that goes.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))
