"""From a request's body to sequences in the model, and from their tokens to the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from serving.sim.answers import Answer, Choice
from serving.sim.errors import ENGINE_DEAD, QUEUE_FULL, Body, EngineError, asked_tokens, room_tokens
from serving.sim.exchange import Exchange
from serving.sim.model import QueueFull
from serving.sim.plan import EnginePlan
from serving.sim.sequence import Finish, Prompt, Sequence
from serving.sim.surfaces import Surface
from serving.sim.text import Words, answer_length, chat_prompt, plain_prompt

_COMPLETION_TOKENS = 16
"""vLLM's default for completions; its chat goes on until the context is full."""
_GREEDY_BELOW = 1e-5
"""As vLLM takes a temperature for 0; without one it samples."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something happened to a choice: it has more tokens, or it has ended."""

    index: int
    tokens: int = 0
    ended: Finish | None = None


LEFT = Told(-1)
"""The client has gone."""

Feed = asyncio.Queue[Told]


def prompts_of(body: Body, surface: Surface, token_bytes: int) -> list[Prompt]:
    if surface.is_chat:
        return [chat_prompt(body["messages"], token_bytes)]
    given = body["prompt"]
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    return [plain_prompt(item, token_bytes) for item in given]


def is_greedy(body: Body) -> bool:
    """Whether the likeliest token is taken each time, so that the same prompt has the same answer."""
    temperature = body.get("temperature")
    return temperature is not None and temperature < _GREEDY_BELOW


def read_priority(body: Body, exchange: Exchange) -> int:
    header = exchange.header("x-vllm-priority")
    try:
        return int(header) if header is not None else int(body.get("priority") or 0)
    except ValueError:
        raise EngineError(400, f"X-Vllm-Priority must be an integer, got {header!r}.") from None


def build_choices(
    body: Body,
    surface: Surface,
    plan: EnginePlan,
    prompts: list[Prompt],
    *,
    adapters: list[str],
    priority: int,
    seed: int,
    drawn: int,
    is_wrong: bool,
    feed: Feed,
) -> list[Choice]:
    """The sequences of a request, not yet in the model. `drawn` is what chance makes of answers that are left to it.

    Raises:
        EngineError: a prompt does not fit into the context, or `n` is no number of choices
    """
    copies = body.get("n")
    copies = 1 if copies is None else copies
    if copies < 1:
        raise EngineError(400, f"n must be at least 1, got {copies}.")
    model = body.get("model")
    adapter = model if model in adapters else None
    choices: list[Choice] = []
    for prompt in prompts:
        room = room_tokens(prompt.tokens, plan.limits.max_model_len)
        asked = asked_tokens(body)
        default = room if surface.is_chat else _COMPLETION_TOKENS
        limit = min(default if asked is None else asked, room)
        for _ in range(copies):
            index = len(choices)
            words = Words(prompt, plan.token_bytes, choice=index, drawn=drawn, is_wrong=is_wrong)
            length, finish = _length(body, plan, prompt, limit, seed + index)
            sequence = Sequence(
                prompt=prompt,
                answer_tokens=length,
                answer=words.data,
                finish=finish,
                salt=body.get("cache_salt") or "",
                adapter=adapter,
                priority=priority,
                limit_tokens=limit,
                choices=copies,
                on_tokens=lambda count, index=index: feed.put_nowait(Told(index, count)),  # type: ignore[misc]
                on_finish=lambda reason, index=index: feed.put_nowait(Told(index, ended=reason)),  # type: ignore[misc]
            )
            choices.append(Choice(sequence, words))
    return choices


def _length(body: Body, plan: EnginePlan, prompt: Prompt, limit: int, seed: int) -> tuple[int, Finish]:
    if plan.answer_tokens is None or body.get("ignore_eos"):
        return limit, "length"
    length = max(answer_length(prompt, plan.answer_tokens, seed), int(body.get("min_tokens") or 0))
    return (length, "stop") if length < limit else (limit, "length")


async def finished(feed: Feed, choices: int) -> Finish:
    """Wait until all choices have ended or one has failed; `abort` if the client left."""
    ended = 0
    while ended < choices:
        told = await feed.get()
        if told is LEFT:
            return "abort"
        if told.ended in ("error", "abort"):
            return told.ended
        ended += told.ended is not None
    return "length"


async def tell(exchange: Exchange, answer: Answer, feed: Feed) -> Finish:
    """Write a stream as its tokens come. Returns how it ended. Raises: Gone."""
    await exchange.begin_events()
    for data in answer.early():
        await exchange.event(data)
    is_open = False
    ended = 0
    while ended < len(answer.choices):
        told = await feed.get()
        if told is LEFT:
            return "abort"
        if told.ended == "error":
            return await _fail(exchange, answer)
        if told.ended == "abort":
            exchange.break_off()
        if told.ended is not None:
            ended += 1
            continue
        if not is_open:
            is_open = True
            for data in answer.opening():
                await exchange.event(data)
        await exchange.event(answer.tokens(told.index, told.tokens))
    for data in answer.closing():
        await exchange.event(data)
    await exchange.end_events()
    return "length"


async def _fail(exchange: Exchange, answer: Answer) -> Finish:
    said = list(answer.failure(dead().content))
    if not said:
        exchange.break_off()
    for data in said:
        await exchange.event(data)
    await exchange.end_events()
    return "error"


def dead() -> EngineError:
    return EngineError(500, ENGINE_DEAD)


def draining() -> EngineError:
    """What vLLM 0.32 says to new requests between SIGTERM and its end."""
    return EngineError(500, "cannot schedule new futures after shutdown")


def full(error: QueueFull) -> EngineError:
    return EngineError(503, QUEUE_FULL[error.reason])


def tokenized(body: Body, plan: EnginePlan) -> Iterator[tuple[str, Any]]:
    """The fields of the answer of `/tokenize`."""
    from serving.sim.text import text_of, token_numbers

    if "messages" in body:
        prompt = chat_prompt(body["messages"], plan.token_bytes, is_continued=body.get("add_generation_prompt", True))
    else:
        prompt = plain_prompt(body["prompt"], plan.token_bytes)
    numbers = token_numbers(prompt)
    yield "count", len(numbers)
    yield "max_model_len", plan.limits.max_model_len
    yield "tokens", numbers
    yield "token_strs", [text_of([number]) for number in numbers] if body.get("return_token_strs") else None
