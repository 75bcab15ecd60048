"""Waits until the accelerators that this pod was given are free: their last engine's memory is given back some time after it.

    python3 wait_for_memory.py SECONDS

Reads what the kernel says of each device in /dev/dri; without such devices there is nothing to wait for, and that is an error,
since the pod was to have some. A plain file: standard library only, Python 3.10 and later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DEVICES = Path("/dev/dri")
KERNEL = Path("/sys/class/drm")
USED_SHARE = 0.1
"""A free device holds a little for itself."""
PERIOD_SECONDS = 2.0


class NoDevice(Exception):
    """The message is a sentence without a full stop."""


def main(
    arguments: Sequence[str],
    devices: Path = DEVICES,
    kernel: Path = KERNEL,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Returns the exit status: 0 all are free, 1 they are not in time or there are none, 2 the call is wrong."""
    try:
        (seconds,) = map(float, arguments)
    except ValueError:
        print(f"usage: {(__doc__ or '').splitlines()[2].strip()}", file=sys.stderr)
        return 2
    deadline = clock() + seconds
    said = ""
    while True:
        try:
            shares = used_shares(devices, kernel)
        except NoDevice as error:
            print(f"wait_for_memory: {error}", file=sys.stderr)
            return 1
        busy = {name: share for name, share in shares.items() if share > USED_SHARE}
        if not busy:
            print(f"{len(shares)} devices are free", flush=True)
            return 0
        words = ", ".join(f"{name} {share:.0%}" for name, share in busy.items())
        if clock() >= deadline:
            print(f"wait_for_memory: after {seconds:g} s memory is still in use: {words}", file=sys.stderr)
            return 1
        if words != said:
            print(f"waiting for memory: {words}", flush=True)
        said = words
        sleep(PERIOD_SECONDS)


def used_shares(devices: Path, kernel: Path) -> dict[str, float]:
    """Device → the share of its memory that is in use. Raises: NoDevice."""
    shares = {}
    for device in sorted(devices.glob("renderD*")):
        folder = kernel / device.name / "device"
        try:
            used, total = (int((folder / f"mem_info_vram_{what}").read_text()) for what in ("used", "total"))
        except (OSError, ValueError):
            raise NoDevice(f"{folder} does not say how much memory is in use; is the driver loaded on this node?") from None
        shares[device.name] = used / total if total else 0.0
    if not shares:
        raise NoDevice(f"{devices} holds no renderD*: the device plugin gave this pod no accelerator")
    return shares


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
