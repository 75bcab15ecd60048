"""One run of the gate: which engine, which references, which rules; from there to the verdict and its report.

`judge_address` is the way in for programs, as the controller; the command line makes the same `Order` from its options.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from serving.catalog.gate_rules import DEFAULT_RULES, Floor, GateRules, rules_of
from serving.catalog.load import find_profile, nearest
from serving.catalog.model import Catalog, HubSource, Profile, PublishedSource
from serving.catalog.render import find_image, render_profile
from serving.core.errors import ConfigurationError
from serving.gate.address import TIMEOUT_SECONDS, Address
from serving.gate.collect import CollectOptions, Report, collect
from serving.gate.collected import Collected, read_collected
from serving.gate.digest import Configuration
from serving.gate.evidence import Evidence
from serving.gate.judge import judge
from serving.gate.passages import corpus_digest
from serving.gate.report import GateReport, make_report
from serving.gate.verdict import Verdict

_FORMATS = {"mxfp4-w4a16": "mxfp4a16"}
"""The catalog's names of formats, where the rules have others."""


@dataclass(frozen=True)
class Order:
    """What is to be judged by what. A reference is an address or the path of a file of `serving gate collect`."""

    candidate: str
    rules: GateRules
    format: str
    target: str
    floor: Floor | None = None
    matched: str | None = None
    reference: str | None = None
    honest: str | None = None
    is_same_engine: bool = False
    plain: str | None = None
    expected_acceptance: float | None = None
    customer_share: float = 1.0
    model: str | None = None
    """Of the candidate; references serve what they serve."""
    secret: str | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    collecting: CollectOptions = field(default_factory=CollectOptions)
    without_prompts: bool = False


@dataclass(frozen=True)
class Outcome:
    """Of a run."""

    verdict: Verdict
    report: GateReport
    candidate: Collected


def judge_address(order: Order, report: Report = lambda line: None) -> Outcome:
    """Raises: ConfigurationError for an address at which nothing answers, and for references that do not fit."""

    saved = _saved_references(order)

    def reference(given: str | None) -> Collected | None:
        return None if given is None else saved.get(given) or gather(given, order, report)

    candidate = gather(order.candidate, order, report, is_candidate=True)
    evidence = Evidence(
        candidate=candidate,
        format=order.format,
        rules=order.rules,
        target=order.target,
        floor=order.floor,
        matched=reference(order.matched),
        reference=reference(order.reference),
        honest=reference(order.honest),
        is_same_engine=order.is_same_engine,
        plain=reference(order.plain),
        expected_acceptance=order.expected_acceptance,
        customer_share=order.customer_share,
    )
    verdict = judge(evidence)
    return Outcome(verdict, make_report(evidence, verdict, without_prompts=order.without_prompts), candidate)


def _saved_references(order: Order) -> dict[str, Collected]:
    """Those that are files, before minutes are spent on the candidate. Raises: ConfigurationError, also for other texts."""
    found = {}
    for given in (order.matched, order.reference, order.honest, order.plain):
        if given is not None and not is_address(given):
            found[given] = read_collected(Path(given))
            if is_address(order.candidate) and found[given].corpus != corpus_digest():
                raise ConfigurationError(
                    f"{given}: was collected with other texts, by version {found[given].gate_version}; collect it again"
                )
    return found


def gather(given: str, order: Order, report: Report, *, is_candidate: bool = False) -> Collected:
    """From a file, or from an address that is asked now."""
    if not is_address(given):
        collected = read_collected(Path(given))
        if is_candidate and order.collecting.configuration is not None:
            collected = collected.model_copy(update={"configuration": order.collecting.configuration})
        return collected
    options = order.collecting
    if not is_candidate:
        options = dataclasses.replace(options, configuration=None, engine_pid=None)
    address = Address(
        given, model=order.model if is_candidate else None, secret=order.secret, timeout_seconds=order.timeout_seconds
    )
    return collect(address, options, report)


def is_address(given: str) -> bool:
    return given.startswith(("http://", "https://"))


# What a profile of the catalog says


def rules_by_name(catalog: Catalog, name: str) -> GateRules:
    """Raises: ConfigurationError."""
    if name not in catalog.gates:
        known = ", ".join(sorted(catalog.gates)) or "none"
        raise ConfigurationError(f"--rules: {name!r} is not in the catalog{nearest(name, catalog.gates)}; there are: {known}")
    return catalog.gates[name]


def rules_for(catalog: Catalog, profile: str) -> GateRules:
    """Raises: ConfigurationError in a catalog without rules."""
    found = rules_of(catalog.gates, profile)
    if found is None:
        raise ConfigurationError(f"catalog: gate/{DEFAULT_RULES}.yaml is missing, and no rules name {profile}")
    return found


def format_of(catalog: Catalog, profile: Profile) -> str:
    """The rules' name of a profile's weights, by how its target computes with them."""
    checkpoint = catalog.models[profile.model].checkpoints[profile.checkpoint]
    weights = checkpoint.format
    support = catalog.targets[profile.target].formats.get(weights)
    if weights in ("nvfp4", "mxfp4") and support is not None and support.support == "weight-only":
        return f"{weights}a16"
    return _FORMATS.get(weights, weights)


def configuration_of(catalog: Catalog, profile_name: str) -> Configuration:
    """What the chart runs for a profile. Raises: ConfigurationError."""
    profile = find_profile(catalog, profile_name)
    rendered, image = render_profile(catalog, profile_name), find_image(catalog, profile)
    reference = f"{image.registry}/{image.repository}"
    tag = f"@{image.digest}" if image.digest else f":{image.tag}"
    return Configuration(
        image=f"{reference}{tag}",
        checkpoint=checkpoint_name(catalog, profile),
        argv=tuple(rendered["argv"]),
        target=profile.target,
        environment=rendered["environment"],
    )


def checkpoint_name(catalog: Catalog, profile: Profile) -> str:
    """By the hub's repository and commit where one is pinned, else by the catalog's name."""
    checkpoint = catalog.models[profile.model].checkpoints[profile.checkpoint]
    hub = next((source for source in checkpoint.sources if isinstance(source, HubSource | PublishedSource)), None)
    if isinstance(hub, HubSource):
        return f"{hub.repository}@{hub.revision}"
    return hub.repository if hub else f"{profile.model}-{profile.checkpoint}"


def expected_acceptance(profile: Profile) -> float | None:
    return profile.speculation.acceptance_tokens if profile.speculation else None


def read_configuration(path: Path) -> Configuration:
    """Raises: ConfigurationError."""
    try:
        return Configuration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        fields = ", ".join(Configuration.model_fields)
        raise ConfigurationError(f"{path}: {where}: {problem['msg']}; its fields are {fields}") from None
