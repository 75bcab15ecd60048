"""Which family of APIs a request means, where no route says so: a refused head, an unknown path, a list of models."""

from __future__ import annotations

from collections.abc import Iterable

from serving.core.routes import ANTHROPIC, MESSAGES, OPENAI, ROUTES, Dialect

VERSION_HEADER = b"anthropic-version"
"""Anthropic's clients send it with every request, and nobody else does."""


def dialect_of(path: str, header_names: Iterable[bytes]) -> Dialect:
    """The dialect in which an answer to such a request is understood; `path` may have a query, or be cut short."""
    path = path.partition("?")[0]
    route = ROUTES.get(path)
    if route is not None:
        return route.dialect
    if path == MESSAGES.path or path.startswith(f"{MESSAGES.path}/"):
        return ANTHROPIC
    return ANTHROPIC if VERSION_HEADER in header_names else OPENAI
