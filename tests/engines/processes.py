"""Real processes under test: found by a mark in their environment, awaited by condition with a deadline."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import psutil

DEADLINE_SECONDS = 120.0
MARK_VARIABLE = "TEST_MARK"

T = TypeVar("T")


def until(condition: Callable[[], T], what: str) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:.0f} s: {what}"
        time.sleep(0.02)
    return value


class Marked:
    """All processes that inherit one mark, whatever their parent, group or session has become."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = os.environ | {MARK_VARIABLE: self.mark}
        self.started: list[subprocess.Popen[bytes]] = []
        """Children of the test itself, reaped when it has ended."""

    def alive(self, word: str = "") -> list[psutil.Process]:
        """Those with `word` among their arguments."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(MARK_VARIABLE) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE and any(word in part for part in process.cmdline()):
                    found.append(process)
        return found

    def gone(self) -> bool:
        return not self.alive()


def marked() -> Iterator[Marked]:
    """A fixture's body: whatever a failed test left is ended."""
    processes = Marked()
    yield processes
    for process in processes.alive():
        with suppress(psutil.Error):
            process.kill()
    for child in processes.started:
        child.wait(DEADLINE_SECONDS)
