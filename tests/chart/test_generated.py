"""What the chart takes from the catalog is as the catalog has it, and what it runs is what `serving engine` prints."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from serving import __version__, cli
from serving.catalog.argv import ENTRY_MODULE
from serving.catalog.load import load_catalog
from serving.catalog.parallel import accelerators
from serving.catalog.render import find_image, render_profile
from serving.core.errors import ConfigurationError
from serving.settings import Settings
from tests.chart.conftest import COMMIT, VALUES, outside_the_pod
from tests.doubles.catalogs import SHIPPED, copy_of_catalog, spoil
from tests.doubles.tools import CHART, ROOT, Helm, container, only, pod_templates

CATALOG = load_catalog(SHIPPED)
PROFILES = sorted(CATALOG.profiles)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_chart", ROOT / "scripts" / "render_chart.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_files_are_up_to_date() -> None:
    made = script().files()
    wrong = [path.name for path, content in made.items() if not path.exists() or path.read_text() != content]
    assert wrong == [], "run `make catalog`"
    for folder in ("profiles", "pod", "dashboards", "rules"):
        there = set((CHART / "files" / folder).iterdir())
        assert there == {path for path in made if path.parent == CHART / "files" / folder}


def keys(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> set[str]:
    """The paths of all keys that a values file may have, but for what is free or the gateway's settings."""
    found = set()
    for name, inner in node.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        found.add(here)
        if "$ref" in inner and not inner["$ref"].endswith("/Settings"):
            found |= keys(schema, schema["definitions"][inner["$ref"].rpartition("/")[2]], here)
    return found


def test_values_yaml_has_every_key_with_its_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)

    def missing(path: str) -> bool:
        node: Any = values
        for key in path.split("."):
            if not isinstance(node, dict) or key not in node:
                return True
            node = node[key]
        return False

    assert [path for path in sorted(keys(schema, schema)) if missing(path)] == []
    assert len(text.splitlines()) <= 250
    pool = schema["definitions"]["Pool"]["properties"]
    assert [key for key in pool if f"{key}:" not in text] == [], "every key of a pool stands there, if only as a comment"


def test_the_versions_are_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def dry_run(profile: str, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.app, ["engine", profile, "--dry-run", "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.mark.chart
@pytest.mark.parametrize("profile", PROFILES)
def test_a_pool_runs_what_serving_engine_prints(helm: Helm, profile: str) -> None:
    """Image, command and environment; resources and place are those of the profile's target."""
    pool = {"name": "pool", "profile": profile, "revision": COMMIT}
    nodes = CATALOG.profiles[profile].nodes_per_engine
    workload = only(helm.template({"pools": [pool]}), "Deployment" if nodes == 1 else "LeaderWorkerSet", "-pool")
    engine, spec = container(workload), pod_templates(workload)[0]["spec"]
    printed = dry_run(profile, "--in-image")
    assert engine["command"] == printed["argv"]
    assert {variable["name"]: variable["value"] for variable in engine["env"]} == printed["environment"]
    assert "args" not in engine
    target = CATALOG.targets[CATALOG.profiles[profile].target]
    if target.nodes.resource is not None:
        assert engine["resources"]["limits"][target.nodes.resource] * nodes == accelerators(CATALOG.profiles[profile], target)
    assert spec["nodeSelector"] == target.nodes.selector
    assert len(spec.get("tolerations", [])) == len(target.nodes.tolerations)
    assert engine["image"].startswith(f"docker.io/{find_image(CATALOG, CATALOG.profiles[profile]).repository}")


@pytest.mark.parametrize("profile", PROFILES)
def test_in_the_image_an_engine_is_what_it_is_here(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the words that start it and the places of its files."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.setenv("SERVING_ENGINE_SECRET_FILE", str(secret))
    here = dry_run(profile, "--host", "0.0.0.0", "--port", "8000", "--model-path", "/model")
    inside = dry_run(profile, "--in-image")
    assert inside["argv"][:3] == ["vllm", "serve", "/model"]
    assert here["argv"][1:5] == ["-m", ENTRY_MODULE, "--model", "/model"]
    shared = inside["argv"][3:]
    if CATALOG.profiles[profile].nodes_per_engine > 1:  # which node leads is known in the cluster only
        at = shared.index("--master-addr")
        assert shared[at + 1] == "$(LWS_LEADER_ADDRESS)" and shared[at + 4 : at + 6] == ["--node-rank", "0"]
        del shared[at : at + 6]
    assert here["argv"][5:] == shared
    places = {"HOME", "USER", "PYTHONPATH", "SERVING_ENGINE_SECRET_FILE"}
    assert {n: v for n, v in inside["environment"].items() if n not in places} == {
        n: v for n, v in here["environment"].items() if n not in places
    }


def test_in_image_needs_dry_run() -> None:
    with pytest.raises(ConfigurationError, match=r"--in-image .* needs --dry-run"):
        CliRunner().invoke(cli.app, ["engine", PROFILES[0], "--in-image"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "engines/images.yaml",
            "version: 0.32.0",
            "version: 0.31.0",
            "engines/images.yaml has no image of vLLM 0.32.0 for cpu",
        ),
        ("engines/images.yaml", "tag:", "tags:", "images.0.tags: is not a field; did you mean tag?"),
        ("targets/cpu-epyc.yaml", "  resource: null\n", "", "nodes.resource: is missing"),
        ("profiles/smollm2-135m-cpu.yaml", "max-num-seqs: 32", "tensor-parallel-size: 3", "a node of cpu-epyc has 1"),
        ("profiles/smollm2-135m-cpu.yaml", "max-num-seqs: 32", "swap-space: 4", "is not a flag of vLLM 0.32.0"),
    ],
)
def test_what_cannot_be_rendered_is_said(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    root = copy_of_catalog(tmp_path)
    spoil(root / file, old, new)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        render_profile(load_catalog(root), "smollm2-135m-cpu")


def test_one_image_is_named_once(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    path = root / "engines" / "images.yaml"
    line = load_catalog(root).images[0]
    path.write_text(path.read_text() + f"  - {line.model_dump_json(exclude_none=True)}\n")
    with pytest.raises(ConfigurationError, match=r"images\.3: vLLM 0\.32\.0 for cpu is given twice"):
        load_catalog(root)


@pytest.mark.chart
def test_the_gateways_settings_are_ones_that_the_gateway_takes(helm: Helm) -> None:
    for name, values in VALUES.items():
        if "mixed" in name:
            continue
        text = only(helm.template(values), "ConfigMap", "-gateway")["data"]["gateway.yaml"]
        settings = Settings.model_validate(outside_the_pod(yaml.safe_load(text)))
        assert [pool.name for pool in settings.pools] == [pool["name"] for pool in values.get("pools", [{"name": "cpu"}])]
        assert settings.server.operator_host == "0.0.0.0"
        if name == "gateway-settings":
            assert settings.limits.body_bytes == 67_108_864
