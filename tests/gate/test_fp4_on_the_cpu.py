"""Real vLLM with the plugin serves NVFP4 and MXFP4 on the CPU, and the gate tells an honest one from a broken one.

Three starts, one after another: layers of both formats in one checkpoint, weights only, and with one matrix broken; the same
expanded; and both formats with 4-bit activations.
"""

from __future__ import annotations

import pytest

from serving.catalog.gate_rules import Floor
from serving.catalog.load import load_catalog
from serving.gate.address import Address
from serving.gate.checkpoints.dequantize import dequantize
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Collected
from serving.gate.compare import Distance, distance
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.verdict import Verdict
from serving.settings import catalog_dir
from tests.doubles.real_engine import MODEL_NAME, RealEngine, load_weights, running_engine
from tests.gate.campaign import ENVIRONMENT, START_SECONDS
from tests.gate.quantized import mixed_tiny
from tests.gate.sabotage import double_matrix

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

OPTIONS = CollectOptions(parts=("passages", "decode"), tokens_at_once=2048)
PLACES = {"weights": ("nvfp4a16", "mxfp4a16"), "activations": ("nvfp4", "mxfp4")}
"""Recipes of the lower and the upper layers."""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Collected]:
    """What each said: `weights`, `broken` (loaded into the same engine), `expanded` and `activations`."""
    folder = tmp_path_factory.mktemp("fp4")
    places = {name: mixed_tiny(folder / name, *recipes) for name, recipes in PLACES.items()}
    places |= {name: folder / name for name in ("expanded", "broken")}
    dequantize(places["weights"], places["expanded"], lambda line: None)
    double_matrix(places["weights"], places["expanded"], places["broken"])
    found = {}
    for name in ("weights", "expanded", "activations"):
        log = folder / f"{name}.log"
        with running_engine(places[name], log, environment=ENVIRONMENT, start_seconds=START_SECONDS) as engine:
            found[name] = ask(engine)
            if name == "weights":
                load_weights(engine, places["broken"])
                found["broken"] = ask(engine)
    return found


def ask(engine: RealEngine) -> Collected:
    return collect(Address(engine.url, model=MODEL_NAME, timeout_seconds=600), OPTIONS, lambda line: None)


def apart(collected: dict[str, Collected], reference: str, candidate: str) -> Distance:
    found = distance(collected[reference], collected[candidate])
    assert found is not None
    return found


def verdict(collected: dict[str, Collected], candidate: str) -> Verdict:
    floor = Floor(
        engine_version="0.32.0",
        matched_kl=0.0005,
        repeat_kl=0,
        decode_difference=0,
        tokens=2000,
        date="2026-11-30",
        source="the tiny model on a CPU",
    )
    return judge(
        Evidence(
            candidate=collected[candidate],
            format="nvfp4a16",
            rules=load_catalog(catalog_dir()).gates["default"],
            target="cpu-epyc",
            floor=floor,
            matched=collected["expanded"],
        )
    )


def test_weights_in_both_formats_give_their_expanded_weights_answers(collected: dict[str, Collected]) -> None:
    found = apart(collected, "expanded", "weights")
    assert found.kl.value < 0.002
    assert verdict(collected, "weights").outcome == "pass"


def test_one_doubled_matrix_fails(collected: dict[str, Collected]) -> None:
    honest, broken = apart(collected, "expanded", "weights"), apart(collected, "expanded", "broken")
    assert broken.kl.value > 10 * honest.kl.value
    found = verdict(collected, "broken")
    assert found.outcome == "fail"
    assert found.reason.startswith("matched.kl: mean KL")


def test_activations_in_four_bits_are_really_rounded(collected: dict[str, Collected]) -> None:
    found = apart(collected, "expanded", "activations")
    assert not collected["activations"].troubles
    assert found.kl.value > 3 * apart(collected, "expanded", "weights").kl.value
