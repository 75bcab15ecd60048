"""What the layers' contracts cannot say: what is loaded, where things are defined, and how they are named."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEVER_LOADED = ("torch", "vllm", "transformers", "gguf", "huggingface_hub", "httpx", "numpy", "requests")


@cache
def modules() -> dict[str, ast.Module]:
    """The package's modules by their path from its root."""
    package = ROOT / "serving"
    return {
        path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(*names: str) -> set[str]:
    """Modules of ours that import one of these packages."""
    return {path for path, tree in modules().items() if any(name.partition(".")[0] in names for name in imported(tree))}


def repository_files() -> Iterator[Path]:
    """All files but those that `.gitignore` names."""
    ignored = {line.strip().strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {".git"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ignored]
        yield from (Path(folder) / name for name in files if name not in ignored and not name.endswith(".pyc"))


# What is loaded


def loaded_with(statement: str) -> set[str]:
    """Top-level packages that a new process has after a statement."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=180)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize("module", ["serving.app", "serving.observability.tracing"])
def test_the_gateway_loads_no_engine_and_no_other_http_client(module: str) -> None:
    assert loaded_with(f"import {module}") & set(NEVER_LOADED) == set()


def test_opentelemetry_is_loaded_for_traces_only() -> None:
    create = "from serving.app import create_app; from serving.settings import Settings; create_app(Settings())"
    assert loaded_with(create) & {"opentelemetry", "google"} == set()


def test_fastapi_is_known_to_app_and_api_only() -> None:
    found = importers("fastapi", "starlette")
    assert {path for path in found if path != "app.py" and not path.startswith("api/")} == set()


def test_the_server_is_known_to_app_and_api_only() -> None:
    found = {path for path in importers("uvicorn") if path != "app.py" and not path.startswith("api/")}
    # A simulated engine is a server of its own, with the one that vLLM has, and so is the gate's controller.
    assert {path for path in found if not path.startswith("sim/")} == {"gatekeeper/run.py"}


def test_the_simulator_loads_neither_the_gateway_nor_an_engine() -> None:
    program = "import json, sys, serving.sim.run; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=180)
    loaded = set(json.loads(done.stdout))
    assert {name.partition(".")[0] for name in loaded} & {*NEVER_LOADED, "fastapi", "starlette"} == set()
    rooms = ("routing", "fleet", "tenancy", "pipeline", "api", "app", "engines")
    assert {name for name in loaded for room in rooms if name.startswith(f"serving.{room}")} == set()


def test_the_wires_parser_is_known_to_engines_and_the_server_only() -> None:
    assert all(path.startswith("engines/") or path == "api/protocol.py" for path in importers("httptools"))


def test_no_http_client_library_is_used() -> None:
    assert importers("httpx", "requests", "aiohttp") == set()


# Where things are


def _reads_environment(tree: ast.Module) -> bool:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.value, ast.Name) and node.value.id == "os":
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            return True
    return False


def test_only_settings_read_the_environment() -> None:
    readers = {path for path, tree in modules().items() if _reads_environment(tree)}
    # The guard and a pod's programs run inside the engine's image, where there are no settings.
    assert readers - {"engines/guard/serving_guard.py", "engines/pod/first_token.py"} == {"settings.py"}


def test_every_series_is_defined_in_one_place() -> None:
    recorder = "engines/snapshot_families.py"  # declares none: it writes down those that vLLM declares
    publishing = {"observability/metrics.py", "observability/collectors.py"}  # which take definitions and have no names
    assert importers("prometheus_client") - {recorder} == publishing
    for path in publishing:
        texts = [node.value for node in ast.walk(modules()[path]) if isinstance(node, ast.Constant)]
        assert [text for text in texts if isinstance(text, str) and re.match(r"serving_\w+$", text)] == []


@pytest.mark.parametrize("path", ["clock.py", "context.py", "errors.py", "outcomes.py", "routes.py", "trace.py"])
def test_the_core_knows_the_standard_library_only(path: str) -> None:
    foreign = {name for name in imported(modules()[f"core/{path}"]) if name.partition(".")[0] not in sys.stdlib_module_names}
    assert all(name.startswith("serving.core") for name in foreign)


# How things are named


def test_no_module_is_named_after_nothing_in_particular() -> None:
    banned = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers", "handler", "handlers"}
    found = {
        path.relative_to(ROOT).as_posix()
        for path in repository_files()
        if path.suffix == ".py" and banned & set(re.split(r"[/_.]", path.relative_to(ROOT).as_posix().lower()))
    }
    assert found == set()


def test_no_class_is_named_after_nothing_in_particular() -> None:
    found = {
        f"{path}: {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and re.search(r"(Manager|Helper|Handler|Utils?)$", node.name)
    }
    assert found == set()


# What no file names

REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("py" + "pi", "org"),
        ("python" + "hosted", "org"),
        ("npm" + "js", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("jfrog", "io"),
    )
]


def machine_paths() -> list[str]:
    """Where this checkout and this user's files lie."""
    places = {ROOT, ROOT.parent, Path.home()}
    return [f"{place}/" for place in places if len(place.parts) > 1]


def test_no_file_names_a_place_on_a_machine_or_a_package_registry() -> None:
    homes = re.compile(r"(?<![\w.])/(?:home|Users)/\w+/")
    own = re.compile("|".join(rf"(?<![\w./-]){re.escape(place)}" for place in machine_paths()) or r"\b\B")
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in (homes, own):
            found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRIES if host in text]
    assert found == []
