"""From a profile to the requests of a run: their lengths, what of them was sent before, and how their words are named.

Request `number` is the same in every run with the same seed, whatever came before it; its words differ with the nonce. How many
tokens of it an endless cache would hold is part of the plan, which the run is measured against.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from serving.core.errors import ConfigurationError
from serving.replay.profile import Length, Prompts, ReplayProfile, Sessions, Trace, TracedRequest, scaled
from serving.replay.words import unique_name

Role = Literal["system", "user", "assistant"]
_LEAST_NEW_WORDS = 8
"""So many words by chance are no other request's."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first `tokens` words of the text `name`."""

    name: str
    tokens: int
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One request; `think_seconds` is how long after the answer before it, in its conversation."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    cached_tokens: int
    """That a cache without limits would hold."""
    output_tokens: int
    think_seconds: float = 0.0


@dataclass(frozen=True)
class Template:
    """What the engine's chat template adds, in tokens."""

    user_tokens: int
    """To a conversation of one user's message."""
    system_tokens: int = 0
    """More with a system message in front."""
    turn_tokens: int = 0
    """More with each answer and the user's message behind it."""
    head_tokens: int = 0
    """In front of the first message's text, as far as that is known."""
    has_system: bool = True

    def around(self, messages: Sequence[Message]) -> int:
        """Beside the messages' own words."""
        turns = sum(message.role == "assistant" for message in messages)
        with_system = messages[0].role == "system"
        return self.user_tokens + turns * self.turn_tokens + (self.system_tokens if with_system else 0)


@dataclass(frozen=True)
class Ground:
    """What of the engine the plan rests on."""

    template: Template
    block_tokens: int = 1
    """A cache holds whole blocks of so many tokens."""

    def whole_blocks(self, tokens: int, prompt_tokens: int) -> int:
        """Of a beginning that was seen before; the last token is always computed."""
        return min(tokens, prompt_tokens - 1) // self.block_tokens * self.block_tokens


class Source(Protocol):
    """Where a run's requests come from. Conversations must be asked for in the order of their numbers."""

    def primes(self) -> list[Planned]:
        """What is sent before all else, so that the shared beginnings have been seen."""
        ...

    def conversation(self, number: int, *, in_the_middle: bool = False) -> list[Planned]:
        """Its requests, each to be sent after the answer before it. `in_the_middle`: begin at a turn by chance."""
        ...

    def at_seconds(self, number: int) -> float | None:
        """When it was recorded; None where the profile says nothing of that."""
        ...

    @property
    def turns(self) -> float:
        """Requests of a conversation, on average."""
        ...


def source_of(profile: ReplayProfile, ground: Ground, *, scale: float, seed: int) -> Source:
    """Raises: ConfigurationError when the lengths leave no room for what they must hold."""
    traffic = profile.traffic
    if isinstance(traffic, Prompts):
        return PromptSource(traffic, ground, scale, seed)
    if isinstance(traffic, Sessions):
        return SessionSource(traffic, ground, scale, seed)
    return TraceSource(traffic, ground, scale)


def draw(length: Length, chance: random.Random) -> int:
    if isinstance(length, int):
        return length
    for _ in range(1000):
        drawn = round(length.median * chance.lognormvariate(0.0, length.sigma))
        if length.least <= drawn <= length.most:
            return drawn
    return length.median


def prime(name: str, number: int, tokens: int, template: Template) -> Planned:
    """A request that brings a shared beginning into the cache, with an end of its own so that the last shared block is full."""
    parts = (Part(name, tokens, is_shared=True), Part(unique_name(-1, number, 0), _LEAST_NEW_WORDS))
    message = Message("user", parts)
    whole = tokens + _LEAST_NEW_WORDS + template.around((message,))
    return Planned((message,), whole, 0, 1)


def one_message(parts: Sequence[Part], cached_tokens: int, output_tokens: int, template: Template) -> Planned:
    message = Message("user", tuple(part for part in parts if part.tokens))
    whole = sum(part.tokens for part in message.parts) + template.around((message,))
    return Planned((message,), whole, cached_tokens, output_tokens)


