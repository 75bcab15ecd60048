"""YAML files without YAML's traps: plain text, numbers, lists and mappings come out, whatever else is said is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from serving.core.errors import ConfigurationError

MOST_INTEGER = 2**63
"""Beyond it no field has a meaning, and Python itself refuses to print some."""
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")
_PLAIN = ("str", "int", "float", "bool", "null", "seq")


class _Loader(yaml.SafeLoader):
    """A key given twice is an error, a date is text, and only plain types exist."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):
            # The library's own constructors trust that a tag which was written out fits its text.
            raise _refusal(f"a value is not of the type {node.tag.rpartition(':')[2]}", node) from None
        if isinstance(value, int) and abs(value) >= MOST_INTEGER:
            raise _refusal("a number is too large", node)
        if isinstance(value, str) and _FORBIDDEN.search(value):
            raise _refusal("a text holds NUL or half a surrogate pair, which nothing can take", node)
        return value


def _refusal(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            shown = f"the key {key!r}" if isinstance(key_node, yaml.ScalarNode) else "a key"
            raise _refusal(f"{shown} is not text; quote it", key_node)
        if key in seen:
            raise _refusal(f"the key {key!r} is given twice", key_node)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _date_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _unknown_type(_: _Loader, node: yaml.Node) -> Any:
    raise _refusal("a tag (!) names a type that is not known here; quote text that begins with !", node)


_Loader.yaml_constructors = {
    **{f"tag:yaml.org,2002:{name}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{name}"] for name in _PLAIN},
    "tag:yaml.org,2002:map": _mapping,
    "tag:yaml.org,2002:timestamp": _date_text,
    None: _unknown_type,
}


def read_yaml(path: Path) -> Any:
    """What the file holds; None when it is empty.

    Raises:
        ConfigurationError: one sentence with the file and, where there is one, the line; never a value, which may be a secret.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "its structure is wrong"
        if problem.startswith(("found undefined", "found duplicate")):
            problem = problem.partition("'")[0].rstrip() + "; quote text that begins with *, & or !"
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigurationError(f"{path}: is not YAML: {problem}{line}") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: is not YAML: it holds special characters that YAML does not allow") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not YAML: it is not UTF-8 text") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is not YAML: it is nested too deeply") from None
