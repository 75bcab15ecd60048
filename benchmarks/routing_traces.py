"""The harness's traces without their texts: what two prompts have in common is told by numbers, which is all that routing sees.

`production`: about 20,000 tokens in, 1,000 out, 60 % of a prompt shared within a session of four requests. `agentic`: twelve
shared system prompts of 6,000 tokens with Zipf popularity, four to twelve turns with a growing history. `tools` and `documents`
are for checks: nobody tuned on them.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.routing_engine import BLOCK_BYTES
from serving.routing.chain import ENDS

_BLOCK_ENDS = tuple(range(BLOCK_BYTES, 1_200_000, BLOCK_BYTES))


class Text:
    """A text that is a row of pieces, each with a number of its own and a length in bytes."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: tuple[tuple[int, int], ...] = ()) -> None:
        self.parts = parts
        self.size = sum(size for _, size in parts)

    def __add__(self, part: tuple[int, int]) -> Text:
        return Text((*self.parts, part))

    def chain(self, ends: tuple[int, ...], seed: int = 1) -> list[int]:
        """One number for each prefix that ends at one of `ends`."""
        chain: list[int] = []
        digest, at, index = seed, 0, 0
        wanted = bisect_right(ends, self.size)
        for number, size in self.parts:
            at += size
            while index < wanted and ends[index] <= at:
                digest = hash((digest, number, at - ends[index])) & (2**62 - 1)
                chain.append(digest)
                index += 1
        return chain


@dataclass(slots=True, eq=False)
class Turn:
    think_seconds: float
    prompt: Text
    turn_bytes: int
    """Where the first turn of the user ends."""
    output_tokens: int
    session: int
    tenant: str = "default"
    objective: str = ""
    blocks: list[int] = field(default_factory=list)
    reply_blocks: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = self.prompt.chain(_BLOCK_ENDS)
        self.chain = self.prompt.chain(ENDS)

    @property
    def prompt_tokens(self) -> int:
        return (self.prompt.size + 3) // 4


@dataclass(slots=True)
class Session:
    start: float
    turns: list[Turn]


_numbers = iter(range(1, 1 << 60))


def fresh(tokens: int) -> tuple[int, int]:
    """A text that nobody else has."""
    return next(_numbers), tokens * 4


_SYSTEM, _USER, _ASSISTANT, _END = (-1, 7), (-2, 5), (-3, 10), (-4, 1)


def _arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    at = 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield at


def production(load: float, seconds: float, seed: int, scale: float = 1.0) -> list[Session]:
    rng = random.Random(seed)
    sessions = []
    for number, start in enumerate(_arrivals(rng, 1.2 * load * scale, seconds)):
        base = Text() + _SYSTEM + fresh(12_000) + _END + _USER
        turns = []
        for turn in range(4):
            question = fresh(int(8000 * rng.uniform(0.7, 1.3)))
            output = max(1, int(1000 * rng.uniform(0.5, 1.5)))
            prompt = base + question + _END + _ASSISTANT
            turns.append(Turn(rng.expovariate(0.1) if turn else 0.0, prompt, prompt.size - 10, output, number))
        sessions.append(Session(start, turns))
    return sessions


def agentic(
    load: float,
    seconds: float,
    seed: int,
    scale: float = 1.0,
    *,
    apps: int = 12,
    system_tokens: int = 6000,
    turns: tuple[int, int] = (4, 12),
    user_tokens: tuple[int, int] = (100, 1500),
    output_tokens: tuple[int, int] = (50, 400),
    think_seconds: float = 6.0,
    rate: float = 1.6,
) -> list[Session]:
    rng = random.Random(seed)
    systems = [fresh(system_tokens) for _ in range(apps)]
    weights = [1 / (k + 1) for k in range(apps)]
    sessions = []
    for number, start in enumerate(_arrivals(rng, rate * load * scale, seconds)):
        text = Text() + _SYSTEM + rng.choices(systems, weights)[0] + _END
        first_turn, mine = 0, []
        for turn in range(rng.randint(*turns)):
            text = text + _USER + fresh(rng.randint(*user_tokens)) + _END
            first_turn = first_turn or text.size
            output = rng.randint(*output_tokens)
            prompt = text + _ASSISTANT
            reply = fresh(output)
            made = Turn(rng.expovariate(1 / think_seconds) if turn else 0.0, prompt, first_turn, output, number)
            answered = prompt + reply
            made.reply_blocks = answered.chain(_BLOCK_ENDS)[len(made.blocks) :]
            mine.append(made)
            text = answered + _END
        sessions.append(Session(start, mine))
    return sessions


def tools(load: float, seconds: float, seed: int, scale: float = 1.0) -> list[Session]:
    """Long agent runs without pauses: few shared prompts of 15,000 tokens, many short turns."""
    return agentic(
        load,
        seconds,
        seed,
        scale,
        apps=3,
        system_tokens=15_000,
        turns=(10, 30),
        user_tokens=(50, 2500),
        output_tokens=(20, 200),
        think_seconds=1.5,
        rate=0.75,
    )


def documents(load: float, seconds: float, seed: int, scale: float = 1.0) -> list[Session]:
    """Questions about documents: 5 to 40 thousand tokens, most asked about a few times, with lengths that vary by 20 times."""
    rng = random.Random(seed)
    shelf = [fresh(int(5000 * 8 ** rng.random())) for _ in range(400)]
    sessions = []
    for number, start in enumerate(_arrivals(rng, 4.5 * load * scale, seconds)):
        document = shelf[min(int(rng.paretovariate(0.7)) - 1, len(shelf) - 1)]
        base = Text() + _SYSTEM + document + _END + _USER
        turns = []
        for turn in range(rng.choice((1, 1, 2, 3))):
            prompt = base + fresh(rng.randint(20, 600)) + _END + _ASSISTANT
            output = int(60 * 20 ** rng.random())
            turns.append(Turn(rng.expovariate(0.1) if turn else 0.0, prompt, prompt.size - 10, output, number))
        sessions.append(Session(start, turns))
    return sessions


TRACES: dict[str, Callable[..., list[Session]]] = {
    "production": production,
    "agentic": agentic,
    "tools": tools,
    "documents": documents,
}
