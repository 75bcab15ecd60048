"""The keeper: nothing of a program outlives it, whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.engines import keeper
from tests.engines.processes import Marked, marked, until

# A program with a child in a session of its own that ignores SIGTERM, as the worst of grandchildren does.
STUBBORN = """
import os, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
core = subprocess.Popen([sys.executable, "-c", child, "stubborn-core"], start_new_session=True, stdout=subprocess.PIPE)
core.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def processes() -> Iterator[Marked]:
    yield from marked()


def start(processes: Marked, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-I", "-S", keeper.__file__, "--", *command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=processes.environment,
        start_new_session=True,
        bufsize=0,
    )


def start_stubborn(processes: Marked) -> subprocess.Popen[bytes]:
    kept = start(processes, sys.executable, "-c", STUBBORN, "the-program")
    assert kept.stdout is not None
    assert kept.stdout.readline() == b"ready\n"
    assert processes.alive("stubborn-core")
    return kept


def test_the_programs_status_is_the_keepers(processes: Marked) -> None:
    with start(processes, "sh", "-c", "exit 3") as kept:
        assert kept.wait() == 3
    with start(processes, "sh", "-c", "kill -9 $$") as kept:
        assert kept.wait() == 128 + 9


def test_a_program_that_cannot_be_run_is_127_with_a_sentence(processes: Marked) -> None:
    with start(processes, "/nowhere/at-all") as kept:
        assert kept.stderr is not None
        assert kept.stderr.read() == b"/nowhere/at-all: cannot be run: No such file or directory\n"
        assert kept.wait() == 127


def test_sigterm_is_passed_on_and_the_program_takes_its_time(processes: Marked) -> None:
    with start(processes, "sh", "-c", "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done") as kept:
        assert kept.stdout is not None
        assert kept.stdout.readline() == b"ready\n"
        kept.send_signal(signal.SIGTERM)
        assert kept.stdout.readline() == b"saved\n"
        assert kept.wait() == 5


def test_a_lost_owner_ends_everything(processes: Marked) -> None:
    with start_stubborn(processes) as kept:
        assert kept.stdin is not None
        kept.stdin.close()
        assert kept.wait() == 128 + signal.SIGKILL
        assert processes.gone()


def test_a_byte_ends_everything_without_a_grace(processes: Marked) -> None:
    with start_stubborn(processes) as kept:
        assert kept.stdin is not None
        kept.stdin.write(b"!")
        kept.wait(keeper.GRACE_SECONDS)
        assert processes.gone()


def test_a_killed_program_leaves_no_grandchild(processes: Marked) -> None:
    with start_stubborn(processes) as kept:
        (program,) = (p for p in processes.alive("the-program") if p.pid != kept.pid)
        program.kill()
        assert kept.wait() == 128 + signal.SIGKILL
        assert processes.gone()


def test_a_killed_keeper_takes_the_program_with_it(processes: Marked) -> None:
    with start(processes, sys.executable, "-c", "print('ready', flush=True); input()", "the-program") as kept:
        kept.kill()
        kept.wait()
        until(processes.gone, "the kernel ends the program")


def test_the_program_is_alone_in_its_session_and_has_no_input(processes: Marked) -> None:
    script = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '', sorted(os.listdir('/proc/self/fd')))"
    with start(processes, sys.executable, "-c", script) as kept:
        assert kept.stdout is not None
        # 3 is the listing's own descriptor: neither the owner's pipe nor the keeper's came along.
        assert kept.stdout.read() == b"True True ['0', '1', '2', '3']\n"


def test_signals_are_as_a_program_expects_them(processes: Marked) -> None:
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status"
    with start(processes, "sh", "-c", script) as kept:
        assert kept.stdout is not None
        blocked, ignored = (int(line.split()[1], 16) for line in kept.stdout.read().splitlines())
        assert blocked == 0
        assert ignored & ~ignored_here() == 0


def ignored_here() -> int:
    """What this process was started with, as SIGQUIT by a shell's `&`, without what Python ignores, which the keeper resets."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn:"))
    pythons = sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))
    return int(line.split()[1], 16) & ~pythons


def test_it_runs_as_a_module_and_explains_itself() -> None:
    result = subprocess.run(
        (sys.executable, "-m", "serving.engines.keeper"), capture_output=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (result.returncode, result.stderr) == (2, b"usage: python -m serving.engines.keeper -- COMMAND...\n")


def test_it_needs_only_the_standard_library(processes: Marked) -> None:
    # -S leaves the path without site-packages: any other import ends in a traceback.
    with start(processes, "true") as kept:
        assert kept.stderr is not None
        assert (kept.stderr.read(), kept.wait()) == (b"", 0)


def test_descendants_spare_a_branch(processes: Marked) -> None:
    with start_stubborn(processes) as kept:
        below = keeper.descendants(os.getpid())
        assert kept.pid in below
        assert len(keeper.descendants(kept.pid)) == 2
        assert kept.pid not in keeper.descendants(os.getpid(), spare=[kept.pid])
        assert not set(keeper.descendants(os.getpid(), spare=[kept.pid])) & set(keeper.descendants(kept.pid))
