from __future__ import annotations

from pathlib import Path

import pytest

from serving.catalog.load import find_profile, load_catalog
from serving.catalog.model import Model
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
def test_the_shape_has_the_published_number_of_parameters(model: Model) -> None:
    assert model.shape.parameters == pytest.approx(model.parameters, rel=0.01)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (TARGET, "power_watts", "power_kilowatts", ["power_kilowatts: is not a field; did you mean power_watts?"]),
        (PROFILE, "overhead_bytes: 2", "overhead_gb: 2", ["memory.overhead_gb: is not a field", "overhead_bytes"]),
        (MODEL, "weights_bytes: 269_060_552", 'weights_bytes: "269 MB"', ["checkpoints.bf16.weights_bytes:", "'269 MB'"]),
        (MODEL, "revision: 12fd", "revision: main #", ["checkpoints.bf16.sources.1.hub.revision:", "'main'"]),
        (MODEL, "kind: wheel", "kind: whee", ["checkpoints.bf16.sources.2:", "'wheel'"]),
        (MODEL, "package:", "packege:", ["sources.2.wheel.packege: is not a field; did you mean package?"]),
        (MODEL, "  layers: 30\n", "", ["shape.layers: is missing"]),
        (MODEL, "layers: 30", "layers: 30.5", ["shape.layers:", "30.5"]),
        (MODEL, "layers: 30", "layers: 0", ["shape.layers:", "greater than or equal to 1"]),
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


@pytest.mark.parametrize(
    "value",
    [
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: b]",
        '!!int "abc"',
        '!!int ""',
        '!!float "abc"',
        '!!bool "abc"',
        "!!python/name:os.system",
        "!unknown x",
        "9" * 5000,
        "0x" + "f" * 5000,
        "[" * 3000,
        "[" * 80 + "]" * 80,
        r'"\ud800"',
        r'"\0"',
        "&a [*a]",
        "*nowhere",
    ],
    ids=range(17),
)
def test_a_value_that_no_record_can_hold_is_one_sentence(root: Path, value: str) -> None:
    spoil(root / PROFILE, "description:", f"description: {value}\nformer:")
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    first, *others = str(caught.value).splitlines()
    assert first.startswith(f"{root / PROFILE}: ")
    assert len(first) < 500
    assert all("former" in line for line in others)


@pytest.mark.parametrize("date", ["2026-13-45", "2026-01-02", "2026-13-45T99:99:99Z"])
def test_a_date_is_text(root: Path, date: str) -> None:
    spoil(root / PROFILE, "description:", f"description: {date} #")
    assert load_catalog(root).profiles["smollm2-135m-cpu"].description == date


@pytest.mark.parametrize("text", ["[" * 100_000, '{"flags": ' + "[" * 400 + "]" * 400 + "}", '{"engine": "\\ud800"}', "9" * 5000])
def test_a_snapshot_that_no_record_can_hold_is_one_sentence(root: Path, text: str) -> None:
    path = root / "engines" / "vllm-0.32.0.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    assert all(line.startswith(f"{path}: ") and len(line) < 500 for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("BIND: auto", r'BIND: "a\0b"', "NUL"),
        ("BIND: auto", "BIND: auto\n  VLLM_API_KEY: sk-shown", "environment.VLLM_API_KEY: is a secret"),
        ("BIND: auto", "BIND: auto\n  HF_TOKEN: sk-shown", "environment.HF_TOKEN: is a secret"),
        ("  dtype: bfloat16", "  api-key: sk-shown", "SERVING_ENGINE_SECRET"),
        ("  dtype: bfloat16", "  api-key: [sk-shown]", "arguments.api-key: is a secret"),
        ("  dtype: bfloat16", "  hf-token: sk-shown", "arguments.hf-token: is a secret"),
        ("max-num-seqs: 32", "max-num-seqs: 0", "arguments.max-num-seqs: must be 1 or more, not 0"),
        ("  dtype: bfloat16", '  max-num-batched-tokens: "0"', "arguments.max-num-batched-tokens: must be 1 or more, not '0'"),
        ("max-model-len: 8192", "max-model-len: -5", "arguments.max-model-len: must be 1 or more, not -5"),
    ],
)
def test_a_profile_no_engine_should_be_given(root: Path, old: str, new: str, expected: str) -> None:
    spoil(root / PROFILE, old, new)
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(root)
    assert str(caught.value).startswith(f"{root / PROFILE}: ")
    assert expected in str(caught.value)
    assert "sk-shown" not in str(caught.value)


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
