"""An engine and a gateway kept alive in the foreground until somebody says stop.

One thread, one loop: signals and ended children wake it at once, readiness is asked for in between. What is started here
ends with this process even when it is killed: see `keeper`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from serving.core.clock import Clock, monotonic
from serving.engines import keeper
from serving.engines.kept import Kept, Program, answers_ok

SHORTEST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A program that was ready for this long starts over at its first delay."""
PROBE_PERIOD_SECONDS = 0.5
TICK_SECONDS = 0.2
SAME_PRESS_SECONDS = 0.3
"""A wrapper may pass one Ctrl-C on twice; only a later one is a second wish."""
FAILURE_LINES = 20


class Screen(Protocol):
    """What the operator sees."""

    def say(self, text: str) -> None: ...

    def fail(self, text: str) -> None: ...

    def starting(self, seconds: float, log_tail: list[str]) -> None:
        """The engine has been starting for so long, and its log ends so; called several times a second."""

    def started(self) -> None: ...


class Backoff:
    """How long to wait before a program that died is started again: its first delay, then from 1 s doubling to 30 s."""

    def __init__(self, first_delay_seconds: float) -> None:
        self._first_delay_seconds = first_delay_seconds
        self._next_seconds = first_delay_seconds
        self._ready_since: float | None = None

    def became_ready(self, now: float) -> None:
        self._ready_since = now

    def died(self, now: float) -> float:
        """Seconds to wait from `now`."""
        if self._ready_since is not None and now - self._ready_since >= STEADY_SECONDS:
            self._next_seconds = self._first_delay_seconds
        self._ready_since = None
        delay_seconds = self._next_seconds
        self._next_seconds = min(max(SHORTEST_DELAY_SECONDS, 2 * delay_seconds), LONGEST_DELAY_SECONDS)
        return delay_seconds


class StopSignals:
    """Counts the wishes to stop (SIGINT, SIGTERM, SIGHUP), and lets the loop sleep until a signal comes."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self.wishes = 0
        self.interrupting = False
        """Whether a wish raises KeyboardInterrupt too, for work that does not ask."""
        self._clock = clock
        self._last_wish = float("-inf")
        self._wake_read = -1

    @contextlib.contextmanager
    def caught(self) -> Iterator[StopSignals]:
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        before_fd = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._wish) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        try:
            yield self
        finally:
            for number, handler in before.items():
                # A wish that was heard ends the process; pressing on while it exits must not change its status.
                signal.signal(number, signal.SIG_IGN if self.wishes and number != signal.SIGCHLD else handler)
            signal.set_wakeup_fd(before_fd)
            os.close(self._wake_read)
            os.close(wake_write)

    def _wish(self, _number: int, _frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._last_wish >= SAME_PRESS_SECONDS:
            self.wishes += 1
            self._last_wish = now
        if self.interrupting:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, a child's end included."""
        if select.select([self._wake_read], [], [], seconds)[0]:
            os.read(self._wake_read, 4096)


class _Life:
    """A program over all its runs."""

    def __init__(self, program: Program, now: float) -> None:
        self.program = program
        self.kept: Kept | None = None
        self.started_at = now
        self.start_at = now
        self.ready = False
        self.was_ever_ready = False
        self.backoff = Backoff(program.first_delay_seconds)
        self._probe_at = now

    def start(self, now: float) -> None:
        self.kept = Kept(self.program)
        self.started_at = self._probe_at = now

    def has_become_ready(self, now: float) -> bool:
        if self.ready or now < self._probe_at:
            return False
        self._probe_at = now + PROBE_PERIOD_SECONDS
        self.ready = answers_ok(self.program.host, self.program.port, self.program.ready_path)
        if self.ready:
            self.backoff.became_ready(now)
        return self.ready

    def has_died(self, now: float) -> float:
        """Returns the seconds until it is started again."""
        self.kept = None
        self.ready = False
        delay_seconds = self.backoff.died(now)
        self.start_at = now + delay_seconds
        return delay_seconds


