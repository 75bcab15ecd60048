"""langchain-openai, as its documentation says to use it. It has no list of models."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from steps import CHOICE, KEY, MODEL, QUESTION, TOO_LONG, failure, run
from steps import weather as weather_in


@tool
def weather(city: str) -> str:
    """The weather in a city"""
    return weather_in(city)


def connect(url: str, **fields: Any) -> ChatOpenAI:
    given = {"model": MODEL, "api_key": KEY, "max_tokens": 8, "temperature": 0, "stream_usage": True} | fields
    return ChatOpenAI(base_url=f"{url}/v1", **given)


def seen(message: Any) -> dict[str, object]:
    usage = message.usage_metadata
    finish = message.response_metadata["finish_reason"]
    return {"text": message.content, "finish": finish, "prompt": usage["input_tokens"], "output": usage["output_tokens"]}


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    first, *rest = chunks
    return first.__add__(rest)


def stream(url: str) -> dict[str, object]:
    chunks = list(connect(url).stream(QUESTION))
    return {**seen(merged(chunks)), "pieces": sum(bool(chunk.content) for chunk in chunks)}


def with_tools(url: str, *, streams: bool) -> Any:
    model = connect(url, max_tokens=100).bind_tools([weather])

    def ask(messages: list[Any]) -> Any:
        return merged(list(model.stream(messages))) if streams else model.invoke(messages)

    messages: list[Any] = [HumanMessage(QUESTION)]
    messages.append(ask(messages))
    messages += [weather.invoke(call) for call in messages[-1].tool_calls]
    return ask(messages).content


def described(error: Any) -> dict[str, object]:
    return {"status": error.status_code, "code": error.code, "message": str(error)}


def leave(url: str) -> None:
    stream = connect(url, max_tokens=2000).stream(QUESTION)
    next(chunk for chunk in stream if chunk.content)
    stream.close()


run(
    {
        "chat": lambda url: seen(connect(url).invoke(QUESTION)),
        "stream": stream,
        "structured": lambda url: (
            connect(url, max_tokens=200).with_structured_output(CHOICE, method="json_schema").invoke(QUESTION)
        ),
        "tools": lambda url: with_tools(url, streams=False),
        "streamed_tools": lambda url: with_tools(url, streams=True),
        "bad_request": lambda url: failure(lambda: connect(url).invoke(TOO_LONG), described),
        "wrong_key": lambda url: failure(lambda: connect(url, api_key="sk-wrong").invoke(QUESTION), described),
        "unknown_model": lambda url: failure(lambda: connect(url, model="nope").invoke(QUESTION), described),
        "leave": leave,
        "retry": lambda url: connect(url).invoke(QUESTION).content,
    }
)
