"""Reading the catalog: YAML files to frozen records, each error with its file, its field and what would be right."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from serving.catalog.engine_names import EngineMetrics
from serving.catalog.gate_rules import GateRules
from serving.catalog.model import Catalog, EngineImage, EngineImages, Model, Profile, Record, Removed, Target, Vocabulary
from serving.core.errors import ConfigurationError
from serving.strict_yaml import read_yaml

R = TypeVar("R", bound=Record)
N = TypeVar("N", Target, Model, Profile, GateRules)


def load_catalog(root: Path) -> Catalog:
    """Read `targets/`, `models/`, `profiles/`, `engines/` and, if there is one, `gate/` below `root`; check every reference.

    Raises:
        ConfigurationError: naming the file, the path of the field and what would be right.
    """
    if not root.is_dir():
        raise ConfigurationError(f"catalog: {root} is not a directory; give --catalog or SERVING_CATALOG_DIR")
    targets = _read_shelf(root / "targets", Target)
    models = _read_shelf(root / "models", Model)
    profiles = _read_shelf(root / "profiles", Profile)
    for name, profile in profiles.items():
        path = root / "profiles" / f"{name}.yaml"
        _require(path, "target", profile.target, targets)
        _require(path, "model", profile.model, models)
        _require(path, "checkpoint", profile.checkpoint, models[profile.model].checkpoints)
    gates = _read_shelf(root / "gate", GateRules) if (root / "gate").is_dir() else {}
    _check_gates(root / "gate", gates, profiles, targets)
    removed_path = root / "engines" / "removed.yaml"
    metrics_path = root / "engines" / "metrics.yaml"
    return Catalog.model_construct(
        targets=types.MappingProxyType(targets),
        models=types.MappingProxyType(models),
        profiles=types.MappingProxyType(profiles),
        vocabularies=types.MappingProxyType(_read_vocabularies(root / "engines")),
        removed=_validate(removed_path, read_yaml(removed_path), Removed),
        engine_metrics=_validate(metrics_path, read_yaml(metrics_path), EngineMetrics).names,
        images=_read_images(root / "engines" / "images.yaml"),
        gates=types.MappingProxyType(gates),
    )


def read_record(path: Path, kind: type[R]) -> R:
    """One YAML file as a record. Raises: ConfigurationError, as `load_catalog`."""
    return _validate(path, read_yaml(path), kind)


def find_profile(catalog: Catalog, name: str) -> Profile:
    """The profile of that name.

    Raises:
        ConfigurationError: with the nearest name and all names there are.
    """
    if name not in catalog.profiles:
        known = ", ".join(sorted(catalog.profiles)) or "none"
        raise ConfigurationError(f"profile {name!r} is not in the catalog{nearest(name, catalog.profiles)}; there are: {known}")
    return catalog.profiles[name]


def nearest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` for the known name most like `word`, or nothing."""
    match = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]}?" if match else ""


def _read_shelf(folder: Path, kind: type[N]) -> dict[str, N]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: is missing; a catalog has the folders targets, models, profiles and engines")
    shelf: dict[str, N] = {}
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".yml", ".yaml") and path.suffix != ".yaml":
            raise ConfigurationError(f"{path}: must end in .yaml, or it would be overlooked")
        if path.suffix != ".yaml":
            continue
        record = _validate(path, read_yaml(path), kind)
        if record.name in files:
            raise ConfigurationError(f"{path}: name: {record.name!r} is the name of {files[record.name]} already")
        files[record.name] = path
        if record.name != path.stem:
            raise ConfigurationError(
                f"{path}: name: is {record.name!r}; must be {path.stem!r} like the file, or name the file {record.name}.yaml"
            )
        shelf[record.name] = record
    return shelf


def _check_gates(
    folder: Path, gates: Mapping[str, GateRules], profiles: Mapping[str, Profile], targets: Mapping[str, Target]
) -> None:
    ruled: dict[str, str] = {}
    for rules in gates.values():
        path = folder / f"{rules.name}.yaml"
        for place, profile in enumerate(rules.profiles):
            _require(path, f"profiles.{place}", profile, profiles)
            if profile in ruled:
                raise ConfigurationError(f"{path}: profiles.{place}: {profile!r} has the rules {ruled[profile]!r} already")
            ruled[profile] = rules.name
        for target in rules.floors:
            _require(path, f"floors.{target}", target, targets)


def _read_vocabularies(folder: Path) -> dict[str, Vocabulary]:
    vocabularies: dict[str, Vocabulary] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path}: cannot be read as JSON: {error}; make it again with `serving snapshot`") from None
        vocabulary = _validate(path, data, Vocabulary)
        if path.stem != f"{vocabulary.engine}-{vocabulary.version}":
            raise ConfigurationError(f"{path}: version: must agree with the name of the file")
        vocabularies[vocabulary.version] = vocabulary
    return vocabularies


def _read_images(path: Path) -> tuple[EngineImage, ...]:
    images = _validate(path, read_yaml(path), EngineImages).images
    seen: set[tuple[str, str]] = set()
    for place, image in enumerate(images):
        if (image.version, image.build) in seen:
            raise ConfigurationError(f"{path}: images.{place}: vLLM {image.version} for {image.build} is given twice")
        seen.add((image.version, image.build))
    return images


def _require(path: Path, field: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise ConfigurationError(
            f"{path}: {field}: {name!r} is not in the catalog{nearest(name, known)}; there are: {', '.join(sorted(known))}"
        )


def _validate(path: Path, data: Any, kind: type[R]) -> R:
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must be a mapping of fields, not {'empty' if data is None else type(data).__name__}")
    try:
        # JSON mode: a list is a tuple there, while numbers in quotes and yes/no for text stay errors.
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        lines = [_explain(path, problem, kind) for problem in error.errors(include_url=False)]
        raise ConfigurationError("\n".join(lines)) from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deeply") from None


def _explain(path: Path, problem: Any, kind: type[BaseModel]) -> str:
    place = [str(part) for part in problem["loc"]]
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = problem.get("input")
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(kind, problem["loc"][:-1])
        message = f"is not a field{nearest(place[-1], fields)}" + (f"; there are: {', '.join(fields)}" if fields else "")
    elif problem["type"] == "missing":
        message = "is missing"
    elif problem["type"] == "string_type":
        message = f"must be text, not {value!r}; put it in quotes"
    elif problem["type"] == "json_invalid":
        message = f"cannot be taken: {message}"  # its input is the whole file
    elif problem["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, not {value!r}"
    where = f"{'.'.join(place)}: " if place else ""
    return f"{path}: {where}{message}"


def _fields_at(kind: type[BaseModel], place: tuple[str | int, ...]) -> list[str]:
    """The names of fields that the record at `place` inside `kind` may have; empty where it cannot be told."""
    current: Any = kind
    for part in place:
        current = _step(current, part)
    models = [m for m in _alternatives(current) if isinstance(m, type) and issubclass(m, BaseModel)]
    return sorted(models[0].model_fields) if len(models) == 1 else []


def _step(current: Any, part: str | int) -> Any:
    for option in _alternatives(current):
        if isinstance(option, type) and issubclass(option, BaseModel):
            field = option.model_fields.get(str(part))
            if field is not None:
                return field.annotation
            if option.model_fields.get("kind") and part in get_args(option.model_fields["kind"].annotation):
                return option  # pydantic writes the tag of a union into the path
        elif get_origin(option) is dict:
            return get_args(option)[1]
        elif get_origin(option) is tuple:
            return get_args(option)[0]
    return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(option for part in get_args(annotation) for option in _alternatives(part))
    return (annotation,)
