"""Measure a running engine with a few probes, so that a simulated one is as fast: the field `simulation` of its profile.

All probes are streams of completions with prompts that no engine has seen, one set after another; an engine that serves others
meanwhile is measured as slower than it is.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from serving.catalog.model import Simulation
from serving.core.errors import ConfigurationError
from serving.sim.probe import EngineFacts, Stream, stream

Report = Callable[[str], None]
AskAll = Callable[[Sequence[str], int], list[Stream]]
"""Asks all prompts at once for answers of so many tokens."""

_WORDS = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo")


@dataclass(frozen=True)
class Probes:
    """How much is asked of the engine."""

    rounds: int = 7
    """All probes are made in each, so that what else the machine does meets them alike."""
    answer_tokens: int = 64
    batches: tuple[int, ...] = (1, 4, 8)
    """Streams at once, to see what each adds to a step."""
    long_share: float = 0.4
    """Of the engine's context, for what prompts and contexts cost."""


def calibrate(engine: EngineFacts, probes: Probes, *, report: Report, ask_all: AskAll | None = None) -> Simulation:
    """The measured field; `ask_all` stands in for asking over HTTP.

    Raises:
        ConfigurationError: the engine does not answer as it should
    """
    ask_all = ask_all or over_http(engine)
    texts = Texts(ask_all)
    texts.measure()
    report(f"{texts.bytes_per_token:.2f} bytes a token")
    long_tokens = max(64, int(engine.max_model_len * probes.long_share))
    contexts = (_SHORT_TOKENS, long_tokens // 2)
    lengths = tuple(_SHORT_TOKENS + (long_tokens - _SHORT_TOKENS) * part // 4 for part in range(5))
    steps: dict[tuple[int, int], list[float]] = {(batch, context): [] for batch in probes.batches for context in contexts}
    firsts: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(probes.rounds):
        for (batch, context), seconds in steps.items():
            seconds += _step_seconds(ask_all([texts.of(context) for _ in range(batch)], probes.answer_tokens))
        for length, seconds in firsts.items():
            seconds.append(ask_all([texts.of(length)], 2)[0].token_seconds[0])
        report(f"round {number + 1} of {probes.rounds}")
    if not all(steps.values()):
        raise ConfigurationError(
            f"{engine.url}: its streams never ran at the same time, so a step cannot be measured; is something else using it?"
        )
    step, per_sequence, per_context_token = fit(
        [(1.0, batch, batch * (context + probes.answer_tokens / 2)) for batch, context in steps],
        [typical(seconds) for seconds in steps.values()],
    )
    report(f"step {step * 1e3:.2f} ms + {per_sequence * 1e3:.3f} ms a request + {per_context_token * 1e6:.3f} µs a context token")
    chunks = [-(-length // engine.max_num_batched_tokens) for length in lengths]
    request, per_token, per_pair = fit(
        [(1.0, length, length * length / 2) for length in lengths],
        [typical(firsts[length]) - count * step for length, count in zip(lengths, chunks, strict=True)],
    )
    per_token = max(per_token, _FASTEST_SECONDS)
    report(
        f"prompts at {1 / per_token:.0f} tokens/s + {per_pair * 1e9:.2f} ns a pair of tokens, {request * 1e3:.2f} ms a request"
    )
    return Simulation(
        source="measured with `serving calibrate`",
        kv_capacity_tokens=engine.kv_capacity_tokens,
        block_tokens=engine.block_tokens,
        prefill_tokens_per_second=_rounded(1 / per_token),
        step_seconds=_rounded(max(step, _FASTEST_SECONDS)),
        step_seconds_per_sequence=_rounded(per_sequence),
        step_seconds_per_context_token=_rounded(per_context_token),
        prefill_seconds_per_token_pair=_rounded(per_pair),
        request_seconds=_rounded(request),
        bytes_per_token=min(8, max(1, round(_natural_bytes_per_token(ask_all)))),
    )


class Texts:
    """Prompts of a wanted length in tokens, each new, whatever ran before."""

    def __init__(self, ask_all: AskAll) -> None:
        self._ask_all = ask_all
        self._chance = random.Random()
        self.bytes_per_token = 2.0

    def measure(self) -> None:
        """Learn how many bytes of these texts make a token."""
        text = self._text(1000)
        (found,) = self._ask_all([text], 1)
        if not found.prompt_tokens:
            raise ConfigurationError("the engine's stream tells no usage, so its tokens cannot be counted")
        self.bytes_per_token = len(text) / found.prompt_tokens

    def of(self, tokens: int) -> str:
        return self._text(max(1, round(tokens * self.bytes_per_token)))

    def _text(self, length: int) -> str:
        words = (self._chance.choice(_WORDS) for _ in range(length))
        return "".join(words)[:length]


def typical(values: Sequence[float]) -> float:
    """The mean without the highest and the lowest: ordinary stalls are part of a machine's speed, a single long one is not."""
    if len(values) < 4:
        return statistics.median(values)
    return statistics.fmean(sorted(values)[1:-1])


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Least squares with factors that are not negative: one that would be is left out, the most negative first."""
    used = list(range(len(rows[0])))
    while True:
        factors = _solve([[row[column] for column in used] for row in rows], values)
        lowest = min(range(len(used)), key=lambda place: factors[place])
        if factors[lowest] >= 0 or len(used) == 1:
            break
        del used[lowest]
    found = dict(zip(used, factors, strict=True))
    return [max(0.0, found.get(column, 0.0)) for column in range(len(rows[0]))]


def _solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The normal equations, columns scaled to their largest entry, by elimination."""
    size = len(rows[0])
    scale = [max(abs(row[column]) for row in rows) or 1.0 for column in range(size)]
    scaled = [[row[column] / scale[column] for column in range(size)] for row in rows]
    matrix = [
        [sum(row[a] * row[b] for row in scaled) for b in range(size)]
        + [sum(row[a] * value for row, value in zip(scaled, values, strict=True))]
        for a in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda place: abs(matrix[place][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for other in range(size):
            if other != column and matrix[column][column]:
                ratio = matrix[other][column] / matrix[column][column]
                matrix[other] = [x - ratio * y for x, y in zip(matrix[other], matrix[column], strict=True)]
    return [matrix[place][size] / (matrix[place][place] or 1.0) / scale[place] for place in range(size)]


_SHORT_TOKENS = 8
_FASTEST_SECONDS = 1e-7
"""Of a step or a token, where the probes see none."""


_PROSE = (
    "The harbour lies between two hills, and from the upper road one sees the whole of it at once: the long pier with its "
    "lamps, the boats that come in before the weather turns, and the low houses whose doors are painted in all colours. In the "
    "morning the market is held on the square behind the church. People from the villages bring fruit, bread and cheese, and "
    "they stay until the afternoon to talk about the price of hay and whose daughter has gone to the city to learn a trade."
)


def _natural_bytes_per_token(ask_all: AskAll) -> float:
    """Of ordinary English; the probes' own texts are syllables, which have shorter tokens."""
    (found,) = ask_all([_PROSE], 1)
    return len(_PROSE) / found.prompt_tokens


def over_http(engine: EngineFacts) -> AskAll:
    """A thread a stream."""

    def ask_all(prompts: Sequence[str], answer_tokens: int) -> list[Stream]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: stream(engine, prompt, answer_tokens=answer_tokens), prompts))

    return ask_all


def _step_seconds(found: Sequence[Stream]) -> list[float]:
    """While all streams of a batch run; nothing if they never did."""
    begun = max(one.token_seconds[0] for one in found)
    ended = min(one.token_seconds[-1] for one in found)
    means = []
    for one in found:
        moments = [moment for moment in one.token_seconds if begun <= moment <= ended]
        if len(moments) > 1:
            means.append((moments[-1] - moments[0]) / (len(moments) - 1))
    return [statistics.median(means)] if means else []


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