class Supervisor:
    """Runs both programs; the gateway stays up while the engine comes and goes."""

    def __init__(
        self,
        engine: Program,
        gateway: Program,
        *,
        screen: Screen,
        signals: StopSignals,
        serves: Callable[[], bool],
        announcement: str,
        clock: Clock = monotonic,
    ) -> None:
        """`serves` tells whether a request would be answered; `announcement` is shown when it first does."""
        self._screen = screen
        self._signals = signals
        self._serves = serves
        self._announcement: str | None = announcement
        self._clock = clock
        self._engine = _Life(engine, clock())
        self._gateway = _Life(gateway, clock())

    def run(self) -> int:
        """Until a signal says stop (0), or a program cannot work at all (1). Nothing is left running."""
        keeper.become_subreaper()
        try:
            while not self._signals.wishes:
                for life in (self._engine, self._gateway):
                    if not self._advance(life):
                        return 1
                self._show()
                self._signals.wait(TICK_SECONDS)
            self._screen.started()
            self._stop(self._gateway)
            self._stop(self._engine)
            return 0
        finally:
            self._screen.started()
            for life in (self._gateway, self._engine):
                if life.kept is not None:
                    life.kept.kill()
            keeper.end_descendants(os.getpid(), grace_seconds=0.0)

    def _advance(self, life: _Life) -> bool:
        """Start, watch or restart one program; False when there is no sense in going on."""
        now = self._clock()
        if life.kept is None:
            if now >= life.start_at:
                life.start(now)
            return True
        status = life.kept.poll()
        if status is not None:
            return self._take_death(life, life.kept, status)
        if life.has_become_ready(now):
            if life.was_ever_ready:
                self._screen.say(f"The {life.program.name} is ready again after {now - life.started_at:.0f} s.")
            life.was_ever_ready = True
        return True

    def _take_death(self, life: _Life, kept: Kept, status: int) -> bool:
        if kept.keeper_was_killed:
            # The orphans have come to this process: all that is below it and not below the other keeper.
            others = [other.kept.keeper_pid for other in (self._engine, self._gateway) if other.kept not in (None, kept)]
            keeper.end_descendants(os.getpid(), grace_seconds=keeper.GRACE_SECONDS, spare=others)
        name, log_path = life.program.name, life.program.log_path
        if not life.was_ever_ready:
            tail = "\n".join(f"    {line}" for line in kept.log_tail(FAILURE_LINES))
            ended = f"The {name} {_ending(status)} before it was ready; everything is stopped."
            self._screen.fail(f"{ended} Its log, {log_path}, ends with:\n{tail}")
            life.kept = None
            return False
        delay_seconds = life.has_died(self._clock())
        when = f"in {delay_seconds:.0f} s" if delay_seconds else "now"
        self._screen.say(f"The {name} {_ending(status)}; it is started again {when}. Its log: {log_path}")
        return True

    def _show(self) -> None:
        if self._announcement is None:
            return
        if self._engine.kept is not None:
            self._screen.starting(self._clock() - self._engine.started_at, self._engine.kept.log_tail(FAILURE_LINES))
        if self._engine.ready and self._gateway.ready and self._serves():
            self._screen.started()
            self._screen.say(self._announcement)
            self._announcement = None

    def _stop(self, life: _Life) -> None:
        if life.kept is None or life.kept.poll() is not None:
            return
        self._screen.say(f"Stopping the {life.program.name}.")
        life.kept.terminate()
        stop_until = self._clock() + life.program.stop_seconds
        while life.kept.poll() is None and self._clock() < stop_until and self._signals.wishes < 2:
            self._signals.wait(TICK_SECONDS)
        life.kept.kill()


def _ending(status: int) -> str:
    if status == keeper.CANNOT_RUN_STATUS:
        return "could not be started"
    if status <= keeper.SIGNAL_STATUS:
        return f"ended with status {status}"
    number = status - keeper.SIGNAL_STATUS
    name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
    return f"was killed by {name}" + (" (often: out of memory)" if number == signal.SIGKILL else "")
