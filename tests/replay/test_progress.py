from __future__ import annotations

from io import StringIO

from rich.console import Console

from serving.replay.progress import LiveProgress
from tests.replay.samples import a_sample, seen


def shown(*, is_terminal: bool) -> str:
    output = StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=150)
    data = seen(*(a_sample(number / 10) for number in range(30)), ended=30, failed=2)
    with LiveProgress(console) as progress:
        progress.phase("measuring", 10.0)
        progress.show(data, 5.0, total_seconds=10.0, settle_seconds=0.0)
    return output.getvalue()


def test_a_terminal_sees_where_the_run_is() -> None:
    text = shown(is_terminal=True)
    for words in ("measuring, 10 requests/s, poisson", "30 sent, 30 ended, 2 failed", "TTFT 100 ms", "cached 60%"):
        assert words in text


def test_elsewhere_it_is_quiet() -> None:
    assert shown(is_terminal=False) == ""
