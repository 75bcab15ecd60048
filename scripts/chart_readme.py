"""The chart's README.md: its values with their meaning and default, out of the comments of values.yaml and the types of a pool.

`make catalog` writes it, and a test fails while it differs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from chart_values import Closed, Place, Pool, PoolGate, PoolScaling

INTRODUCTION = """# serving

vLLM engines on your node pools behind one OpenAI-compatible address: any number of pools, on AMD Instinct, NVIDIA and CPUs, in
one release. This page is made from `values.yaml` and the chart's types by `make catalog`; how to install it is in the
[README of the project](../../README.md#kubernetes), and what differs between clusters in [`deploy/`](../../deploy/README.md).

    helm install serving helm/serving --namespace serving --create-namespace --values mine.yaml

A key that is not here is refused, and so is a wrong type or a contradiction, with its path and what would be right.

## A pool

Each entry of `pools`. What is left out is the profile's.

| Key | Type | Meaning |
|---|---|---|
"""
KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?: (?P<value>.*))?$")


def readme(values: str, schema: dict[str, Any]) -> str:
    """`values`: the text of values.yaml; `schema`: its JSON schema."""
    rows = [_pool_row(name, schema) for name in Pool.model_fields]
    places = [f"- `{name}`: {_plain(field.description or Place.__doc__ or '')}" for name, field in _place_fields()]
    scaling = [
        f"`{name}`" + (f" ({_plain(field.description)})" if field.description else "")
        for name, field in PoolScaling.model_fields.items()
    ]
    text = INTRODUCTION + "\n".join(rows)
    text += "\n\nA place is exactly one of `pod: {}`, `node: {…}` and `claim: {…}`, with\n\n" + "\n".join(places)
    gate = [f"- `gate.{name}`: {_plain(field.description or '')}" for name, field in PoolGate.model_fields.items()]
    text += "\n\n`autoscaling` has " + ", ".join(scaling) + ".\n\n`gate` has\n\n" + "\n".join(gate)
    text += "\n\n## Values\n\n| Key | Default | Meaning |\n|---|---|---|\n"
    return text + "\n".join(f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _values(values)) + "\n"


def _place_fields() -> list[tuple[str, Any]]:
    found = []
    for name in ("node", "claim"):
        model = Place.model_fields[name].annotation
        assert isinstance(model, type) and issubclass(model, Closed)
        found += [(f"{name}.{inner}", field) for inner, field in model.model_fields.items() if field.description]
    return found


def _pool_row(name: str, schema: dict[str, Any]) -> str:
    described = schema["definitions"]["Pool"]["properties"][name]
    return f"| `{name}` | {_type(described)} | {_plain(Pool.model_fields[name].description or '')} |"


def _type(described: dict[str, Any]) -> str:
    if "$ref" in described:
        return {
            "Place": "a place",
            "PoolScaling": "object",
            "PoolGate": "object",
            "EngineImage": "object",
            "Resources": "object",
        }[described["$ref"].rpartition("/")[2]]
    if "enum" in described:
        return " or ".join(described["enum"])
    return {"string": "text", "integer": "number", "boolean": "true or false", "array": "list", "object": "map"}[
        described["type"]
    ]


def _values(text: str) -> list[tuple[str, str, str]]:
    """Every key with a comment or a plain value: its path, its default, and the comment above it."""
    path: list[tuple[int, str]] = []
    comments: list[str] = []
    found = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comments.append(line.strip().lstrip("# "))
            continue
        match = KEY.match(line)
        if match is None:
            comments = []
            continue
        indent = len(match["indent"])
        path = [entry for entry in path if entry[0] < indent] + [(indent, match["key"])]
        name, value = ".".join(key for _, key in path), (match["value"] or "").partition(" #")[0].strip()
        if (value or comments) and not name.startswith("pools"):
            found.append((name, f"`{value}`" if value else "", _plain(" ".join(comments))))
        comments = []
    return found


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def chart_readme(chart: Path, schema: dict[str, Any]) -> str:
    return readme((chart / "values.yaml").read_text(encoding="utf-8"), schema)
