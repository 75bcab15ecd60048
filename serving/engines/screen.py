"""What `serving up` shows: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

LINE_PERIOD_SECONDS = 5.0

# In each line the first entry that matches counts; words as vLLM's log writes them.
_PHASES = (
    ("starting the engine's core", ("Initializing a V1 LLM engine",)),
    (
        "starting the server",
        (
            "init engine (profile",
            "Starting vLLM server",
            "Available routes",
            "Route: ",
            "server process",
            "Application startup",
        ),
    ),
    (
        "compiling",
        ("Warming up", "warming up", "Compiling", "Dynamo bytecode", "torch.compile took", "Capturing", "Graph capturing"),
    ),
    ("allocating the cache", ("KV cache", "GPU blocks")),
    ("loading weights", ("Starting to load model", "Loading ", "Model loading took")),
)


def phase_of(log_tail: list[str]) -> str | None:
    """What a starting engine does, by the last line of its log that tells; None when no line does."""
    for line in reversed(log_tail):
        for phase, words in _PHASES:
            if any(word in line for word in words):
                return phase
    return None


class ConsoleScreen:
    """Writes to a terminal or a file; lines are never broken, so that commands can be pasted."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console = console
        self._errors = errors
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._line_at_seconds = 0.0
        self._phase = "starting"

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def fail(self, text: str) -> None:
        self.started()
        self._errors.print(text, markup=False, highlight=False, soft_wrap=True)

    def starting(self, seconds: float, log_tail: list[str]) -> None:
        phase = phase_of(log_tail) or self._phase
        text = f"engine: {phase}, {seconds:.0f} s"
        if self._console.is_terminal:
            self._show_live(text)
        elif phase != self._phase or seconds >= self._line_at_seconds:
            self._line_at_seconds = seconds + LINE_PERIOD_SECONDS
            self.say(text)
        self._phase = phase

    def _show_live(self, text: str) -> None:
        if self._live is None:
            # Without its own thread: the loop that calls is the refresh.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._spinner.update(text=text)
        self._live.update(self._spinner, refresh=True)

    def started(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
