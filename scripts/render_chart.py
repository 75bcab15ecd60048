"""Writes what the chart takes from elsewhere: rendered profiles, the pods' programs, the schema of its values, its README; and
the dashboards and rules, which also stand in deploy/observability.

Run it with `make catalog` after a change of configs/, of serving/settings.py, of a pod's program or of scripts/boards; a test
fails while the files differ from what this would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from serving.catalog.load import load_catalog
from serving.catalog.render import render_profile
from serving.settings import Settings

sys.path.insert(0, str(Path(__file__).resolve().parent))
import boards.render
from chart_readme import chart_readme
from chart_values import values_schema

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "serving"
POD_PROGRAMS = ("guard/serving_guard.py", "pod/fetch_model.py", "pod/first_token.py", "pod/wait_for_memory.py")
SECTIONS = (
    *("server", "limits", "relay", "probe", "health", "discovery", "kubernetes", "engine_load", "quality", "auth", "tenants"),
    *("database", "ledger", "prices", "models", "provider_listing", "routing", "targets", "peers", "logging", "tracing"),
)
"""Of the settings: those that a user of the chart may give."""
OF_THE_CHART = {
    "ServerSettings": (
        *("host", "port", "operator_host", "operator_port", "drain_delay_seconds", "shutdown_grace_seconds"),
        *("tls_certificate", "tls_key"),
    ),
    "RelaySettings": ("engine_secret", "engine_secret_file", "engine_ca", "engine_client_certificate", "engine_client_key"),
    "TracingSettings": ("headers", "ca"),
    "KubernetesSettings": ("api_url", "token_file", "ca"),
    "AuthSettings": ("api_key", "cache_secret", "key_secret", "key_file"),
    "DatabaseSettings": ("url",),
    "LimitStoreSettings": ("url",),
    "LedgerSettings": ("spill_dir",),
    "RoutingSettings": ("explain_key",),
    "PeerSettings": ("host", "addresses", "bind_host", "port", "secret", "secret_file"),
    "QualitySettings": ("references", "eject"),
}
"""Fields that the chart sets by itself, or that are secrets or files, which values cannot bring."""


def files() -> dict[Path, str]:
    """Every file that is made, with its content."""
    catalog = load_catalog(ROOT / "configs")
    made = {CHART / "files" / "profiles" / f"{name}.json": _json(render_profile(catalog, name)) for name in catalog.profiles}
    for program in POD_PROGRAMS:
        source = ROOT / "serving" / "engines" / program
        made[CHART / "files" / "pod" / source.name] = source.read_text(encoding="utf-8")
    schema = values_schema(settings_definitions())
    made[CHART / "values.schema.json"] = _json(schema)
    made[CHART / "README.md"] = chart_readme(CHART, schema)
    return made | boards.render.files(ROOT)


def settings_definitions() -> dict[str, Any]:
    """The settings' own schema in the words of draft 7, closed as they are."""
    schema = Settings.model_json_schema(ref_template="#/definitions/{model}")
    models = schema["$defs"]
    for name, fields in OF_THE_CHART.items():
        for field in fields:
            del models[name]["properties"][field]
    sections = {name: _section(schema["properties"][name]) for name in SECTIONS}
    settings = {"type": "object", "additionalProperties": False, "properties": sections}
    return {name: _trimmed(models[name]) for name in _reached(settings, models)} | {"Settings": settings}


def _section(found: dict[str, Any]) -> dict[str, Any]:
    """A section that is a model is named; one that is a mapping stands as it is."""
    return {"$ref": found["$ref"]} if "$ref" in found else _trimmed(found)


def _reached(node: Any, models: dict[str, Any]) -> list[str]:
    """The names of the models that a schema refers to, and that those refer to."""
    found: list[str] = []
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.append(name)
                todo.append(models[name])
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return sorted(found)


def _trimmed(node: Any) -> Any:
    """Without defaults and titles, since the chart sends what is given only and messages name the path; mappings closed."""
    if isinstance(node, dict):
        left_out = {"default", "title"} if not isinstance(node.get("title"), dict) else set()
        closed = {"additionalProperties": False} if "patternProperties" in node else {}
        return {key: _trimmed(value) for key, value in node.items() if key not in left_out} | closed
    return [_trimmed(item) for item in node] if isinstance(node, list) else node


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    made = files()
    for folder in {path.parent for path in made if path.parent != CHART}:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in set(folder.iterdir()) - made.keys():
            stale.unlink()
            print(f"removed {stale.relative_to(ROOT)}")
    for path, content in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
