"""openai for Python, as its documentation says to use it."""

from __future__ import annotations

import json
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel
from steps import KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run, weather

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": WEATHER}}


class Answer(BaseModel):
    yes: bool
    size: Literal["small", "large"]


def ask(url: str, api_key: str = KEY, **fields: Any) -> Any:
    given = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0} | fields
    return OpenAI(base_url=f"{url}/v1", api_key=api_key).chat.completions.create(**given)


def seen(answer: Any) -> dict[str, object]:
    (choice,), usage = answer.choices, answer.usage
    counts = {"prompt": usage.prompt_tokens, "output": usage.completion_tokens}
    return {"text": choice.message.content, "finish": choice.finish_reason, **counts}


def put_together(url: str, **fields: Any) -> Any:
    """The whole answer that the client makes of a stream."""
    given: dict[str, Any] = {"model": MODEL, "messages": MESSAGES} | fields
    with OpenAI(base_url=f"{url}/v1", api_key=KEY).chat.completions.stream(**given) as stream:
        return stream.get_final_completion()


def stream(url: str) -> dict[str, object]:
    chunks = list(ask(url, stream=True, stream_options={"include_usage": True}))
    *tokens, last = chunks
    texts = [chunk.choices[0].delta.content for chunk in tokens if chunk.choices[0].delta.content]
    counts = {"prompt": last.usage.prompt_tokens, "output": last.usage.completion_tokens}
    return {"text": "".join(texts), "pieces": len(texts), "finish": tokens[-1].choices[0].finish_reason, **counts}


def structured(url: str) -> Any:
    given: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "temperature": 0}
    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    parsed = client.chat.completions.parse(**given, response_format=Answer).choices[0].message.parsed
    assert parsed is not None
    return parsed.model_dump()


def with_tools(url: str, *, streams: bool) -> Any:
    def message(messages: list[Any]) -> Any:
        given = {"messages": messages, "tools": [TOOL]}
        return (put_together(url, **given) if streams else ask(url, **given)).choices[0].message

    called = message(MESSAGES)
    (call,) = called.tool_calls
    content = weather(**json.loads(call.function.arguments))
    answered = {"role": "tool", "tool_call_id": call.id, "content": content}
    return message([*MESSAGES, called.model_dump(exclude_none=True, exclude={"parsed"}), answered]).content


def described(error: Any) -> dict[str, object]:
    return {"status": error.status_code, "code": error.code, "message": str(error)}


def leave(url: str) -> None:
    with ask(url, max_tokens=2000, stream=True) as stream:
        next(chunk for chunk in stream if chunk.choices[0].delta.content)


run(
    {
        "models": lambda url: [model.id for model in OpenAI(base_url=f"{url}/v1", api_key=KEY).models.list()],
        "chat": lambda url: seen(ask(url)),
        "stream": stream,
        "structured": structured,
        "tools": lambda url: with_tools(url, streams=False),
        "streamed_tools": lambda url: with_tools(url, streams=True),
        "bad_request": lambda url: failure(lambda: ask(url, messages=[{"role": "user", "content": TOO_LONG}]), described),
        "wrong_key": lambda url: failure(lambda: ask(url, api_key="sk-wrong"), described),
        "unknown_model": lambda url: failure(lambda: ask(url, model="nope"), described),
        "leave": leave,
        "retry": lambda url: ask(url).choices[0].message.content,
    }
)
