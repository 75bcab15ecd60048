"""The highest memory of an engine's processes while it is asked, where they run on this machine (Linux)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from serving.core.errors import ConfigurationError

PROC = Path("/proc")
_RESET_PEAK = "5"


class Watch:
    """From its making to `peak`: each process's own highest resident memory, summed; an upper bound of the sum's highest."""

    def __init__(self, pid: int | None, proc: Path = PROC) -> None:
        """Raises: ConfigurationError when there is no such process."""
        self._pid = pid
        self._proc = proc
        self._is_reset = True
        if pid is None:
            return
        if not (proc / str(pid) / "status").exists():
            raise ConfigurationError(f"--engine-pid: there is no process {pid} on this machine")
        for member in self._family():
            try:
                (proc / str(member) / "clear_refs").write_text(_RESET_PEAK)
            except OSError:
                self._is_reset = False

    def peak(self) -> tuple[int | None, str]:
        """Bytes, and in words what they are; None where nothing can be seen."""
        if self._pid is None:
            return None, "not visible over HTTP; --engine-pid shows it for an engine on this machine"
        family = self._family()
        peaks = [peak for peak in map(self._peak_bytes, family) if peak is not None]
        if not peaks:
            return None, "the engine's processes are gone"
        since = "during the run" if self._is_reset else "since they started"
        return sum(peaks), f"{len(peaks)} processes of the engine, highest resident memory of each {since}"

    def _family(self) -> list[int]:
        found = [int(self._pid or 0)]
        for member in found:
            for path in (self._proc / str(member) / "task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(word) for word in path.read_text().split()]
        return found

    def _peak_bytes(self, pid: int) -> int | None:
        try:
            lines = (self._proc / str(pid) / "status").read_text().splitlines()
        except OSError:
            return None
        line = next((line for line in lines if line.startswith("VmHWM:")), None)
        return int(line.split()[1]) * 1024 if line else None
