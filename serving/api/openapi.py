"""The OpenAPI document of a gateway, made from what it acts on: its routes, their fields, its settings.

What is not here is not published. Bodies are described as far as the gateway itself reads them; all else passes to the engine,
which may still refuse it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import serving
from serving.api.openapi_bodies import body_content
from serving.api.openapi_schemas import ANSWERS, ERROR_NAMES, HEADERS, OWN_ROUTES, SCHEMAS, OwnRoute, reference
from serving.core.routes import OPENAI, ROUTES, Dialect, Route
from serving.settings import ParameterLimits, Settings

Json = dict[str, Any]

TITLE = "serving"
VERSION = "3.1.0"

_BEFORE_THE_ROUTE = frozenset((400, 408, 414, 431, 503))
"""What can be wrong before it is known which route is asked for; the error then is OpenAI's, and has no id."""
_EVERYWHERE = (400, 405, 408, 414, 431, 500, 503)
_FROM_ENGINES = (404, 413, 415, 429, 502, 504)
STATUSES: Mapping[int, str] = {
    400: "The request is wrong; in OpenAI's form `param` names the field.",
    401: "The key is missing or not known.",
    404: "There is no such model, or its engine does not support this route.",
    405: "The route does not take this method; `Allow` names those it takes.",
    408: "The request did not arrive in time.",
    413: "The body is larger than {body_bytes} bytes, as sent or decompressed.",
    414: "The URL is longer than {url_bytes} bytes.",
    415: "The body is not JSON, or is compressed in a way other than gzip and deflate.",
    429: "The gateway or its engines are full, or a limit of the tenant is used up.",
    431: "The header fields are longer than {header_bytes} bytes or more than {header_count}.",
    500: "The gateway failed.",
    502: "An engine failed before the first byte of its answer.",
    503: "No engine of the model is ready, the gateway has too many connections, or it is going away.",
    504: "An engine did not begin its answer in time, or the request's own time was over.",
}


