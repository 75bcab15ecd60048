"""Is the whole catalog right? Names against the snapshot of each vLLM, formats against targets, figures against the roofline.

Each rule is a function of one record that yields findings. Nothing is started, imported or looked up: a machine without an
accelerator and without vLLM says it all in a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from serving.catalog.argv import ALWAYS, ENVIRONMENT, contradictions
from serving.catalog.findings import Finding, finding
from serving.catalog.fit import shape_problems
from serving.catalog.load import load_catalog, nearest
from serving.catalog.model import Catalog, EngineImage, Model, Profile, Target
from serving.catalog.parallel import accelerators, parallel_of
from serving.catalog.render import find_image
from serving.catalog.speed import anchor_bound
from serving.catalog.vocabulary import check, environment_problems
from serving.core.errors import ConfigurationError

FIGURES = (
    "memory_bytes", "memory_bandwidth_bytes_per_second", "peak_flops", "power_watts", "node_power_watts_per_accelerator",
)  # fmt: skip
"""Fields of a target that are facts of the world and want a source."""
IMAGES = "engines/images.yaml"
SNAPSHOT_REMEDY = "run `serving snapshot` where that vLLM is installed, and commit the file"


def lint(root: Path) -> tuple[list[Finding], Catalog | None]:
    """Everything that is to be said of the catalog under `root`, in a fixed order; no catalog where it could not be read."""
    try:
        catalog = load_catalog(root)
    except ConfigurationError as error:
        return [_unreadable(root, line) for line in str(error).splitlines()], None
    found = [
        *(entry for image in catalog.images for entry in _image(image)),
        *(entry for target in catalog.targets.values() for entry in _target(target)),
        *(entry for model in catalog.models.values() for entry in _model(model)),
        *(entry for profile in catalog.profiles.values() for entry in _profile(catalog, profile)),
        *_versions(catalog),
    ]
    return sorted(set(found)), catalog  # a model's fault is found with each of its profiles


def _unreadable(root: Path, line: str) -> Finding:
    """A line of the loader's error, which begins with the file."""
    path, _, problem = line.partition(": ")
    file = path.removeprefix(f"{root}/")
    if ": " not in problem:
        problem = f"(file): {problem}"
    return finding(
        file, problem, "what the message says of the field; `serving targets --json` shows the shape of a whole record"
    )


def _image(image: EngineImage) -> Iterator[Finding]:
    field = f"images[{image.version} {image.build}].digest"
    if image.digest is None and image.digest_missing_because is None:
        yield Finding(
            IMAGES, field, "error", f"{image.repository}:{image.tag} has none, and its owner may move the tag",
            "sha256:… as the registry tells it, or digest_missing_because with the reason",
        )  # fmt: skip
    elif image.digest is None:
        yield Finding(
            IMAGES, field, "note", f"{image.repository}:{image.tag} has none: {image.digest_missing_because}",
            "sha256:… as the registry tells it",
        )  # fmt: skip
    elif image.digest_missing_because is not None:
        field = field.replace("digest", "digest_missing_because")
        yield Finding(IMAGES, field, "error", "is said beside a digest", "leave one of the two out")


def _target(target: Target) -> Iterator[Finding]:
    file = f"targets/{target.name}.yaml"
    for field in FIGURES:
        if getattr(target, field) and field not in target.sources:
            yield Finding(file, f"sources.{field}", "error", "is missing", "where the figure comes from, and when it was read")
    for field in target.sources.keys() - type(target).model_fields.keys():
        hint = nearest(field, type(target).model_fields)
        yield Finding(file, f"sources.{field}", "error", f"is the source of no field{hint}", "the name of a field of this file")
    if target.experimental:
        yield Finding(file, "experimental", "note", "vLLM's support is young or was seen by nobody here", "true, until it was")


def _model(model: Model) -> Iterator[Finding]:
    counted = model.shape.parameters
    if abs(counted - model.parameters) > 0.01 * model.parameters:
        yield Finding(
            f"models/{model.name}.yaml", "parameters", "error",
            f"{model.parameters / 1e9:.2f} B are said and the shape has {counted / 1e9:.2f} B",
            "the published number, with a shape that gives it within a hundredth",
        )  # fmt: skip


def _profile(catalog: Catalog, profile: Profile) -> Iterator[Finding]:
    file = f"profiles/{profile.name}.yaml"
    vocabulary = catalog.vocabularies.get(profile.engine_version)
    listed = f"a name that vLLM {profile.engine_version} has; engines/vllm-{profile.engine_version}.json lists them"
    if vocabulary is None:
        wrong = f"vLLM {profile.engine_version} has no snapshot, so arguments, environment, parsers and metrics are not checked"
        yield Finding(file, "engine_version", "unchecked", wrong, SNAPSHOT_REMEDY)
    yield from (finding(file, problem, listed) for problem in [*check(catalog, profile), *contradictions(profile)])
    yield from _parsers(catalog, profile)
    yield from _speculation(file, profile)
    hardware = list(_hardware(catalog, profile))
    yield from hardware
    if not hardware:
        yield from _anchors(catalog, profile)
    yield from _comparisons(catalog, profile)


