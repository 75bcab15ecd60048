"""The texts that are scored, read from `corpus/`, and the digest that makes two collections comparable."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from serving.catalog.records import Record, Text
from serving.strict_yaml import read_yaml

FOLDER = Path(__file__).parent / "corpus"
FILES = ("passages.yaml", "tasks.yaml")
_RECIPE = "1"
"""Of the tasks that are made from the words; a new number where they change."""


class Message(Record):
    role: Text
    content: Text


class TextPassage(Record):
    """Scored as it stands."""

    name: Text
    kind: Text
    text: Text


class ChatPassage(Record):
    """Scored as the engine's chat template writes it."""

    name: Text
    messages: tuple[Message, ...]

    def body(self) -> list[dict[str, Any]]:
        return [message.model_dump() for message in self.messages]


class Corpus(Record):
    """All texts."""

    passages: tuple[TextPassage, ...]
    chats: tuple[ChatPassage, ...]


@functools.cache
def corpus() -> Corpus:
    return Corpus.model_validate(read_yaml(FOLDER / "passages.yaml"), strict=False)


@functools.cache
def task_words() -> dict[str, Any]:
    words: dict[str, Any] = read_yaml(FOLDER / "tasks.yaml")
    return words


@functools.cache
def corpus_digest() -> str:
    """SHA-256 of the files and of the recipe."""
    found = hashlib.sha256(_RECIPE.encode())
    for name in FILES:
        found.update((FOLDER / name).read_bytes())
    return found.hexdigest()


TEMPLATE_PROBES: dict[str, dict[str, Any]] = {
    "user only": {"messages": [{"role": "user", "content": "What is two plus two?"}]},
    "system and user": {
        "messages": [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": "What is two plus two?"}]
    },
    "several turns": {
        "messages": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello, how can I help?"},
            {"role": "user", "content": "What is two plus two?"},
        ]
    },
    "with a tool": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Tells the weather of a city.",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
                },
            }
        ],
    },
}
"""Conversations whose rendering tells one chat template from another; no model runs for it."""
