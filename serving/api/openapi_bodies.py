"""Schemas of the bodies that routes of engines take: what the gateway itself asks of them, and no more.

Rules on sums (all images of all documents, all bytes of a name in UTF-8) are told in words where JSON Schema has none for them.
"""

from __future__ import annotations

from typing import Any

from serving.core.routes import Counted, Field, Route
from serving.engines.body import STREAM_SWITCHES
from serving.engines.form import NAME
from serving.engines.form_body import NO, SWITCHES, YES
from serving.settings import ParameterLimits

Json = dict[str, Any]

KIND_NAMES: dict[type, str] = {str: "string", int: "integer", list: "array", dict: "object", bool: "boolean"}
_NOT_NULL: Json = {"type": ["array", "boolean", "number", "object", "string"]}
_TURN: Json = {"type": "object", "required": ["role"], "properties": {"role": {"type": "string"}}}
_MOST_FORM_INTEGER = 10**18 - 1


def body_content(route: Route, limits: ParameterLimits) -> Json:
    """A route's body by its media type."""
    if route.form:
        return {"multipart/form-data": {"schema": form_schema(limits)}}
    return {"application/json": {"schema": body_schema(route, limits)}}


def body_schema(route: Route, limits: ParameterLimits) -> Json:
    """What the gateway asks of a JSON body. Members that are not here pass to the engine unjudged."""
    properties: Json = {"model": {"type": "string", "description": "One of `GET /v1/models`."}}
    properties |= {"stream": {"type": ["boolean", "null"]}, "cache_salt": {"type": ["string", "null"]}}
    properties |= {name: _bounded(name, *bounds) for name, bounds in limits.bounds.items()}
    for field in route.required:
        kinds = [*_kinds(field), *(["null"] if field.instead else [])]
        described: Json = {"type": kinds[0] if len(kinds) == 1 else kinds, "description": f"Must be {field.words}."}
        properties[field.name] = properties.get(field.name, {}) | described
    for counted in route.counted:
        described = properties.get(counted.name, {})
        most: int = getattr(limits, counted.limit)
        words = f"{described.get('description', '')} At most {most} {counted.limit}, and each part of one counts.".lstrip()
        properties[counted.name] = described | _counted(counted, most) | {"description": words}
    if route.usage_option:
        switches: Json = {name: {"type": ["boolean", "null"]} for name in STREAM_SWITCHES}
        properties["stream_options"] = {"type": ["object", "null"], "properties": switches}
    properties |= {name: {"enum": [None, False], "description": route.refused_words} for name in route.refused}
    required = ["model", *(field.name for field in route.required if not field.instead)]
    schema: Json = {"type": "object", "required": required, "properties": properties}
    either = [{"anyOf": _alternatives(field)} for field in route.required if field.instead]
    return schema | ({"allOf": either} if either else {})


def form_schema(limits: ParameterLimits) -> Json:
    """What the gateway asks of a form with a sound file."""
    text: Json = {"type": "string", "maxLength": limits.form_field_bytes}
    properties: Json = {"model": text | {"minLength": 1, "description": "One of `GET /v1/models`; best before the file."}}
    properties |= {"file": {"type": "string", "contentMediaType": "application/octet-stream"}}
    properties |= {name: {"type": "string", "pattern": _switch_pattern()} for name in SWITCHES}
    properties |= {name: _bounded_text(*bounds) for name, bounds in limits.bounds.items()}
    return {
        "type": "object",
        "description": f"At most {limits.form_fields} fields, and {limits.form_field_bytes} bytes in each that is no file; "
        "only names that end with `[]` come more than once.",
        "required": ["model", "file"],
        "properties": properties,
        "patternProperties": {r"\[\]$": {"type": "array", "items": text}},
        "additionalProperties": text,
        "propertyNames": {"pattern": f"^{NAME}$"},
        "maxProperties": limits.form_fields,
    }


def _kinds(field: Field) -> list[str]:
    return [KIND_NAMES[kind] for kind in field.kinds]


def _alternatives(field: Field) -> list[Json]:
    """A field or one of those that may stand in its place, whose kind the gateway does not judge; null is as good as none."""
    return [{"required": [name], "properties": {name: _NOT_NULL}} for name in (field.name, *field.instead)]


def _counted(counted: Counted, most: int) -> Json:
    """How many items a field may have, and how many parts it or one of them."""
    parts: Json = {"properties": {"content": {"maxItems": most}}}
    if counted.limit == "documents":
        return {"maxItems": most, "items": parts} | parts
    # A list of tokens is one prompt, and a conversation one input, of any length.
    return {"anyOf": [{"maxItems": most}, {"items": {"type": "integer"}}, {"items": _TURN}]} | parts


def _bounded(name: str, least: int, most: int | None) -> Json:
    if most is not None and most < least:
        return {"type": "null"}
    # In chat `logprobs` is a switch; its number is `top_logprobs`.
    kinds = ["integer", "boolean", "null"] if name == "logprobs" else ["integer", "null"]
    return {"type": kinds, "minimum": least} | ({} if most is None else {"maximum": most})


def _bounded_text(least: int, most: int | None) -> Json:
    """An integer that is written in a form, which knows no null."""
    if most is not None and most < least:
        return {"not": {}}
    return {"type": "integer", "minimum": least, "maximum": _MOST_FORM_INTEGER if most is None else most}


def _switch_pattern() -> str:
    """The words for yes and no, in capital letters or not."""
    words = (
        "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in word) for word in sorted(YES | NO)
    )
    return f"^({'|'.join(words)})$"
