"""The campaign that proves the gate: honest and broken checkpoints on real engines, each collected once and kept.

`python -m tests.gate.campaign FOLDER` makes what is missing in FOLDER and goes on where it stopped: `checkpoints/`, and in
`collected/` one file of `serving gate collect` for each engine. An engine runs at a time, and none where nothing is missing;
all judgements are made from the files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.catalog.load import load_catalog
from serving.gate.address import Address
from serving.gate.checkpoints.dequantize import dequantize
from serving.gate.checkpoints.quantize import quantize
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Collected, read_collected, write_collected
from serving.settings import cache_dir, catalog_dir
from tests.doubles.real_engine import LOADS_WEIGHTS, MODEL_NAME, RealEngine, load_weights, running_engine
from tests.gate.sabotage import INPUT_SCALES, SABOTAGES

PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / "fp4cpu"
MODEL, CHECKPOINT = "smollm2-135m-instruct", "bf16"
QUANTIZED = ("nvfp4a16", "mxfp4a16", "int8", "nvfp4", "mxfp4", "int4")
MATCHED = ("nvfp4a16", "mxfp4a16", "int4")
"""Formats that leave activations alone: their expanded weights give what a right engine gives."""
BROKEN = tuple(sabotage.name for sabotage in SABOTAGES)
FLOAT32 = tuple(f"{name}-float32" for name in QUANTIZED)
"""Another honest implementation of each: same weights, same rounding of activations, other arithmetic."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "silent-no-op": ("--quantization", "int8_per_channel_weight_only"),  # vLLM takes it, says so, and leaves a dense model alone
    **dict.fromkeys(FLOAT32, ("--dtype", "float32")),
}
"""Of engines that are started otherwise than by their checkpoint alone."""
SAME_CHECKPOINT = {"silent-no-op": "bf16"} | {name: name.removesuffix("-float32") for name in FLOAT32}
OTHER_WEIGHTS = ("roll-scales", "double-matrix", "wrong-table", "swap-heads", "stale-layer")
"""Sabotages that change weights and nothing else."""
BROKEN_W4A4 = {f"nvfp4-{name}": name for name in (*OTHER_WEIGHTS, INPUT_SCALES.name)}
"""The same of the format that rounds activations: what is seen there by the stored run, and what is not."""
EVERYTHING = ["bf16", *QUANTIZED, *(f"expanded-{name}" for name in MATCHED), *BROKEN, *BROKEN_W4A4, *FLOAT32]
SHAPES = ((64, 1), (256, 2), (512, 4), (1024, 4))
"""Tokens scored at once and answers at a time, in turn."""
RELOADED = dict.fromkeys(OTHER_WEIGHTS, "nvfp4a16") | dict.fromkeys(BROKEN_W4A4, "nvfp4")
"""One engine loads them one after another, through vLLM's own loader."""
MAX_MODEL_LEN = 2048
START_SECONDS = 900.0
"""On a machine that others use as well."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PLUGIN)} | LOADS_WEIGHTS
Report = Callable[[str], None]


@dataclass(frozen=True)
class Campaign:
    """What is kept in `folder`. `parts` and `items` are what each engine is asked for."""

    folder: Path
    original: Path
    report: Report
    parts: tuple[str, ...] = ("passages", "templates", "decode")
    items: int = 4

    def checkpoint(self, name: str) -> Path:
        """`bf16`, one of QUANTIZED, `expanded-FORMAT` or the name of a sabotage; made when it is asked for first."""
        name = SAME_CHECKPOINT.get(name, name)
        if name == "bf16":
            return self.original
        path = self.folder / "checkpoints" / name
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make(name, path)
        return path

    def _make(self, name: str, path: Path) -> None:
        self.report(f"making the checkpoint {name}")
        if name in QUANTIZED:
            quantize(self.original, name, path, self.report)
        elif name.startswith("expanded-"):
            dequantize(self.checkpoint(name.removeprefix("expanded-")), path, self.report)
        else:
            partial = path.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            broken = BROKEN_W4A4.get(name, name)
            (sabotage,) = (sabotage for sabotage in (*SABOTAGES, INPUT_SCALES) if sabotage.name == broken)
            sabotage.write(self.checkpoint("nvfp4" if name in BROKEN_W4A4 else "nvfp4a16"), self.original, partial)
            partial.rename(path)

    def collected(self, name: str, repeat: int = 0) -> Collected:
        """What the engine with this checkpoint said, the `repeat`-th time."""
        missing = [number for number in range(repeat + 1) if not self._file(name, number).is_file()]
        if missing and name in RELOADED:
            self._collect_reloaded(RELOADED[name])
        elif missing:
            with self.engine(name) as engine:
                for number in missing:
                    self._collect(engine, name, number)
        return read_collected(self._file(name, repeat))

    def repeats(self, name: str, count: int) -> list[Collected]:
        """`count` times the same engine in other batches, with one start."""
        self.collected(name, count - 1)
        return [read_collected(self._file(name, number)) for number in range(count)]

    def _collect_reloaded(self, base: str) -> None:
        """All that one engine can load, and last what it began with: it must say then what it said at first."""
        names = [name for name, other in RELOADED.items() if other == base and not self._file(name, 0).is_file()]
        paths = {name: self.checkpoint(name) for name in [*names, base]}
        with self.engine(base) as engine:
            for name, path in paths.items():
                load_weights(engine, path)
                self._collect(engine, name if name != base else f"{base}-again", 0)

    @contextmanager
    def engine(self, name: str) -> Iterator[RealEngine]:
        self.report(f"starting an engine with {name}")
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with running_engine(
            self.checkpoint(name),
            logs / f"{name}.log",
            ARGUMENTS.get(name, ()),
            max_model_len=MAX_MODEL_LEN,
            environment=ENVIRONMENT,
            start_seconds=START_SECONDS,
        ) as engine:
            self.report(f"{name} is healthy after {engine.started_in_seconds:.0f} s")
            yield engine

    def _collect(self, engine: RealEngine, name: str, number: int) -> None:
        tokens_at_once, concurrency = SHAPES[number % len(SHAPES)]
        options = CollectOptions(
            parts=self.parts,
            tokens_at_once=tokens_at_once,
            concurrency=concurrency,
            items=self.items,
            engine_pid=engine.pid,
        )
        path = self._file(name, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        found = collect(Address(engine.url, model=MODEL_NAME, timeout_seconds=600), options, lambda line: None)
        write_collected(found, path)
        cost = found.cost
        tokens = f"{cost.requests} requests, {cost.prompt_tokens} + {cost.output_tokens} tokens"
        self.report(f"{name} {number}: {tokens}, {cost.seconds:.0f} s, peak {(cost.peak_engine_bytes or 0) / 1e6:.0f} MB")

    def _file(self, name: str, number: int) -> Path:
        return self.folder / "collected" / f"{name}-{number}.json"


def original_model(report: Report) -> Path:
    """SmolLM2 in bfloat16, as `serving up` keeps it."""
    from serving.engines.weights import find_model

    return find_model(load_catalog(catalog_dir()).models[MODEL], CHECKPOINT, cache_dir(), report)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(folder: Path, names: list[str]) -> None:
    campaign = Campaign(folder, original_model(say), say)
    for name in names or EVERYTHING:
        label, _, count = name.partition(":")
        campaign.repeats(label, int(count or 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
