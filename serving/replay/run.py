"""One replay from its options to its report: look, prime, the stages, the verdict."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving import __version__
from serving.core.clock import monotonic
from serving.core.errors import ConfigurationError
from serving.replay.arrivals import ClosedLoop, OpenLoop, Pattern, Recorded
from serving.replay.bodies import BodyMaker
from serving.replay.engine import EngineFacts, EngineProbe
from serving.replay.load import Load, Phases
from serving.replay.measure import LEFT
from serving.replay.money import find_hardware, find_price
from serving.replay.profile import Objectives, ReplayProfile, Sessions
from serving.replay.progress import LiveProgress, stamp
from serving.replay.report import Engine, Found, Options, Report, Stage
from serving.replay.search import resolution, search, search_faults
from serving.replay.stages import Setting, stage_of
from serving.replay.statistics import METHOD
from serving.replay.stream import Client, Sample
from serving.replay.traffic import Ground, Planned, Source, source_of
from serving.replay.words import Vocabulary, Wording

_PRIMES_AT_ONCE = 4
_STAGE_NUMBERS = 1_000_000
"""Numbers of conversations that a stage may use, so that no two stages send the same."""
_LOOKED_AT = 300
_SHOWN_EVERY_SECONDS = 0.5
_MOST_NOTES = 5


@dataclass(frozen=True)
class Order:
    """What is to be run."""

    options: Options
    profile: ReplayProfile
    nonce: str
    catalog_root: Path
    api_key: str | None = None
    argv: tuple[str, ...] = ()


async def replay(order: Order, progress: LiveProgress) -> Report:
    """Raises: ConfigurationError when it cannot be run; a run that cannot be trusted is a report that says so.

    When it is cancelled and has measured one of its loads already, it returns all the same: a report of those, marked invalid.
    """
    run = _Run(order, progress)
    try:
        return await run.report()
    finally:
        await run.close()


class _Run:
    def __init__(self, order: Order, progress: LiveProgress) -> None:
        self._order = order
        self._options = order.options
        self._profile = order.profile
        self._progress = progress
        self.objectives: Objectives | None = self._options.objectives or self._profile.objectives
        if self._options.search and self.objectives is None:
            raise ConfigurationError("--search: needs objectives, in the profile or by --ttft, --tpot or --e2e")
        self._hardware = find_hardware(self._options, order.catalog_root)
        self._client = self._new_client(self._options.url)
        self._metrics = [self._new_client(url) for url in self._options.metrics_urls]
        self._probe = EngineProbe(
            self._client, self._options.model, self._metrics, dict(self._options.extra), lambda text: progress.phase(text)
        )
        self._notes: list[str] = []
        self._simulated: dict[str, None] = {}
        self._fingerprints: dict[str, None] = {}
        self._stage = 0
        self._done: list[Stage] = []

    def _new_client(self, url: str) -> Client:
        return Client(url, self._order.api_key, timeout_seconds=self._options.timeout_seconds)

    async def close(self) -> None:
        for client in (self._client, *self._metrics):
            await client.close()

    async def report(self) -> Report:
        options, profile = self._options, self._profile
        self._progress.phase(f"looking at {self._client.url}")
        is_session = isinstance(profile.traffic, Sessions)
        facts = await self._probe.look(with_system=is_session, with_turns=is_session, block_tokens=options.block_tokens)
        wording = Wording(facts.vocabulary, self._order.nonce)
        block_tokens = await self._block_tokens(facts, wording)
        self._ground = Ground(facts.template, block_tokens or 1)
        self._check_room(facts)
        self._source = self._new_source()
        self._bodies = BodyMaker(wording, facts.model, facts.forcing, dict(options.extra))
        primes = self._source.primes()
        self._setting = Setting(
            options=options,
            objectives=self.objectives,
            hardware=self._hardware,
            price=find_price(options, self._hardware),
            cache=facts.cache,
            forces_length=facts.forcing.ignores_eos,
            shared_tokens=sum(planned.prompt_tokens for planned in primes),
        )
        for _ in range(options.prime_rounds):
            await self._prime(primes)
        try:
            stages, found = await self._stages()
            faults = search_faults(stages, found) if found is not None else _faults(stages)
        except asyncio.CancelledError:
            if not self._done:
                raise
            stages, found = self._done, None
            faults = [f"it was stopped; only these of its loads were measured: {', '.join(stage.label for stage in stages)}"]
        self._note_busy_machine()
        if facts.simulated is not None:
            self._simulated = {facts.simulated: None, **self._simulated}
        return Report(
            format="serving replay 1",
            is_valid=not faults,
            faults=tuple(faults),
            simulated=next(iter(self._simulated), None),
            created=stamp(),
            serving_version=__version__,
            python=platform.python_version(),
            machine=f"{platform.platform()}, {os.cpu_count()} cores",
            argv=self._order.argv,
            options=options,
            profile=profile,
            profile_sha256=profile_sha256(profile),
            objectives=self.objectives,
            nonce=self._order.nonce,
            engine=self._engine(facts, block_tokens),
            notes=tuple(self._notes),
            statistics=METHOD,
            stages=tuple(stages),
            found=found,
        )

    def _engine(self, facts: EngineFacts, block_tokens: int | None) -> Engine:
        return Engine(
            model=facts.model,
            version=facts.version,
            simulated=facts.simulated,
            fingerprints=tuple(self._fingerprints),
            max_model_len=facts.max_model_len,
            block_tokens=block_tokens,
            kv_capacity_tokens=facts.cache.capacity_tokens,
            prefix_caching=facts.cache.is_enabled,
            counts_by=facts.counts_by,
            template=asdict(facts.template),
            vocabulary_words=len(facts.vocabulary.words),
            vocabulary_sha256=_vocabulary_sha256(facts.vocabulary),
            forced=tuple(facts.forcing.fields(1)),
        )

    async def _block_tokens(self, facts: EngineFacts, wording: Wording) -> int | None:
        if facts.cache.block_tokens is not None:
            return facts.cache.block_tokens
        self._progress.phase("looking for the cache's blocks")
        found = await self._probe.block_tokens(wording, facts.template, facts.max_model_len or 3000)
        if found is None:
            self._notes.append("the size of the cache's blocks is not known; --block-tokens gives it")
        return found

    def _new_source(self) -> Source:
        return source_of(self._profile, self._ground, scale=self._options.scale, seed=self._options.seed)

    def _check_room(self, facts: EngineFacts) -> None:
        """Whether the longest request fits the engine. Raises: ConfigurationError with a scale that does."""
        if facts.max_model_len is None:
            return
        source = self._new_source()
        requests = [request for number in range(_LOOKED_AT) for request in source.conversation(number)]
        longest = max(request.prompt_tokens + request.output_tokens for request in requests)
        if longest > facts.max_model_len:
            scale = self._options.scale * facts.max_model_len / longest * 0.97
            raise ConfigurationError(
                f"--scale: at {self._options.scale:g} the longest of {len(requests)} requests has {longest:,} tokens, and the "
                f"engine's context {facts.max_model_len:,}; {scale:.2g} would fit"
            )

    # Priming

    async def _prime(self, primes: Sequence[Planned]) -> None:
        if primes:
            self._progress.phase(f"priming {len(primes)} shared beginnings")
        slots = asyncio.Semaphore(_PRIMES_AT_ONCE)
        await asyncio.gather(*(self._prime_one(planned, slots) for planned in primes))

    async def _prime_one(self, planned: Planned, slots: asyncio.Semaphore) -> None:
        async with slots:
            ended: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
            sample = Sample(-1, monotonic(), planned.prompt_tokens, planned.cached_tokens, planned.output_tokens)
            self._client.send(self._bodies(planned), sample, ended.set_result)
            await ended
        if sample.error is not None:
            raise ConfigurationError(f"{self._client.url}: priming failed: {sample.error}: {sample.detail[:300]}")

    # Stages

    async def _stages(self) -> tuple[list[Stage], Found | None]:
        options = self._options
        if options.search:
            assert self.objectives is not None
            self._note_resolution(self.objectives)
            return await search(
                lambda rate: self._run_stage(OpenLoop(rate, options.pace)),
                self.objectives,
                start=options.search_from,
                precision=options.search_precision,
            )
        return [await self._run_stage(pattern) for pattern in self._patterns()], None

    def _note_resolution(self, objectives: Objectives) -> None:
        settle, measure = self._seconds
        found = resolution(objectives, settle + measure)
        if found > self._options.search_precision:
            self._notes.append(
                f"in {settle + measure:g} s a queue hides up to {found:.0%} above the capacity before an objective is missed; "
                "measure longer if that matters"
            )

    @property
    def _seconds(self) -> tuple[float, float]:
        """To settle and to measure."""
        options, profile = self._options, self._profile
        settle = profile.settle_seconds if options.settle_seconds is None else options.settle_seconds
        measure = profile.measure_seconds if options.measure_seconds is None else options.measure_seconds
        return settle, measure

    def _patterns(self) -> list[Pattern]:
        options = self._options
        patterns: list[Pattern] = [OpenLoop(rate, options.pace) for rate in options.rates]
        patterns += [ClosedLoop(concurrency) for concurrency in options.concurrencies]
        if options.as_recorded:
            if self._source.at_seconds(0) is None:
                raise ConfigurationError("--as-recorded: the profile has no moments (at_seconds); give --rate or --concurrency")
            patterns.append(Recorded(options.time_factor))
        if patterns:
            return patterns
        return [Recorded()] if self._source.at_seconds(0) is not None else [ClosedLoop(self._profile.concurrency)]

    def _note_busy_machine(self) -> None:
        cores = os.cpu_count() or 1
        busy = os.getloadavg()[0]
        if busy > cores:
            self._notes.append(f"the client's machine was busy: {busy:.1f} processes for {cores} cores (last minute's mean)")

    async def _run_stage(self, pattern: Pattern) -> Stage:
        options = self._options
        settle, measure = self._seconds
        if isinstance(pattern, Recorded) and options.measure_seconds is None:
            measure /= pattern.speed
        # What a search does not see the end of has not met its objectives; nothing is gained by waiting longer.
        drain = min(options.drain_seconds, measure) if options.search else options.drain_seconds
        phases = Phases(settle, measure, drain)
        before = await self._probe.counters()
        first_number = self._stage * _STAGE_NUMBERS
        load = Load(self._client, self._source, self._bodies, pattern, phases, seed=options.seed, first_number=first_number)
        self._stage += 1
        self._progress.phase(pattern.label, settle + measure)
        showing = asyncio.get_running_loop().create_task(self._show(load, settle, measure))
        try:
            data = await load.run()
        finally:
            showing.cancel()
        after = await self._probe.counters()
        for sample in data.samples:
            self._note(sample)
        stage = await asyncio.to_thread(stage_of, data, self._setting, before, after)
        self._done.append(stage)
        return stage

    async def _show(self, load: Load, settle: float, measure: float) -> None:
        while self._progress.is_live:
            await asyncio.sleep(_SHOWN_EVERY_SECONDS)
            self._progress.show(load.data, monotonic(), settle + measure, settle)

    def _note(self, sample: Sample) -> None:
        if sample.fingerprint is not None:
            self._fingerprints[sample.fingerprint] = None
            if "simulated" in sample.fingerprint:
                self._simulated[sample.fingerprint] = None
        if sample.simulated is not None:
            self._simulated[sample.simulated] = None
        if sample.error is not None and sample.error != LEFT and len(self._notes) < _MOST_NOTES:
            note = f"{sample.error}: {sample.detail[:200]}"
            if note not in self._notes:
                self._notes.append(note)


def _faults(stages: Sequence[Stage]) -> list[str]:
    if len(stages) == 1:
        return stages[0].faults
    return [f"{stage.label}: {fault}" for stage in stages for fault in stage.faults]


def profile_sha256(profile: ReplayProfile) -> str:
    """Of what it says, whatever its file looks like."""
    data: Any = profile.model_dump(mode="json", exclude={"description"})
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _vocabulary_sha256(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(json.dumps([vocabulary.joint, *vocabulary.words]).encode()).hexdigest()
