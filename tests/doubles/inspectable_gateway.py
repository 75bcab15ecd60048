"""The gateway's own program, with one addition: on SIGUSR1 it writes down what it still holds of requests.

python -m tests.doubles.inspectable_gateway HOLDINGS_FILE CONFIG_FILE
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from serving.app import run_gateway
from serving.settings import load_settings
from tests.doubles.held_ids import held_ids


def main() -> int:
    holdings, config = Path(sys.argv[1]), Path(sys.argv[2])

    def write_down(_: int, __: FrameType | None) -> None:
        unfinished = holdings.with_suffix(".part")
        unfinished.write_text(json.dumps(held_ids()))
        unfinished.replace(holdings)

    signal.signal(signal.SIGUSR1, write_down)
    return run_gateway(load_settings(config))


if __name__ == "__main__":
    sys.exit(main())
