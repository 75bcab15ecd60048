"""Finds out what a replay must know of the engine behind an address: model, words, template, cache blocks, what can be forced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.core.errors import ConfigurationError
from serving.replay.counters import CacheFacts, Counters, info_labels, read_cache_facts, read_counters
from serving.replay.stream import Client, Reply
from serving.replay.traffic import Template
from serving.replay.words import Vocabulary, Wording, find_vocabulary

Report = Callable[[str], None]
_METRICS = "/metrics"


@dataclass(frozen=True)
class Forcing:
    """By which fields an answer gets exactly the wanted length, as far as the engine knows such fields."""

    limit_field: str = "max_tokens"
    ignores_eos: bool = True

    def fields(self, output_tokens: int) -> dict[str, Any]:
        fields: dict[str, Any] = {self.limit_field: output_tokens}
        return fields | {"ignore_eos": True, "min_tokens": output_tokens} if self.ignores_eos else fields


@dataclass(frozen=True)
class EngineFacts:
    """What was found."""

    model: str
    max_model_len: int | None
    version: str | None
    simulated: str | None
    """What is simulated, in the engine's words; None for one that does not say that it is."""
    vocabulary: Vocabulary
    template: Template
    counts_by: str
    """tokenize: asked without running the model; usage: read off answers of one token."""
    forcing: Forcing
    cache: CacheFacts