def document(settings: Settings, own: Iterable[tuple[str, Collection[str]]]) -> Json:
    """The document of a gateway with these settings. `own`: path and methods of the routes that it answers by itself."""
    limits = settings.limits
    words = {status: text.format_map(dict(limits)) for status, text in STATUSES.items()}
    secured = settings.auth.api_key is not None or bool(settings.auth.keys)
    operations = _Operations(words, secured)
    paths: dict[str, Json] = {route.path: {"post": operations.of_engines(route, limits.parameters)} for route in ROUTES.values()}
    for template, methods in own:
        path = template.replace(":path}", "}")
        item = paths.setdefault(path, {})
        item |= {method.lower(): operations.of_gateway(OWN_ROUTES[path], method) for method in sorted(methods)}
    components: Json = {"schemas": SCHEMAS, "headers": HEADERS, "responses": operations.responses}
    return {
        "openapi": VERSION,
        "info": {
            "title": TITLE,
            "version": serving.__version__,
            "summary": "OpenAI's and Anthropic's APIs in front of vLLM engines.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components | ({"securitySchemes": _SECURITY} if secured else {}),
    }


_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ID_PARAMETER: Json = {
    "name": "x-request-id",
    "in": "header",
    "description": "Engines and answers carry it. One that is not of the form that answers have is replaced.",
    "schema": {"type": "string"},
}
_TIMEOUT_PARAMETER: Json = {
    "name": "x-request-timeout",
    "in": "header",
    "description": "Seconds that the request gives itself, its wait in a queue included. The gateway's own limit holds, too.",
    "schema": {"type": "string", "pattern": r"^(?!0+(\.0+)?$)[0-9]{1,9}(\.[0-9]{1,9})?$"},
}


class _Operations:
    """Makes operation objects, and gathers the error responses that they refer to; `words` says what each status means."""

    def __init__(self, words: Mapping[int, str], secured: bool) -> None:
        self.responses: Json = {}
        self._words = words
        self._secured = secured

    def of_engines(self, route: Route, limits: ParameterLimits) -> Json:
        dialect = route.dialect
        statuses = (*_EVERYWHERE, *_FROM_ENGINES, *((401,) if self._secured else ()))
        answer: Json = {"application/json": {"schema": ANSWERS.get(route.name, {"type": "object"})}}
        if route.form:
            answer["text/plain"] = {"schema": {"type": "string"}}
        if route.usage_header is not None:
            answer["application/octet-stream"] = {}
        if route.streams:
            answer["text/event-stream"] = {"schema": _event(dialect)}
        headers = _id_headers(dialect) | {"x-serving-dropped-fields": _header("x-serving-dropped-fields")}
        responses: Json = {"200": {"description": "The engine's answer.", "headers": headers, "content": answer}}
        responses |= self._errors(statuses, dialect)
        return {
            "operationId": route.name,
            "tags": [dialect.name],
            "parameters": [_ID_PARAMETER, _TIMEOUT_PARAMETER],
            "requestBody": {"required": True, "content": body_content(route, limits)},
            "responses": responses,
        } | self._security(dialect)

    def of_gateway(self, route: OwnRoute, method: str) -> Json:
        has_body = method != "HEAD"
        needs_key = self._secured and route.wants_key
        statuses = {*_EVERYWHERE, *route.statuses, *((401,) if needs_key else ())}
        responses: Json = {"200": _described("The answer.", _id_headers(), route.answer if has_body else None)}
        responses |= self._errors(statuses, has_body=has_body)
        if route.unready is not None:
            content = {"application/json": {"schema": route.unready}} if has_body else None
            responses["503"] = _described("Not ready.", _id_headers(), content)
        parameters = [_ID_PARAMETER, *route.parameters]
        operation: Json = {"operationId": f"{method.lower()}_{route.name}", "summary": route.summary, "tags": [route.tag]}
        return operation | {"parameters": parameters, "responses": responses} | (self._security() if needs_key else {})

    def _security(self, dialect: Dialect = OPENAI) -> Json:
        if not self._secured:
            return {}
        schemes = ["bearer"] if dialect.key_header is None else ["bearer", dialect.key_header.decode("ascii")]
        return {"security": [{scheme: []} for scheme in schemes]}

    def _errors(self, statuses: Iterable[int], dialect: Dialect = OPENAI, *, has_body: bool = True) -> Json:
        """References to the errors by status; each error is described once for all operations."""
        shape = ERROR_NAMES[dialect.name] if has_body else "Bodiless"
        for status in statuses:
            self.responses.setdefault(f"{shape}{status}", self._error(status, dialect, has_body=has_body))
        return {str(status): {"$ref": f"#/components/responses/{shape}{status}"} for status in sorted(statuses)}

    def _error(self, status: int, dialect: Dialect, *, has_body: bool) -> Json:
        schema = reference(ERROR_NAMES[dialect.name])
        placed = status not in _BEFORE_THE_ROUTE
        if not placed and dialect.name == "anthropic":
            schema = {"anyOf": [schema, reference(ERROR_NAMES["openai"])]}
        headers = _id_headers(dialect, required=placed) | _STATUS_HEADERS.get(status, {})
        return _described(self._words[status], headers, {"application/json": {"schema": schema}} if has_body else None)


def _event(dialect: Dialect) -> Json:
    """One event: before version 3.2 of OpenAPI, the schema of a stream of events is that of each of them."""
    members = ("event", "data") if dialect.done[0].startswith(b"event: ") else ("data",)
    properties = {name: {"type": "string"} for name in members}
    return {"type": "object", "description": _stream_words(dialect), "required": [*members], "properties": properties}


def _stream_words(dialect: Dialect) -> str:
    ends = " or ".join(f"`{mark.decode('ascii')}`" for mark in dialect.done)
    fails = " or ".join(f"`{mark.decode('ascii')}`" for mark in dialect.error)
    return f"One event, where `stream` is true. A stream that is whole has {ends}; one that failed has {fails} instead."


def _header(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}


def _id_headers(dialect: Dialect = OPENAI, *, required: bool = True) -> Json:
    own = () if dialect.request_id_header is None else (dialect.request_id_header.decode("ascii"),)
    return {name: _header("request-id" if required else "possible-request-id") for name in ("x-request-id", *own)}


_STATUS_HEADERS: Mapping[int, Json] = {
    401: {"WWW-Authenticate": _header("www-authenticate")},
    405: {"Allow": _header("allow")},
    415: {"Accept-Encoding": _header("accept-encoding")},
    429: {"Retry-After": _header("possible-retry-after")},
    503: {"Retry-After": _header("retry-after")},
}


def _described(description: str, headers: Json, content: Json | None) -> Json:
    shown: Json = {"description": description}
    if headers:
        shown["headers"] = headers
    return shown if content is None else shown | {"content": content}
