"""Floors are measured: repeats of one engine, and its matched reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collect import CollectOptions
from serving.gate.floor import measure_floor, read_floor, repeats
from tests.doubles.numeric_engine import NumericEngine
from tests.gate.conftest import collected


def test_repeats_have_other_batches() -> None:
    with NumericEngine() as engine:
        said: list[str] = []
        options = CollectOptions(tokens_at_once=1024)
        runs = repeats(lambda: Address(engine.url), options, 3, said.append)
        sizes = [len(body["prompt"]) for path, body in engine.requests if isinstance(body.get("prompt"), list)]
    assert said == [
        "repeat 1 of 3: 64 tokens at once, 1 requests at a time",
        "repeat 2 of 3: 256 tokens at once, 2 requests at a time",
        "repeat 3 of 3: 1024 tokens at once, 4 requests at a time",
    ]
    assert len(set(sizes)) > 2
    found = measure_floor(runs, None, "a test")
    assert (found.repeat_kl, found.matched_kl, found.decode_difference) == (0.0, 0.0, 0.0)
    assert found.engine_version == "0.32.0"
    assert "no quantized engine with its matched reference" in found.source


def test_the_floor_is_the_upper_end_of_what_was_seen(tmp_path: Path) -> None:
    runs = [collected(), collected(fault=0.02), collected(fault=0.03)]
    found = measure_floor(runs, collected(fault=0.08), "a test")
    from serving.gate.compare import distance

    apart, matched = distance(runs[0], runs[2]), distance(collected(fault=0.08), runs[0])
    assert apart is not None and matched is not None
    assert apart.kl.value < found.repeat_kl == pytest.approx(apart.kl.high, rel=0.01)
    assert matched.kl.value < found.matched_kl == pytest.approx(matched.kl.high, rel=0.01)
    path = tmp_path / "floor.json"
    path.write_text(found.model_dump_json())
    assert read_floor(path) == found


def test_a_sick_engine_gives_no_floor() -> None:
    with NumericEngine(not_a_number=True) as engine, pytest.raises(ConfigurationError, match="a floor needs a sound engine"):
        repeats(lambda: Address(engine.url), CollectOptions(), 2, lambda line: None)


def test_a_file_that_is_no_floor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "floor.json"
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"engine_version: Field required; `serving gate floor"):
        read_floor(path)