class EngineProbe:
    """Asks one address; `metrics` are the clients of the engines' own addresses, where they differ from it."""

    def __init__(
        self, client: Client, model: str | None, metrics: Sequence[Client], extra: dict[str, Any], report: Report
    ) -> None:
        self._client = client
        self._metrics = metrics or [client]
        self._extra = extra
        self._report = report
        self._counts_by = "tokenize"
        self._forcing = Forcing()
        self._simulated: str | None = None
        self.model = model or ""

    async def look(self, *, with_system: bool, with_turns: bool, block_tokens: int | None) -> EngineFacts:
        """Raises: ConfigurationError when it does not answer, or exact lengths cannot be had of it."""
        max_model_len = await self._find_model()
        version = await self._version()
        await self._find_forcing()
        await self._find_counting()
        self._report(f"looking for one-token words of {self.model}")
        vocabulary = await find_vocabulary(self._count_text)
        template = await self._template(vocabulary, with_system=with_system, with_turns=with_turns)
        texts = await self._metric_texts()
        for text in texts or ():
            if info := info_labels(text, "serving_sim_info"):
                self._simulated = f"{info.get('profile')} at {info.get('speed')} x the wall clock"
        cache = read_cache_facts(texts or ())
        if block_tokens is not None:
            cache = CacheFacts(block_tokens, cache.capacity_tokens, cache.is_enabled)
        return EngineFacts(
            model=self.model,
            max_model_len=max_model_len,
            version=version,
            simulated=self._simulated,
            vocabulary=vocabulary,
            template=template,
            counts_by=self._counts_by,
            forcing=self._forcing,
            cache=cache,
        )

    async def block_tokens(self, wording: Wording, template: Template, room_tokens: int) -> int | None:
        """The size of the cache's blocks, from how much it holds of beginnings of several lengths; None when it holds nothing."""
        words = min(room_tokens - template.user_tokens - 8, 3000)
        whole = wording.words("blocks", words)
        held = []
        for place, share in enumerate((1.0, 0.93, 0.81, 0.67, 0.58, 0.52)):
            own = wording.words(f"blocks {place}", words)
            text = wording.vocabulary.text(whole[: int(words * share)] + own[int(words * share) :])
            usage = _object((await self._chat([("user", text)])).json().get("usage"))
            cached = _object(usage.get("prompt_tokens_details")).get("cached_tokens")
            held.append(cached if isinstance(cached, int) else 0)
        return math.gcd(*held[1:]) or None

    async def counters(self) -> Counters | None:
        """None where no engine's counters can be read."""
        texts = await self._metric_texts()
        return None if texts is None else read_counters(texts)

    async def _metric_texts(self) -> list[str] | None:
        texts = []
        for client in self._metrics:
            try:
                reply = await client.ask("GET", _METRICS)
            except ConfigurationError:
                return None
            if reply.status != 200:
                return None
            texts.append(reply.body.decode(errors="replace"))
        return texts

    async def _find_model(self) -> int | None:
        reply = await self._client.ask("GET", "/v1/models")
        cards = reply.json().get("data")
        if reply.status != 200 or not isinstance(cards, list):
            if reply.status in (401, 403):
                raise ConfigurationError(f"{self._client.url}: wants a key ({reply.status}); give it in OPENAI_API_KEY")
            if self.model:
                return None
            raise ConfigurationError(
                f"{self._client.url}/v1/models: answered {reply.status}; give --model if it has no such list"
            )
        cards = [card for card in cards if isinstance(card, dict)]
        names = [str(card.get("id")) for card in cards]
        if not self.model:
            if len(names) != 1:
                raise ConfigurationError(f"--model: {self._client.url} serves {', '.join(names) or 'none'}; name one of them")
            self.model = names[0]
        elif self.model not in names:
            raise ConfigurationError(
                f"--model: {self.model!r} is not served at {self._client.url}; there are: {', '.join(names)}"
            )
        self._note(reply)
        card = cards[names.index(self.model)]
        return card.get("max_model_len") if isinstance(card.get("max_model_len"), int) else None

    async def _version(self) -> str | None:
        try:
            reply = await self._client.ask("GET", "/version")
        except ConfigurationError:
            return None
        document = reply.json() if reply.status == 200 else {}
        if document.get("simulated"):
            self._simulated = self._simulated or str(document["simulated"])
        return str(document["version"]) if "version" in document else None

    async def _find_forcing(self) -> None:
        """Which of the fields it takes, by asking; the strongest set first."""
        for forcing in (Forcing(), Forcing(ignores_eos=False), Forcing("max_completion_tokens", ignores_eos=False)):
            self._forcing = forcing
            reply = await self._chat([("user", "the and for")])
            if reply.status == 200:
                self._note(reply)
                return
            if reply.status not in (400, 422):
                break
        raise ConfigurationError(f"{self._client.url}: a first chat was answered {reply.status}: {_said(reply)}")

    async def _find_counting(self) -> None:
        reply = await self._client.ask("POST", "/tokenize", self._question([("user", "the and for")]))
        document = reply.json()
        usage = await self._usage_tokens([("user", "the and for")])
        # One that tokenizes otherwise than it serves is no help.
        agrees = reply.status == 200 and document.get("count") == usage and _are_tokens(document.get("tokens"))
        self._counts_by = "tokenize" if agrees else "usage"

    async def _count_text(self, text: str) -> int:
        return await self._count([("user", text)])

    async def _count(self, messages: list[tuple[str, str]]) -> int:
        if self._counts_by == "usage":
            return await self._usage_tokens(messages)
        return len(await self._tokens(messages))

    async def _tokens(self, messages: list[tuple[str, str]]) -> list[int]:
        reply = await self._client.ask("POST", "/tokenize", self._question(messages))
        tokens: Any = reply.json().get("tokens")
        if reply.status != 200 or not _are_tokens(tokens):
            raise ConfigurationError(f"{self._client.url}/tokenize: answered {reply.status}: {_said(reply)}")
        return list(tokens)

    async def _usage_tokens(self, messages: list[tuple[str, str]]) -> int:
        reply = await self._chat(messages)
        usage = _object(reply.json().get("usage")) if reply.status == 200 else {}
        if not isinstance(usage.get("prompt_tokens"), int):
            raise ConfigurationError(
                f"{self._client.url}: an answer ({reply.status}) has no usage with prompt_tokens: {_said(reply)}"
            )
        return int(usage["prompt_tokens"])

    async def _chat(self, messages: list[tuple[str, str]]) -> Reply:
        return await self._client.ask(
            "POST", "/v1/chat/completions", {**self._question(messages), **self._forcing.fields(1), **self._extra}
        )

    def _question(self, messages: list[tuple[str, str]]) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": role, "content": content} for role, content in messages]}

    async def _template(self, vocabulary: Vocabulary, *, with_system: bool, with_turns: bool) -> Template:
        first, second = vocabulary.words[0], vocabulary.words[1]
        # Several words, since one alone could merge with what the template writes around it.
        text = vocabulary.text([first, second] * 4)
        user = await self._count([("user", text)]) - 8
        system: int | None = 0
        if with_system:
            system = await self._more(user + 8, [("system", text), ("user", text)], 8)
        turn = 0
        if with_turns:
            turns = [("user", text), ("assistant", text), ("user", text)]
            more = await self._more(user + 8, turns, 16)
            if more is None:
                raise ConfigurationError(f"{self._client.url}: refuses a conversation of several turns")
            turn = more
        return Template(user, system or 0, turn, await self._head(vocabulary), has_system=system is not None)

    async def _more(self, base: int, messages: list[tuple[str, str]], words: int) -> int | None:
        """What the template adds for more messages; None when it refuses them."""
        if self._counts_by == "usage":
            reply = await self._chat(messages)
            if reply.status == 400:
                return None
        else:
            reply = await self._client.ask("POST", "/tokenize", self._question(messages))
            if reply.status == 400:
                return None
        return await self._count(messages) - base - words

    async def _head(self, vocabulary: Vocabulary) -> int:
        """Tokens in front of the first message's text; 0 where only usage can be asked."""
        if self._counts_by == "usage":
            return 0
        texts = [vocabulary.text([word] * 8) for word in vocabulary.words[:2]]
        tokens = [await self._tokens([("user", text)]) for text in texts]
        return next((place for place, (a, b) in enumerate(zip(*tokens, strict=True)) if a != b), 0)

    def _note(self, reply: Reply) -> None:
        for name, value in reply.headers:
            if name == b"x-serving-simulated" and self._simulated is None:
                self._simulated = value.decode("latin-1")
        fingerprint = reply.json().get("system_fingerprint")
        if isinstance(fingerprint, str) and "simulated" in fingerprint and self._simulated is None:
            self._simulated = fingerprint


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(token, int) for token in value)


def _said(reply: Reply) -> str:
    return reply.body[:300].decode(errors="replace")
