"""Collects everything of one engine over HTTP, in an order in which the cheap and the telling come first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from serving import __version__
from serving.core.clock import monotonic, wall_seconds
from serving.core.errors import ConfigurationError
from serving.gate import memory
from serving.gate.address import Address, EngineTrouble, Garbage, Refused, Silent
from serving.gate.collected import Acceptance, Answer, Collected, DecodeRun, EngineFacts, Passage, Rendering, Trouble, TroubleKind
from serving.gate.decoding import DECODE_PROMPTS, decode_run, long_passages
from serving.gate.digest import Configuration
from serving.gate.passages import TEMPLATE_PROBES, corpus, corpus_digest
from serving.gate.prompts import CustomerPrompt, answer_prompt
from serving.gate.scoring import batches, render, score_chat, score_texts
from serving.gate.tasks import ITEMS, Item, answer, items
from serving.gate.verdict import Cost

PARTS = ("passages", "templates", "decode", "tasks")
TOKENS_AT_ONCE = 1024
OFFERED = ("tools", "schema")
"""Families of tasks that an engine may not offer, for want of a parser or a chat template."""
MOST_TROUBLES = 3
"""After so many the engine is left alone."""
T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[str], None]


@dataclass(frozen=True)
class CollectOptions:
    """How an engine is asked."""

    parts: tuple[str, ...] = PARTS
    tokens_at_once: int = TOKENS_AT_ONCE
    concurrency: int = 4
    """Of generated answers; texts are scored one request after another."""
    items: int = ITEMS
    context_tokens: int = 0
    """0: no long context."""
    prompts: Sequence[CustomerPrompt] = ()
    keeps_prompts: bool = True
    """Whether the customer's prompts and answers go into the file."""
    engine_pid: int | None = None
    configuration: Configuration | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            raise ConfigurationError(f"--parts: {unknown[0]!r} is not one; there are: {', '.join(PARTS)}")


@dataclass
class _Draft:
    """What is there so far."""

    passages: list[Passage] = field(default_factory=list)
    renderings: list[Rendering] = field(default_factory=list)
    decode_runs: list[DecodeRun] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    customer: list[Answer] = field(default_factory=list)
    acceptance: Acceptance | None = None
    troubles: list[Trouble] = field(default_factory=list)
    not_seen: list[str] = field(default_factory=list)


