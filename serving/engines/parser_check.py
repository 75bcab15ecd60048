"""The installed vLLM's own parser as the judge of a command line, for versions without a snapshot in the catalog.

Run as a module it is the short-lived child: importing vLLM takes seconds and must not happen in this process.
"""

from __future__ import annotations

import json
import subprocess
import sys

from serving.catalog.argv import EngineCommand
from serving.catalog.load import nearest
from serving.core.errors import ConfigurationError
from serving.engines.model_store import Report
from serving.settings import child_environment

TIMEOUT_SECONDS = 120.0


def check_with_engine_parser(command: EngineCommand, report: Report) -> None:
    """Let the installed vLLM parse the command line.

    Raises:
        ConfigurationError: with the parser's own complaint and the nearest flag.
    """
    report("checking the command line with the installed vLLM, since the catalog has no snapshot of its version")
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, *command.argv],
            env=child_environment(command.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"vLLM did not parse its command line within {TIMEOUT_SECONDS:.0f} s") from None
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    complaint = lines[-1].partition("error: ")[2] or lines[-1] if lines else "it did not say why"
    raise ConfigurationError(f"vLLM refuses the command line: {complaint}{_hint(complaint, done.stdout)}")


def _hint(complaint: str, printed: str) -> str:
    try:
        known = json.loads(printed.splitlines()[0]) if printed else []
    except ValueError:
        return ""
    unknown = [word for word in complaint.split() if word.startswith("--")]
    return nearest(unknown[0], known) if unknown and "unrecognized" in complaint else ""


def _main() -> None:
    """Print the parser's flags as one line of JSON, then parse; argparse exits with status 2 on an error."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm"))  # type: ignore[no-untyped-call, unused-ignore]
    flags = [option for action in parser._actions for option in action.option_strings]
    sys.stdout.write(json.dumps(flags) + "\n")
    words = sys.argv[1:]
    parser.parse_args(words[words.index("--model") :] if "--model" in words else words[2:])


if __name__ == "__main__":
    _main()
