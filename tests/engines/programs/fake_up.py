"""Supervises the fake engine and, as the gateway, a second one: `ENGINE_PORT GATEWAY_PORT LOG_DIR [WORD…]`.

The words go to the engine; `brief` gives it half a second to stop, `gateway-exit-2` goes to the gateway.
"""

import os
import sys
from pathlib import Path

from rich.console import Console

from serving.engines.kept import Program, answers_ok
from serving.engines.screen import ConsoleScreen
from serving.engines.supervise import StopSignals, Supervisor

engine_port, gateway_port, log_dir = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
fake = str(Path(__file__).with_name("fake_engine.py"))


def program(name: str, port: int, words: list[str], first_delay_seconds: float) -> Program:
    return Program(
        name=name,
        argv=(sys.executable, fake, str(port), *words),
        environment=dict(os.environ),
        log_path=log_dir / f"{name}.log",
        host="127.0.0.1",
        port=port,
        ready_path="/health",
        stop_seconds=0.5 if "brief" in words else 60.0,
        first_delay_seconds=first_delay_seconds,
    )


gateway_words = ["exit-2"] if "gateway-exit-2" in sys.argv else []
engine = program("engine", engine_port, sys.argv[4:], first_delay_seconds=1.0)
gateway = program("gateway", gateway_port, gateway_words, first_delay_seconds=0.0)
with StopSignals().caught() as signals:
    supervisor = Supervisor(
        engine,
        gateway,
        screen=ConsoleScreen(Console(file=sys.stdout), Console(file=sys.stderr)),
        signals=signals,
        serves=lambda: answers_ok("127.0.0.1", gateway_port, "/readyz"),
        announcement="All ready.",
    )
    status = supervisor.run()
sys.exit(status)