class _Collector:
    def __init__(self, address: Address, options: CollectOptions, report: Report) -> None:
        self._address = address
        self._options = options
        self._report = report
        self.draft = _Draft()

    def run(self) -> None:
        options = self._options
        for part, step in (
            ("passages", self._passages),
            ("templates", self._templates),
            ("decode", self._decode),
            ("tasks", self._tasks),
        ):
            if part in options.parts:
                self._report(f"{part} of {self._address.url}")
                step()
            else:
                self.draft.not_seen.append(f"{part}: left out by --parts")
        if options.context_tokens:
            self._report(f"long context of {self._address.url}")
            self._long()
        else:
            self.draft.not_seen.append("long context: left out; --context-tokens gives it a length")
        if options.prompts:
            self._report(f"your prompts at {self._address.url}")
            self.draft.customer += self._several(
                "your prompts",
                list(enumerate(options.prompts, 1)),
                lambda pair: answer_prompt(self._address, *pair, keeps_prompt=options.keeps_prompts),
            )

    @property
    def _is_over(self) -> bool:
        troubles = self.draft.troubles
        return len(troubles) >= MOST_TROUBLES or any(trouble.kind == "silent" for trouble in troubles)

    def _passages(self) -> None:
        for batch in batches(corpus().passages, self._options.tokens_at_once):
            self.draft.passages += self._one("passages", partial(score_texts, self._address, batch)) or []
        for chat in corpus().chats:
            scored = self._one("chats", partial(score_chat, self._address, chat), may_refuse=True)
            if scored is None:
                break
            self.draft.passages.append(scored)

    def _templates(self) -> None:
        for name, probe in TEMPLATE_PROBES.items():
            found = self._one(f"template {name}", partial(render, self._address, name, probe), may_refuse=True)
            if found is not None:
                self.draft.renderings.append(found)

    def _decode(self) -> None:
        numbered = [(f"decode-{place}", prompt) for place, prompt in enumerate(DECODE_PROMPTS, 1)]
        self.draft.decode_runs += self._several(
            "decode", numbered, lambda pair: decode_run(self._address, *pair), at_once=max(1, self._options.tokens_at_once // 64)
        )

    def _tasks(self) -> None:
        before = self._counted()
        by_family: dict[str, list[Item]] = {}
        for item in self._fitting(items(self._options.items, self._options.context_tokens)):
            by_family.setdefault(item.family, []).append(item)
        for family, members in by_family.items():
            self.draft.answers += self._several(
                f"tasks {family}", members, lambda item: answer(self._address, item), may_refuse=family in OFFERED
            )
        after = self._counted()
        if before is not None and after is not None:
            drafts, draft_tokens, accepted = (int(b - a) for a, b in zip(before, after, strict=True))
            self.draft.acceptance = Acceptance(drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted)

    def _fitting(self, found: Iterable[Item]) -> list[Item]:
        """Without those that an engine of a short context cannot take."""
        limit = self._address.max_model_len
        kept, left = [], 0
        for item in found:
            fits = limit is None or len(item.prompt.encode()) / 3 + item.max_tokens < limit
            kept += [item] if fits else []
            left += not fits
        if left:
            self.draft.not_seen.append(f"tasks: {left} items are longer than the engine's context of {limit} tokens")
        return kept

    def _long(self) -> None:
        limit, wanted = self._address.max_model_len, self._options.context_tokens
        if limit is not None and wanted > limit * 3 // 4:
            self.draft.not_seen.append(f"long context: {wanted} tokens do not fit safely into the engine's {limit}")
            return
        self.draft.passages += self._one("long context", lambda: long_passages(self._address, wanted)) or []

    def _one(self, where: str, ask: Callable[[], T], *, may_refuse: bool = False) -> T | None:
        """What was asked for, or None with the trouble written down."""
        if self._is_over:
            return None
        try:
            return ask()
        except Refused as trouble:
            if may_refuse:
                self.draft.not_seen.append(f"{where}: the engine does not offer it: {trouble}")
            else:
                self._note("refused", where, trouble)
        except Silent as trouble:
            self._note("silent", where, trouble)
        except (EngineTrouble, KeyError, IndexError, TypeError, AttributeError, ValueError) as trouble:
            self._note("garbage", where, trouble if isinstance(trouble, Garbage) else f"an answer of another shape: {trouble!r}")
        return None

    def _several(
        self, where: str, questions: Sequence[T], ask: Callable[[T], R], *, may_refuse: bool = False, at_once: int | None = None
    ) -> list[R]:
        """In their order, some at a time; the first refusal ends them."""
        found: list[R] = []
        if not questions or self._is_over:
            return found
        first = self._one(where, lambda: ask(questions[0]), may_refuse=may_refuse)
        if first is None:
            return found
        found.append(first)
        workers = min(self._options.concurrency, at_once or self._options.concurrency)
        with ThreadPoolExecutor(max_workers=workers) as pool:
            answers = pool.map(lambda question: self._one(where, lambda: ask(question), may_refuse=may_refuse), questions[1:])
            found += [one for one in answers if one is not None]
        return found

    def _note(self, kind: TroubleKind, where: str, said: object) -> None:
        self.draft.troubles.append(Trouble(kind=kind, where=where, said=str(said)[:500]))

    def _counted(self) -> tuple[float, float, float] | None:
        """Drafts, draft tokens and accepted tokens that the engine has counted; None for one without speculative decoding."""
        try:
            text = self._address.text("/metrics")
        except EngineTrouble:
            return None
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        totals = [_total(text, f"vllm:spec_decode_{name}_total") for name in names]
        drafts, draft_tokens, accepted = totals
        return None if drafts is None else (drafts, draft_tokens or 0.0, accepted or 0.0)


def _total(text: str, name: str) -> float | None:
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


def collect(address: Address, options: CollectOptions, report: Report = lambda line: None) -> Collected:
    """Everything that the options ask for. What goes wrong on the way is in the result, as troubles.

    Raises: ConfigurationError when nothing answers at the address, or it serves another model.
    """
    address.look()
    began = monotonic()
    watch = memory.Watch(options.engine_pid)
    collector = _Collector(address, options, report)
    collector.run()
    peak_bytes, said = watch.peak()
    draft, spent = collector.draft, address.spent
    return Collected(
        created=stamp(),
        gate_version=__version__,
        corpus=corpus_digest(),
        parts=options.parts,
        engine=EngineFacts(url=address.url, model=address.model, version=address.version, max_model_len=address.max_model_len),
        configuration=options.configuration,
        passages=tuple(draft.passages),
        renderings=tuple(draft.renderings),
        decode_runs=tuple(draft.decode_runs),
        answers=tuple(draft.answers),
        customer=tuple(draft.customer),
        acceptance=draft.acceptance,
        troubles=tuple(draft.troubles),
        not_seen=tuple(draft.not_seen),
        cost=Cost(
            requests=spent.requests,
            prompt_tokens=spent.prompt_tokens,
            output_tokens=spent.output_tokens,
            seconds=round(monotonic() - began, 3),
            most_tokens_at_once=options.tokens_at_once,
            peak_engine_bytes=peak_bytes,
            peak_engine_said=said,
        ),
    )


def stamp() -> str:
    """Now, in UTC."""
    return datetime.fromtimestamp(wall_seconds(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