class PromptSource:
    """Independent prompts. The shared beginning ends at a block's end; from request to request it is a block longer or shorter,
    so that the share is the wanted one over all of them."""

    turns = 1.0

    def __init__(self, traffic: Prompts, ground: Ground, scale: float, seed: int) -> None:
        self._prompt, self._output = scaled(traffic.prompt_tokens, scale), scaled(traffic.output_tokens, scale)
        self._shared = traffic.shared_prefix
        self._ground = ground
        self._seed = seed
        self._owed_tokens = 0.0
        least = self._prompt if isinstance(self._prompt, int) else self._prompt.least
        self._around = ground.template.user_tokens
        if least <= self._around + _LEAST_NEW_WORDS:
            raise ConfigurationError(
                f"--scale: {scale:g} makes prompts of {least} tokens, of which the chat template takes {self._around}; "
                f"take a scale above {scale * (self._around + 2 * _LEAST_NEW_WORDS) / least:.2g}"
            )

    def primes(self) -> list[Planned]:
        if self._shared is None:
            return []
        most = self._prompt if isinstance(self._prompt, int) else self._prompt.most
        # One block more than the share, for the requests that get the longer beginning.
        tokens = min(int(self._shared.share * most) + 2 * self._ground.block_tokens, most)
        return [prime(f"group {group}", group, tokens, self._ground.template) for group in range(self._shared.groups)]

    def conversation(self, number: int, *, in_the_middle: bool = False) -> list[Planned]:
        chance = random.Random(f"{self._seed}/{number}")
        prompt_tokens, output_tokens = draw(self._prompt, chance), draw(self._output, chance)
        words = prompt_tokens - self._around
        own = Part(unique_name(number, 0, 0), words)
        template = self._ground.template
        if self._shared is None:
            cached = self._ground.whole_blocks(template.head_tokens, prompt_tokens)
            return [one_message((own,), cached, output_tokens, template)]
        cached = self._next_cached(self._shared.share * prompt_tokens, words)
        shared = Part(f"group {chance.randrange(self._shared.groups)}", max(0, cached - template.head_tokens), is_shared=True)
        own = Part(own.name, words - shared.tokens)
        return [one_message((shared, own), cached, output_tokens, template)]

    def _next_cached(self, wanted_tokens: float, words: int) -> int:
        self._owed_tokens += wanted_tokens
        block = self._ground.block_tokens
        room = words - _LEAST_NEW_WORDS + self._ground.template.head_tokens
        cached = max(0, min(round(self._owed_tokens / block), room // block)) * block
        cached = max(cached, self._ground.template.head_tokens // block * block)
        # What a short prompt had no room for is not made up for by a longer beginning than was primed.
        self._owed_tokens = min(self._owed_tokens - cached, float(block))
        return cached

    def at_seconds(self, number: int) -> float | None:
        return None


class SessionSource:
    """Conversations that grow. The history's answers are words of ours, not the engine's, so that lengths are exact and a run can
    be repeated; they count as new when they first come back."""

    def __init__(self, traffic: Sessions, ground: Ground, scale: float, seed: int) -> None:
        self._traffic = traffic
        self._ground = ground
        self._scale = scale
        self._seed = seed
        self._system_tokens = max(1, round(traffic.system_tokens * scale))

    @property
    def turns(self) -> float:
        chance = random.Random(0)
        return sum(draw(self._traffic.turns, chance) for _ in range(1000)) / 1000

    def primes(self) -> list[Planned]:
        template = self._ground.template
        primes = []
        for number in range(self._traffic.system_prompts):
            messages = (
                *self._opening(f"system {number}"),
                Message("user", (Part(unique_name(-1, number, 0), _LEAST_NEW_WORDS),)),
            )
            primes.append(self._request(_merged(messages, template), cached_tokens=0, output_tokens=1))
        return primes

    def conversation(self, number: int, *, in_the_middle: bool = False) -> list[Planned]:
        traffic, template, scale = self._traffic, self._ground.template, self._scale
        chance = random.Random(f"{self._seed}/{number}")
        turns = draw(traffic.turns, chance)
        system = f"system {chance.randrange(traffic.system_prompts)}"
        first = chance.randrange(turns) if in_the_middle else 0
        messages: list[Message] = list(self._opening(system))
        seen_tokens = template.head_tokens + self._system_tokens
        requests = []
        for turn in range(turns):
            user = draw(scaled(traffic.next_user_tokens if turn else traffic.first_user_tokens, scale), chance)
            output = draw(scaled(traffic.output_tokens, scale), chance)
            think = chance.expovariate(1 / traffic.think_seconds) if traffic.think_seconds and turn else 0.0
            messages.append(Message("user", (Part(unique_name(number, turn, 0), user),)))
            if turn >= first:
                request = self._request(_merged(messages, template), seen_tokens, output, think if turn > first else 0.0)
                requests.append(request)
                seen_tokens = request.prompt_tokens
            messages.append(Message("assistant", (Part(unique_name(number, turn, 1), output),)))
        return requests

    def _opening(self, system: str) -> tuple[Message, ...]:
        return (Message("system", (Part(system, self._system_tokens, is_shared=True),)),)

    def _request(
        self, messages: Sequence[Message], cached_tokens: int, output_tokens: int, think_seconds: float = 0.0
    ) -> Planned:
        words = sum(part.tokens for message in messages for part in message.parts)
        whole = words + self._ground.template.around(messages)
        return Planned(tuple(messages), whole, self._ground.whole_blocks(cached_tokens, whole), output_tokens, think_seconds)

    def at_seconds(self, number: int) -> float | None:
        return None


def _merged(messages: Sequence[Message], template: Template) -> list[Message]:
    """For models without a system role: its text in front of the user's first."""
    if template.has_system or messages[0].role != "system":
        return list(messages)
    return [Message("user", messages[0].parts + messages[1].parts), *messages[2:]]


class TraceSource:
    """Recorded requests, from the beginning again when all have been sent."""

    turns = 1.0

    def __init__(self, traffic: Trace, ground: Ground, scale: float) -> None:
        self._trace = traffic
        self._ground = ground
        self._scale = scale
        self._seen: set[tuple[int, ...]] = set()
        for request in traffic.requests:
            if self._tokens(request.prompt_tokens) <= ground.template.user_tokens + _LEAST_NEW_WORDS:
                raise ConfigurationError(
                    f"a request of the trace has {request.prompt_tokens} prompt tokens at scale {scale:g}, of which the chat "
                    f"template takes {ground.template.user_tokens} and {_LEAST_NEW_WORDS} must be new"
                )

    def _tokens(self, tokens: int) -> int:
        return max(1, round(tokens * self._scale))

    def primes(self) -> list[Planned]:
        longest: dict[str, int] = {}
        for request in self._trace.requests:
            if request.prefix_group is not None:
                tokens = self._tokens(request.prefix_tokens)
                longest[request.prefix_group] = max(tokens, longest.get(request.prefix_group, 0))
        template = self._ground.template
        return [prime(f"group {name}", place, tokens, template) for place, (name, tokens) in enumerate(longest.items())]

    def conversation(self, number: int, *, in_the_middle: bool = False) -> list[Planned]:
        request = self._trace.requests[number % len(self._trace.requests)]
        template = self._ground.template
        prompt_tokens = self._tokens(request.prompt_tokens)
        words = prompt_tokens - template.user_tokens
        if request.block_ids:
            shared, seen_tokens = self._blocks(request, words)
        else:
            tokens = min(self._tokens(request.prefix_tokens) if request.prefix_group else 0, words - _LEAST_NEW_WORDS)
            shared = [Part(f"group {request.prefix_group}", tokens, is_shared=True)] if tokens else []
            seen_tokens = tokens
        own = Part(unique_name(number, 0, 0), words - sum(part.tokens for part in shared))
        cached = self._ground.whole_blocks(template.head_tokens + seen_tokens, prompt_tokens)
        return [one_message((*shared, own), cached, self._tokens(request.output_tokens), template)]

    def _blocks(self, request: TracedRequest, words: int) -> tuple[list[Part], int]:
        """The text of the blocks, and how much of it came in a request before."""
        size = self._tokens(self._trace.block_tokens)
        parts: list[Part] = []
        seen_tokens = 0
        room = words - _LEAST_NEW_WORDS
        for place, block in enumerate(request.block_ids):
            tokens = min(size, room)
            if tokens <= 0:
                break
            room -= tokens
            chain = request.block_ids[: place + 1]
            if chain in self._seen and seen_tokens == size * place:
                seen_tokens += tokens
            self._seen.add(chain)
            parts.append(Part(f"block {block}", tokens))
        return parts, seen_tokens

    def at_seconds(self, number: int) -> float | None:
        laps, place = divmod(number, len(self._trace.requests))
        moment = self._trace.requests[place].at_seconds
        last = self._trace.requests[-1].at_seconds
        return None if moment is None or last is None else moment + laps * last