def _parsers(catalog: Catalog, profile: Profile) -> Iterator[Finding]:
    """The model's parsers, which each of its engines gets, against the registries of the profile's vLLM."""
    vocabulary = catalog.vocabularies.get(profile.engine_version)
    model = catalog.models[profile.model]
    named = {"tool-call-parser": model.tool_call_parser, "reasoning-parser": model.reasoning_parser}
    for flag, parser in named.items():
        known = [str(choice) for choice in vocabulary.flags[flag].choices] if vocabulary and flag in vocabulary.flags else []
        if vocabulary and parser and parser not in known:
            yield Finding(
                f"models/{model.name}.yaml", flag.replace("-", "_"), "error",
                f"{parser!r} is no {flag.replace('-', ' ')} of vLLM {profile.engine_version}{nearest(parser, known)}",
                f"one of {', '.join(known)}",
            )  # fmt: skip


def _speculation(file: str, profile: Profile) -> Iterator[Finding]:
    config = profile.arguments.get("speculative-config")
    tokens = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    said = profile.speculation.draft_tokens if profile.speculation else None
    if tokens != said:
        yield Finding(
            file, "speculation.draft_tokens", "error", f"is {said or 'left out'} and arguments.speculative-config has {tokens}",
            "the same number in both, or neither",
        )  # fmt: skip


def _hardware(catalog: Catalog, profile: Profile) -> Iterator[Finding]:
    """What the target makes of the model. One that cannot run it says only that: its image and its size do not matter then."""
    file, target = f"profiles/{profile.name}.yaml", catalog.targets[profile.target]
    remedy = f"`serving plan {profile.name}` shows the arithmetic"
    problems = shape_problems(catalog, profile)
    yield from (finding(file, problem, remedy) for problem in problems)
    if any(problem.startswith(("target: ", "checkpoint: ")) for problem in problems):
        return
    for look in (lambda: find_image(catalog, profile), lambda: accelerators(profile, target)):
        try:
            look()
        except ConfigurationError as error:
            yield finding(file, str(error).partition(": ")[2], f"see targets/{target.name}.yaml and {IMAGES}")


def _anchors(catalog: Catalog, profile: Profile) -> Iterator[Finding]:
    """A figure above the roofline measures something else: all tokens for output tokens, a warm cache, another chip."""
    file, count = f"profiles/{profile.name}.yaml", parallel_of(profile).accelerators
    for place, anchor in enumerate(profile.anchors):
        said = anchor.output_tokens_per_second(count)
        try:
            bound, batch = anchor_bound(catalog, profile, anchor)
        except ConfigurationError as error:
            yield Finding(file, f"anchors.{place}.value", "unchecked", f"{anchor.name}: {error}", "a peak in the target's file")
            continue
        if said > bound:
            yield Finding(
                file, f"anchors.{place}.value", "error",
                f"{anchor.name}: {said:,.0f} output tokens/s are more than the {bound:,.0f} that the hardware allows "
                f"at {batch} requests",
                "the figure of the same workload, in the unit it was published in",
            )  # fmt: skip
    if profile.status == "measured" and profile.simulation is None and not any(anchor.reproduced for anchor in profile.anchors):
        right = "untested, or the field simulation or an anchor that was reproduced"
        yield Finding(file, "status", "error", "is measured, and the file holds no measurement", right)


def _comparisons(catalog: Catalog, profile: Profile) -> Iterator[Finding]:
    file = f"profiles/{profile.name}.yaml"
    for place, comparison in enumerate(profile.comparisons):
        baseline = catalog.profiles.get(comparison.baseline)
        field, name, known = "baseline", comparison.baseline, list(catalog.profiles)
        if baseline is not None:
            field, name, known = "baseline_anchor", comparison.baseline_anchor or "", [a.name for a in baseline.anchors]
        if name and name not in known:
            hint = f"{name!r} is not there{nearest(name, known)}"
            yield Finding(file, f"comparisons.{place}.{field}", "error", hint, f"one of {', '.join(sorted(known)) or 'none'}")


def _versions(catalog: Catalog) -> Iterable[Finding]:
    """What every engine gets and what the product reads, against each vLLM version that a profile uses."""
    for version in sorted({profile.engine_version for profile in catalog.profiles.values()} & catalog.vocabularies.keys()):
        vocabulary = catalog.vocabularies[version]
        for name in catalog.engine_metrics:
            if name not in vocabulary.metrics:
                wrong = f"{name} is no series of vLLM {version}{nearest(name, vocabulary.metrics)}"
                yield Finding("engines/metrics.yaml", "names", "error", wrong, f"a name of engines/vllm-{version}.json")
        for flag in ALWAYS.keys() - vocabulary.flags.keys():
            wrong = f"--{flag}, which every engine gets, is no flag of vLLM {version}"
            yield Finding(f"engines/vllm-{version}.json", f"flags.{flag}", "error", wrong, "a version that has it")
        for problem in environment_problems(ENVIRONMENT, vocabulary, catalog.removed):
            yield finding(f"engines/vllm-{version}.json", f"environment.{problem}", "a version that has it")
