"""anthropic for Python, as its documentation says to use it."""

from __future__ import annotations

import json
from typing import Any

from anthropic import Anthropic
from steps import CHOICE, KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run, weather

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "weather", "description": "The weather in a city", "input_schema": WEATHER}
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}


def connect(url: str, api_key: str = KEY) -> Anthropic:
    return Anthropic(base_url=url, api_key=api_key)


def ask(url: str, **fields: Any) -> Any:
    return connect(url).messages.create(**ASKED | fields)


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content)


def seen(message: Any) -> dict[str, object]:
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return {"text": text_of(message), "finish": message.stop_reason, "prompt": prompt, "output": usage.output_tokens}


def stream(url: str) -> dict[str, object]:
    with connect(url).messages.stream(**ASKED) as stream:
        pieces = len(list(stream.text_stream))
        return {**seen(stream.get_final_message()), "pieces": pieces}


def structured(url: str) -> Any:
    form = {"format": {"type": "json_schema", "schema": CHOICE}}
    return json.loads(text_of(ask(url, max_tokens=200, output_config=form)))


def with_tools(url: str, *, streams: bool) -> str:
    def message(messages: list[Any]) -> Any:
        given = ASKED | {"messages": messages, "tools": [TOOL], "max_tokens": 100}
        if not streams:
            return ask(url, **given)
        with connect(url).messages.stream(**given) as stream:
            return stream.get_final_message()

    called = message(MESSAGES)
    (call,) = called.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
    said = {"role": "assistant", "content": called.content}
    return text_of(message([*MESSAGES, said, {"role": "user", "content": [result]}]))


def described(error: Any) -> dict[str, object]:
    return {"status": error.status_code, "code": error.type, "message": str(error)}


def leave(url: str) -> None:
    with ask(url, max_tokens=2000, stream=True) as stream:
        next(event for event in stream if event.type == "content_block_delta")


run(
    {
        "models": lambda url: [model.id for model in connect(url).models.list()],
        "chat": lambda url: seen(ask(url)),
        "stream": stream,
        "structured": structured,
        "tools": lambda url: with_tools(url, streams=False),
        "streamed_tools": lambda url: with_tools(url, streams=True),
        "bad_request": lambda url: failure(lambda: ask(url, messages=[{"role": "user", "content": TOO_LONG}]), described),
        "wrong_key": lambda url: failure(lambda: connect(url, "sk-wrong").messages.create(**ASKED), described),
        "unknown_model": lambda url: failure(lambda: ask(url, model="nope"), described),
        "leave": leave,
        "retry": lambda url: text_of(ask(url)),
    }
)
