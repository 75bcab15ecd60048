"""Are a profile's flags and variables the engine's own? Checked against the snapshot of its version, without the engine."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any

from serving.catalog.load import nearest
from serving.catalog.model import Catalog, Flag, Profile, Removed, Vocabulary

SIZE = re.compile(r"\d+[KMGT]?|\d+(\.\d+)?[kmgt]")
SIZE_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ENGINE_PREFIX = "VLLM_"


def check(catalog: Catalog, profile: Profile) -> list[str]:
    """The problems of a profile's arguments and environment, each a sentence that names what would be right.

    Nothing is found for an engine version without a snapshot; `catalog.vocabularies` tells whether there is one.
    """
    vocabulary = catalog.vocabularies.get(profile.engine_version)
    if vocabulary is None:
        return []
    problems = [_flag_problem(name, value, vocabulary, catalog) for name, value in profile.arguments.items()]
    found = [f"arguments.{problem}" for problem in problems if problem]
    others = [other for other in catalog.vocabularies.values() if other is not vocabulary]
    unknown = environment_problems(profile.environment, vocabulary, catalog.removed, others)
    return found + [f"environment.{problem}" for problem in unknown]


def environment_problems(
    names: Iterable[str], vocabulary: Vocabulary, removed: Removed, others: Iterable[Vocabulary] = ()
) -> list[str]:
    """Those of `names` that begin like the engine's variables and are none; the engine refuses to start with them.

    `others` are the other versions' vocabularies, to say which of them has such a name.
    """
    others = list(others)
    problems = []
    for name in names:
        if name.startswith(ENGINE_PREFIX) and name not in vocabulary.environment:
            elsewhere = _has_it(other.version for other in others if name in other.environment)
            hint = f"; {removed.environment[name]}" if name in removed.environment else elsewhere
            hint = hint or _nearest_variable(name, vocabulary)
            problems.append(f"{name}: is not a variable of vLLM {vocabulary.version}{hint}")
    return problems


def size_bytes(value: object) -> int | None:
    """A size as vLLM reads it: `4096`, `"4k"` = 4,000, `"4K"` = 4,096; None where it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not SIZE.fullmatch(value):
        return None
    if value[-1] in SIZE_UNITS:
        return int(float(value[:-1]) * SIZE_UNITS[value[-1]])
    return int(value)


def _nearest_variable(name: str, vocabulary: Vocabulary) -> str:
    """Compared without the prefix, which all have and which would make any two look alike."""
    stems = {known.removeprefix(ENGINE_PREFIX): known for known in vocabulary.environment}
    match = difflib.get_close_matches(name.removeprefix(ENGINE_PREFIX), sorted(stems), n=1, cutoff=0.6)
    return f"; did you mean {stems[match[0]]}?" if match else ""


def _has_it(versions: Iterable[str]) -> str:
    """A hint that names the versions that do have a name, or nothing."""
    listed = " and ".join(sorted(versions))
    return f"; vLLM {listed} has it: leave it out, or take an image of that version" if listed else ""


def _flag_problem(name: str, value: Any, vocabulary: Vocabulary, catalog: Catalog) -> str | None:
    flag = vocabulary.flags.get(name)
    if flag is not None:
        wrong = _value_problem(flag, value)
        return f"{name}: {wrong}" if wrong else None
    positive = name.removeprefix("no-")
    if positive != name and positive in vocabulary.flags:
        return f"{name}: write {positive}: false"
    removed = catalog.removed.flags
    elsewhere = _has_it(other.version for other in catalog.vocabularies.values() if name in other.flags)
    hint = f"; {removed[name]}" if name in removed else elsewhere or nearest(name, vocabulary.flags)
    return f"{name}: is not a flag of vLLM {vocabulary.version}{hint}"


def _value_problem(flag: Flag, value: Any) -> str | None:
    if flag.kind == "boolean":
        return None if isinstance(value, bool) else f"must be true or false, not {value!r}"
    if flag.kind == "switch":
        return None if value is True else f"must be true or be left out, not {value!r}"
    if flag.many or flag.repeated:
        values = value if isinstance(value, list) else [value]
        return next((wrong for item in values if (wrong := _single_problem(flag, item))), None)
    if isinstance(value, list) and flag.kind != "json":
        return "must be one value, not a list"
    return _single_problem(flag, value)


def _single_problem(flag: Flag, value: Any) -> str | None:
    if flag.kind == "json":
        return _json_problem(value)
    if isinstance(value, bool | dict | list):
        return f"must be {_expected(flag)}, not {value!r}"
    if flag.choices and value not in flag.choices and str(value) not in flag.choices:
        return f"{value!r} is not a choice{nearest(str(value), map(str, flag.choices))}; there are: {_listed(flag.choices)}"
    fits = {
        "integer": isinstance(value, int),
        "number": isinstance(value, int | float),
        "size": size_bytes(value) is not None,
        "text": True,
    }[flag.kind]
    return None if fits else f"must be {_expected(flag)}, not {value!r}"


def _json_problem(value: Any) -> str | None:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(value)
    except ValueError as error:
        return f"is not JSON: {error}"
    return None


def _expected(flag: Flag) -> str:
    names = {"integer": "a whole number", "number": "a number", "text": "text"}
    return names.get(flag.kind, "a whole number, or one with k, m, g, t (decimal) or K, M, G, T (binary) behind it")


def _listed(choices: tuple[str | int, ...]) -> str:
    return ", ".join(str(choice) for choice in choices)
