"""litellm as a client of an OpenAI-compatible service, as its documentation says to use it."""

from __future__ import annotations

import json
from typing import Any

import litellm
from steps import CHOICE, KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run, weather

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": WEATHER}}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def ask(url: str, **fields: Any) -> Any:
    given = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, "api_key": KEY} | fields
    return litellm.completion(**given | {"model": f"openai/{given['model']}", "api_base": f"{url}/v1"})


def seen(answer: Any) -> dict[str, object]:
    (choice,), usage = answer.choices, answer.usage
    counts = {"prompt": usage.prompt_tokens, "output": usage.completion_tokens}
    return {"text": choice.message.content, "finish": choice.finish_reason, **counts}


def stream(url: str) -> dict[str, object]:
    chunks = list(ask(url, **STREAMED))
    pieces = sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)
    return {**seen(litellm.stream_chunk_builder(chunks)), "pieces": pieces}


def structured(url: str) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CHOICE, "strict": True}}
    return json.loads(ask(url, max_tokens=200, response_format=form).choices[0].message.content)


def with_tools(url: str, **options: Any) -> Any:
    def message(messages: list[Any]) -> Any:
        answer = ask(url, messages=messages, tools=[TOOL], max_tokens=100, **options)
        whole = litellm.stream_chunk_builder(list(answer)) if options else answer
        return whole.choices[0].message

    called = message(MESSAGES)
    (call,) = called.tool_calls
    content = weather(**json.loads(call.function.arguments))
    answered = {"role": "tool", "tool_call_id": call.id, "content": content}
    return message([*MESSAGES, called.model_dump(), answered]).content


def described(error: Any) -> dict[str, object]:
    return {"status": error.status_code, "code": error.code, "message": str(error)}


def leave(url: str) -> None:
    stream = ask(url, max_tokens=2000, stream=True)
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    stream.completion_stream.close()


run(
    {
        "models": lambda url: litellm.get_valid_models(
            check_provider_endpoint=True, custom_llm_provider="openai", api_key=KEY, api_base=url
        ),
        "chat": lambda url: seen(ask(url)),
        "stream": stream,
        "structured": structured,
        "tools": with_tools,
        "streamed_tools": lambda url: with_tools(url, **STREAMED),
        "bad_request": lambda url: failure(lambda: ask(url, messages=[{"role": "user", "content": TOO_LONG}]), described),
        "wrong_key": lambda url: failure(lambda: ask(url, api_key="sk-wrong"), described),
        "unknown_model": lambda url: failure(lambda: ask(url, model="nope"), described),
        "leave": leave,
        "retry": lambda url: ask(url).choices[0].message.content,
    }
)
