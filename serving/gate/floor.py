"""Measures how far honest engines are apart on a target: repeats of one engine with other batches, and its matched reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from serving.catalog.gate_rules import Floor
from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, Report, collect, stamp
from serving.gate.collected import Collected
from serving.gate.compare import distance, require_comparable

SHAPES = ((64, 1), (256, 2), (1024, 4), (2048, 8))
"""Tokens scored at once and requests at a time; the first is one short text after another."""
REPEATS = 5


def repeats(open_address: Callable[[], Address], options: CollectOptions, count: int, report: Report) -> list[Collected]:
    """The same engine, asked in another way each time. Raises: ConfigurationError when it gets into trouble."""
    found = []
    for number in range(count):
        tokens_at_once, concurrency = SHAPES[number % len(SHAPES)]
        shaped = dataclasses.replace(
            options,
            parts=("passages", "decode"),
            tokens_at_once=min(tokens_at_once, options.tokens_at_once),
            concurrency=concurrency,
            prompts=(),
        )
        report(f"repeat {number + 1} of {count}: {shaped.tokens_at_once} tokens at once, {concurrency} requests at a time")
        collected = collect(open_address(), shaped, lambda line: None)
        if collected.troubles:
            trouble = collected.troubles[0]
            raise ConfigurationError(f"{collected.engine.url}: {trouble.where}: {trouble.said}; a floor needs a sound engine")
        found.append(collected)
    return found


def measure_floor(runs: Sequence[Collected], matched: Collected | None, source: str) -> Floor:
    """The floor of several runs of one honest engine, and of its matched reference where there is one.

    Each figure is the upper end of the 95 % interval of the largest. Raises: ConfigurationError for runs without distances.
    """
    first, *others = runs
    tokens, repeat_kl = 0, 0.0
    for other in others:
        apart = distance(first, other)
        if apart is None:
            raise ConfigurationError("floor: the runs have no passage with the same tokens")
        tokens, repeat_kl = apart.tokens, max(repeat_kl, apart.kl.high)
    matched_kl = repeat_kl
    if matched is not None:
        require_comparable(matched, first)
        apart = distance(matched, first)
        if apart is None:
            raise ConfigurationError("--matched: has no passage with the same tokens")
        tokens, matched_kl = apart.tokens, max(repeat_kl, apart.kl.high)
    version = first.engine.version or "unknown"
    said = f"{source}; {len(runs)} runs of one engine in {min(len(runs), len(SHAPES))} shapes of batches"
    said += ", and its matched reference" if matched is not None else "; no quantized engine with its matched reference"
    return Floor(
        engine_version=version,
        matched_kl=_upwards(matched_kl),
        repeat_kl=_upwards(repeat_kl),
        decode_difference=_upwards(max(map(_decode_difference, runs))),
        tokens=max(1, tokens),
        date=stamp()[:10],
        source=said,
    )


def _decode_difference(collected: Collected) -> float:
    differences = [abs(a - b) for run in collected.decode_runs for a, b in zip(run.decoded, run.prefilled, strict=True)]
    return math.fsum(differences) / len(differences) if differences else 0.0


def _upwards(value: float) -> float:
    """Three digits, never less than what was measured."""
    if value <= 0:
        return 0.0
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.ceil(value * scale) / scale


def read_floor(path: Path) -> Floor:
    """Raises: ConfigurationError."""
    try:
        return Floor.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{path}: {field}: {problem['msg']}; `serving gate floor -o FILE` writes such a file") from None
