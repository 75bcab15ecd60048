"""Draws the dashboards over two simulated targets under load.

python -m tests.chart.draw_boards FOLDER [MINUTES]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chart.dashboards import RULES
from tests.chart.observed_fleet import observed_fleet
from tests.doubles.prometheus import running_prometheus
from tests.doubles.tools import ROOT

NOTE = "simulated engines: no figure here is a measurement"


def shown_minutes(minutes: float) -> float:
    """Without the first five, in which a rate over five minutes is not whole yet, where the run is long enough for that."""
    return minutes - 5.4 if minutes > 7 else minutes - 0.4


async def main(folder: str, minutes: float) -> None:
    async with observed_fleet(measures_power=False) as fleet:
        with (
            tempfile.TemporaryDirectory() as scratch,
            running_prometheus("prometheus-3", Path(scratch), fleet.scrape, RULES) as server,
        ):
            await asyncio.sleep(minutes * 60)
            command = [
                sys.executable,
                str(ROOT / "scripts" / "pictures" / "draw.py"),
                "--prometheus",
                server.url,
                "--out",
                folder,
            ]
            command += ["--minutes", f"{shown_minutes(minutes)}", "--note", NOTE]
            await asyncio.to_thread(subprocess.run, command, check=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 4.0))
