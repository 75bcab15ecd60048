"""One program and everything it starts, ended together: `python -m serving.engines.keeper -- COMMAND…`.

The keeper runs COMMAND in a session of its own and is tied to its owner by its standard input, a pipe whose other end
only the owner holds:

    end of input    the owner is gone, whatever killed it: end everything (SIGTERM, a short grace, SIGKILL)
    a byte          end everything at once (SIGKILL)
    SIGTERM         is passed on to COMMAND, which takes the time it needs
    COMMAND ends    end what it left behind, then exit with its status (128 + n after signal n, 127 if it cannot be run)

Linux only. Processes are found by descent and not by process group: the keeper is a *subreaper*, so the orphans of a
dying program become its children whatever session they moved to. Should the keeper itself be killed, the kernel kills
COMMAND, and the orphans go to the next subreaper above.

Standard library only, and nothing else of this package: it must start in milliseconds, also as a plain file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL for what the program left behind."""
KILL_SECONDS = 10.0
"""How long SIGKILL is repeated; a process in uninterruptible sleep outlives it."""
POLL_SECONDS = 0.02

CANNOT_RUN_STATUS = 127
SIGNAL_STATUS = 128

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STDIN = 0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root_pid: int, spare: Collection[int] = ()) -> list[int]:
    """Every process below `root_pid`, zombies included, without those in `spare` and what is below them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold spaces and parentheses itself; the parent is the second field after it.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    frontier = [root_pid]
    while frontier:
        below = [pid for pid in children.get(frontier.pop(), ()) if pid not in spare]
        found += below
        frontier += below
    return found


def end_descendants(root_pid: int, *, grace_seconds: float, spare: Collection[int] = ()) -> None:
    """End and reap every descendant of this process `root_pid`: SIGTERM, the grace, SIGKILL. No grace: SIGKILL at once."""
    told: set[int] = set()
    term_until = time.monotonic() + grace_seconds
    kill_until = term_until + KILL_SECONDS
    while (left := descendants(root_pid, spare)) and time.monotonic() < kill_until:
        patient = time.monotonic() < term_until
        for pid in left:
            if not patient:
                _send(pid, signal.SIGKILL)
            elif pid not in told:
                _send(pid, signal.SIGTERM)
                told.add(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_SECONDS)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def keep(command: Sequence[str]) -> int:
    """Run `command` to its end and return its status when nothing of it is left."""
    become_subreaper()
    wake = _wake_on_signals()
    pid = _spawn(command)
    status: int | None = None
    grace_seconds = GRACE_SECONDS
    while status is None:
        readable, _, _ = select.select([_STDIN, wake], [], [])
        if wake in readable and signal.SIGTERM in os.read(wake, 4096):
            _send(pid, signal.SIGTERM)
        status = _reap(pid)
        if _STDIN in readable:
            grace_seconds = 0.0 if os.read(_STDIN, 1) else GRACE_SECONDS
            break
    end_descendants(os.getpid(), grace_seconds=grace_seconds)
    return SIGNAL_STATUS + signal.SIGKILL if status is None else status


def _wake_on_signals() -> int:
    """A descriptor on which the number of each caught signal arrives as a byte, so that none is lost before `select`."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    return read_end


def _spawn(command: Sequence[str]) -> int:
    keeper_pid = os.getpid()
    # A signal between fork and exec would reach the keeper's handlers in the child, and be lost there.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, keeper_pid)
        except OSError as error:
            os.write(2, f"{command[0]}: cannot be run: {error.strerror}\n".encode())
        finally:
            os._exit(CANNOT_RUN_STATUS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return pid


def _become(command: Sequence[str], keeper_pid: int) -> None:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper_pid:  # the keeper died before the line above took effect
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(command[0], list(command))


def _reap(pid: int) -> int | None:
    """Collect all children that ended; the status of `pid` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, code = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                exit_code = os.waitstatus_to_exitcode(code)
                status = exit_code if exit_code >= 0 else SIGNAL_STATUS - exit_code
    return status


def main(arguments: Sequence[str]) -> int:
    """Entry point; `arguments` without the program's name."""
    if len(arguments) < 2 or arguments[0] != "--":
        os.write(2, b"usage: python -m serving.engines.keeper -- COMMAND...\n")
        return 2
    return keep(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
